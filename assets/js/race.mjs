// A race in the browser: frames in, its runs by lane, and both lanes side by side at any token or moment.
//
// Pure: no DOM, no timers. Token k without a cache stands beside token k with it, whatever their step numbers are.
// Try it: node --test tests/js
import { stepEnd, stepsAt } from "./player.mjs";
import { newRun, plus, takeEvent, takeFrame } from "./run.mjs";

export const LANES = ["none", "full"];
export const QUANTITIES = ["rows", "flops", "moved_bytes", "ns", "energy_j"];

/** An empty race. */
export function newRace() {
  return {
    numEvents: 0, status: null, error: null, race: null, all: [], logits: null, prefix: null, finished: null,
    shown: {}, runs: {}, costs: {},
  };
}

/** Add a frame, as `takeFrame` does for a run. When its last record has come the lanes are chosen. */
export function takeRaceFrame(race, text) {
  const taken = takeFrame(race, text, takeRecord);
  if (taken.added) chooseLanes(race);
  return taken;
}

function takeRecord(race, event, beside) {
  if (event.kind === "experiment_started") race.race = event;
  else if (event.kind === "member_started") race.all.push({ ...event, cache: event.label.cache, run: newRun() });
  else if (event.kind === "logits_compared") race.logits = event;
  else if (event.kind === "prefix_changed") race.prefix = event;
  else if (event.kind === "experiment_finished") race.finished = event;
  else if (event.member !== undefined && event.kind !== "member_refused") takeEvent(race.all[event.member].run, event, beside);
  race.numEvents++;
}

/** Nanoseconds from the accepted request to the last token. */
export function totalNs(run) {
  return run.tokenSteps.length ? stepEnd(run, run.tokenSteps[run.tokenSteps.length - 1]) : 0;
}

/** Of each lane the run of median time (of two the faster), as viz_engine/race.py chooses it. */
function chooseLanes(race) {
  for (const cache of LANES) {
    const runs = race.all
      .filter((lane) => lane.cache === cache && lane.purpose === "measured")
      .map((lane) => lane.run)
      .filter((run) => ["stop", "length"].includes(run.finished?.finish_reason));
    race.runs[cache] = runs;
    const sorted = [...runs].sort((a, b) => totalNs(a) - totalNs(b));
    const run = sorted[Math.floor((sorted.length - 1) / 2)] ?? null;
    race.shown[cache] = run;
    race.costs[cache] = run ? tokenCosts(run) : [];
    const sampled = runs.find((one) => one.sequences[0].sampled); // the rows are the same in every repeat
    if (run && sampled) run.sequences = sampled.sequences;
  }
}

/** What each token of a run took: {rows, flops, moved_bytes, ns}; the first one the whole prompt. Null: not known. */
export function tokenCosts(run) {
  const costs = [];
  let from = 0;
  let lastNs = run.started.accepted_ns;
  for (const last of run.tokenSteps) {
    const cost = { rows: 0, flops: 0, moved_bytes: 0, ns: run.steps[last].end_ns - lastNs, energy_j: null };
    for (let i = from; i <= last; i++) {
      const step = run.steps[i];
      cost.rows += step.num_new_tokens[0];
      cost.flops = plus(cost.flops, run.predicted[i]?.flops);
      const moved = [step.weight_bytes_read, step.kv_bytes_read, step.kv_bytes_written];
      cost.moved_bytes = moved.reduce(plus, cost.moved_bytes);
    }
    costs.push(cost);
    from = last + 1;
    lastNs = run.steps[last].end_ns;
  }
  return costs;
}

/** Whether something measured the power of a lane. */
export function hasMeter(race) {
  return LANES.some((cache) => race?.shown[cache]?.telemetry.some((one) => one.power_w !== null));
}

/** Joules to the end of token k: NVML's power, each reading held to the next; null without two readings. */
export function energyAt(run, k) {
  const end = run.steps[run.tokenSteps[k - 1]].end_ns;
  const readings = run.telemetry.filter((one) => one.power_w !== null && one.t_ns <= end);
  if (readings.length < 2) return null;
  const times = [run.started.accepted_ns, ...readings.map((one) => one.t_ns), end];
  const powers = [readings[0].power_w, ...readings.map((one) => one.power_w)];
  return powers.reduce((sum, power, i) => sum + (power * (times[i + 1] - times[i])) / 1e9, 0);
}

/** One cell pair of the table: quantity `name` of token k of each lane, alone or of all up to it.
 * `tokens`: {none, full}. */
