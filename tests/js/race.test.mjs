// The race: lanes aligned by token, on one clock or token by token.
import assert from "node:assert/strict";
import { test } from "node:test";
import { blocksOf, energyAt, hasMeter, laneAt, laneTime, newRace, numTokens, ratioSpread, takeRaceFrame, totalNs, trackOf, valuesAt } from "../../assets/js/race.mjs";
import { stepEnd } from "../../assets/js/player.mjs";

const MS = 1e6;
const PROMPT = 6;

/** Lines of a lane: the prompt in `pieces`, then a token every `ms`. */
function lane(cache, repeat, { pieces = 1, ms, tokens = 4, power = null, finish = "length" }) {
  const full = cache === "full";
  const lines = [{ kind: "member_started", label: { cache }, repeat, purpose: "measured" }];
  lines.push({
    kind: "run_started", accepted_ns: 1000 * MS, settings: { cache, batch: 1, dtype: "bfloat16", new_tokens: tokens },
    spec: { layers: [{ num_kv_heads: 1, key_dim: 2, value_dim: 2 }] }, prompt_token_ids: [[1, 2, 3, 4, 5, 6]], prompt_texts: [["a", "b", "c", "d", "e", "f"]],
  });
  let at = 1000 * MS;
  const step = (i, phase, from, to, gives, took) => {
    lines.push({
      kind: "step_finished", step: i, phase, start_ns: at, end_ns: at + took * MS, num_new_tokens: [full ? to - from : to], context_len: [to],
      appended: [full ? [from, to] : [0, 0]], dropped: [[]], token_ids: [gives ? [7] : []], token_texts: [gives ? ["x"] : []],
      kv_live_bytes: 0, kv_reserved_bytes: 0, weight_bytes_read: 100, kv_bytes_read: full ? to : 0, kv_bytes_written: full ? to - from : 0,
    });
    at += took * MS;
    if (power !== null) lines.push({ kind: "telemetry", t_ns: at, power_w: power });
  };
  const piece = PROMPT / pieces;
  for (let i = 0; i < pieces; i++) step(i, "prefill", i * piece, (i + 1) * piece, i === pieces - 1, 60 / pieces);
  for (let k = 1; k < tokens; k++) step(pieces + k - 1, "decode", PROMPT + k - 1, PROMPT + k, true, ms);
  lines.push({ kind: "run_finished", end_ns: at, finish_reason: finish, sequence_reasons: [finish] });
  return lines;
}

function raceOf(...lanes) {
  const members = lanes.flatMap((lines, member) => lines.map((line) => ({ ...line, member })));
  const events = [{ kind: "experiment_started", settings: { repeats: 1 } }, ...members, { kind: "experiment_finished", finish_reason: "done" }];
  const steps = events.filter((event) => event.kind === "step_finished");
  const predicted = steps.map((step) => ({ flops: step.num_new_tokens[0] * 10 }));
  const columns = steps.map((step) => step.context_len[0]);
  const sizes = events.filter((e) => e.kind === "run_started").map(() => ({ row_bytes: 64, element_bytes: 2 }));
  const header = { first: 0, count: events.length, status: { state: "finished" }, error: null, sizes, columns, predicted };
  const race = newRace();
  const taken = takeRaceFrame(race, [header, ...events].map((line) => JSON.stringify(line)).join("\n"));
  assert.deepEqual(taken, { gap: false, added: events.length });
  return race;
}

const both = () => raceOf(lane("full", 0, { pieces: 3, ms: 10 }), lane("none", 0, { ms: 70 }));

test("token k without a cache stands beside token k with it, whatever their steps", () => {
  const race = both();
  for (const mode of ["clock", "token"]) {
    const track = trackOf(race, mode);
    for (let k = 1; k <= 4; k++) {
      const t = mode === "token" ? track.steps[k - 1].end_ns : Math.max(...["none", "full"].map((c) => blocksOf(race, c, track)[k - 1].to));
      const none = laneAt(race.shown.none, laneTime(race, "none", track, t));
      assert.equal(none.tokens, k);
      assert.equal(race.shown.none.steps[none.k - 1].num_new_tokens[0], PROMPT + k - 1);
      if (mode === "clock") continue;
      const full = laneAt(race.shown.full, laneTime(race, "full", track, t));
      assert.equal(full.tokens, k);
      assert.equal(race.shown.full.steps[full.k - 1].appended[0][1], PROMPT + k - 1);
      assert.notEqual(full.k, none.k);
    }
  }
});

test("on one clock the faster lane is ahead, token by token it waits", () => {
  const race = both();
  const clock = trackOf(race, "clock");
  const t = stepEnd(race.shown.none, 0) + 35 * MS;
  const at = (cache, track, when) => laneAt(race.shown[cache], laneTime(race, cache, track, when)).tokens;
  assert.equal(at("none", clock, t), 1);
  assert.equal(at("full", clock, t), 4);
  assert.equal(clock.finished.end_ns, totalNs(race.shown.none));
  const token = trackOf(race, "token");
  assert.deepEqual(token.starts, [0, 60 * MS, 130 * MS, 200 * MS]);
  assert.equal(at("full", token, 60 * MS + 9 * MS), 1);
  assert.equal(at("full", token, 60 * MS + 11 * MS), 2);
  assert.equal(at("full", token, 129 * MS), 2);
  assert.equal(at("none", token, 129 * MS), 1);
});

test("a step that is on is known with its share", () => {
  const race = both();
  const at = laneAt(race.shown.none, 60 * MS + 35 * MS);
  assert.equal(at.tokens, 1);
  assert.equal(at.running.step, 1);
  assert.equal(at.share, 0.5);
  assert.equal(laneAt(race.shown.none, 1e12).running, null);
});

test("the table's values are the sums of the events", () => {
  const race = both();
  assert.deepEqual(valuesAt(race, "rows", { none: 3, full: 3 }, true), { none: 6 + 7 + 8, full: 8, ratio: 21 / 8 });
  assert.deepEqual(valuesAt(race, "flops", { none: 3, full: 3 }, false), { none: 80, full: 10, ratio: 8 });
  assert.deepEqual(valuesAt(race, "ns", { none: 3, full: 3 }, true), { none: 200 * MS, full: 80 * MS, ratio: 2.5 });
  const bytes = valuesAt(race, "moved_bytes", { none: 1, full: 1 }, false);
  assert.equal(bytes.none, 100);
  assert.equal(bytes.full, 300 + (2 + 4 + 6) + 6);
});

test("of three runs the median is shown, of two the faster; the spread is over all pairs", () => {
  const slow = (repeat, ms) => lane("none", repeat, { ms });
  const race = raceOf(lane("full", 0, { ms: 10 }), slow(0, 90), slow(1, 70), lane("full", 1, { ms: 20 }), slow(2, 80));
  assert.equal(totalNs(race.shown.none), (60 + 3 * 80) * MS);
  assert.equal(totalNs(race.shown.full), (60 + 3 * 10) * MS);
  assert.deepEqual(ratioSpread(race, 4), { low: 270 / 120, high: 330 / 90, num: 2 });
  assert.equal(ratioSpread(both(), 4), null);
});

test("a lane that did not come to its end is not shown", () => {
  const race = raceOf(lane("full", 0, { ms: 10 }), lane("none", 0, { ms: 70, finish: "cancelled" }));
  assert.equal(race.shown.none, null);
  assert.equal(numTokens(race), 4);
  assert.deepEqual(valuesAt(race, "ns", { none: 2, full: 2 }, true), { none: null, full: 70 * MS, ratio: null });
  assert.equal(trackOf(race, "clock").finished.end_ns, 90 * MS);
});

test("energy is power held from reading to reading, and nothing without a sensor", () => {
  const race = raceOf(lane("full", 0, { ms: 10, power: 100 }), lane("none", 0, { ms: 70 }));
  assert.ok(Math.abs(energyAt(race.shown.full, 4) - 100 * 0.09) < 1e-9);
  assert.equal(energyAt(race.shown.full, 1), null);
  assert.equal(valuesAt(race, "energy_j", { none: 4, full: 4 }, true).none, null);
  assert.ok(hasMeter(race));
  assert.ok(!hasMeter(both()));
});

test("frames that come in parts give the same race", () => {
  const race = both();
  const text = [{ first: race.numEvents, count: 0, status: { state: "finished" }, error: null, sizes: [], columns: [], predicted: [] }].map((x) => JSON.stringify(x)).join("");
  assert.deepEqual(takeRaceFrame(race, text), { gap: false, added: 0 });
  assert.deepEqual(takeRaceFrame(newRace(), text), { gap: true, added: 0 });
});