export function valuesAt(race, name, tokens, soFar) {
  const values = LANES.map((cache) => {
    const costs = race.costs[cache] ?? [];
    const k = tokens[cache];
    if (!(k >= 1 && k <= costs.length)) return null;
    if (name === "energy_j") return soFar ? energyAt(race.shown[cache], k) : null;
    if (!soFar) return costs[k - 1][name];
    let sum = 0;
    for (let i = 0; i < k; i++) sum = plus(sum, costs[i][name]);
    return sum;
  });
  return { none: values[0], full: values[1], ratio: values[0] === null || !values[1] ? null : values[0] / values[1] };
}

/** The least and the greatest of time without a cache / with it to token k, over pairs of repeats; null without two. */
export function ratioSpread(race, k) {
  const endOf = (run) => stepEnd(run, run.tokenSteps[k - 1]);
  const endsOf = (cache) => (race.runs[cache] ?? []).filter((run) => run.tokenSteps.length >= k).map(endOf);
  const [none, full] = LANES.map(endsOf);
  const num = Math.min(none.length, full.length);
  if (num < 2) return null;
  return { low: Math.min(...none) / Math.max(...full), high: Math.max(...none) / Math.min(...full), num };
}

/** Tokens that every lane with a run has given. */
export function numTokens(race) {
  const counts = LANES.filter((cache) => race.shown[cache]).map((cache) => race.shown[cache].tokenSteps.length);
  return counts.length ? Math.min(...counts) : 0;
}

/** The time axis of both lanes, in the shape that player.mjs moves along.
 *
 * "clock": both lanes run from 0; a step ends wherever a lane gives a token. "token": token k of both lanes begins at
 * one moment and the next waits for the slower lane. `starts[k]` is when token k (from 0) begins there, null on the
 * clock. */
export function trackOf(race, mode) {
  const runs = LANES.map((cache) => race.shown[cache]).filter(Boolean);
  const started = { accepted_ns: 0 };
  const ends = [];
  let starts = null;
  if (mode === "token") {
    starts = [];
    let t = 0;
    const most = Math.max(0, ...runs.map((run) => run.tokenSteps.length));
    for (let k = 0; k < most; k++) {
      starts.push(t);
      t += Math.max(...LANES.map((cache) => race.costs[cache]?.[k]?.ns ?? 0));
      ends.push(t);
    }
  } else {
    for (const run of runs) for (const i of run.tokenSteps) ends.push(stepEnd(run, i));
    ends.sort((a, b) => a - b);
  }
  const steps = ends.map((end_ns) => ({ end_ns, phase: "decode" }));
  const last = ends.length ? ends[ends.length - 1] : 0;
  return { started, steps, starts, mode, finished: { end_ns: last }, status: null };
}

/** A lane's own time (ns since it was accepted) when the track stands at t. */
export function laneTime(race, cache, track, t) {
  const run = race.shown[cache];
  if (!run) return 0;
  if (!track.starts) return Math.min(t, totalNs(run));
  const k = stepsAt(track, t); // whole tokens
  if (k >= run.tokenSteps.length) return totalNs(run);
  const before = k ? stepEnd(run, run.tokenSteps[k - 1]) : 0;
  return Math.min(before + (t - track.starts[k]), stepEnd(run, run.tokenSteps[k]));
}

/** Where a lane stands at its own time: k steps are over; `running` is the step that is on, `share` how far it is;
 * tokens that it has given. */
export function laneAt(run, t) {
  const k = stepsAt(run, t);
  const over = k >= run.steps.length;
  let share = 0;
  if (!over) {
    const step = run.steps[k];
    const start = step.start_ns - run.started.accepted_ns;
    share = Math.max(0, Math.min(1, (t - start) / Math.max(1, step.end_ns - step.start_ns)));
  }
  let tokens = 0;
  while (tokens < run.tokenSteps.length && run.tokenSteps[tokens] < k) tokens++;
  return { k, tokens, share, running: over ? null : run.steps[k], over };
}

/** Blocks of a lane's bar on the track: {token, from, to}, token 0 being the reading of the prompt. */
export function blocksOf(race, cache, track) {
  const run = race.shown[cache];
  if (!run) return [];
  let last = 0;
  return run.tokenSteps.map((i, token) => {
    const end = stepEnd(run, i);
    const from = track.starts ? track.starts[token] : last;
    const block = { token, from, to: track.starts ? from + (end - last) : end };
    last = end;
    return block;
  });
}
