// The race: two lanes side by side, the same model and prompt, as a pure function of a race's records and one moment.
//
// The matrix, the player and the shell are those of the live view. Here is what stands where, and the sentence.
import { writeTransport } from "./controls.mjs";
import { el, put } from "./elements.mjs";
import { SPEEDS, play, seek, stepBy, stepsAt } from "./player.mjs";
import {
  LANES, blocksOf, laneAt, laneTime, newRace, numTokens, takeRaceFrame, totalNs, trackOf, valuesAt,
} from "./race.mjs";
import { paintRaceChart, paintTracks, shareOfBars } from "./race_chart.mjs";
import { isFlashing, laneNodes, measureLane, newLane, paintLane, resetLane, rowsOf, writeLane } from "./race_lanes.mjs";
import { labelTable, popOfCell, tableNodes, writeTable } from "./race_table.mjs";
import { mountShell, newShell, writeInfo, writeStory } from "./shell.mjs";
import { countOf, dateOf, machineOf, modelOf, promptTokens, ratioOf, secondsOf, timeOf } from "./words.mjs";

const PATIENCE_S = 24; // the replay starts at a speed that shows all of it within this

/** The race in `parent`: `mode` is how the lanes are aligned, `track` their common time, `quantity` that of the chart,
 * `last` what was drawn. */
function newRaceView(parent) {
  const view = { shell: null, mode: "clock", modeAsked: null, quantity: "ns", track: null, lanes: {}, last: {} };
  for (const cache of LANES) view.lanes[cache] = newLane(cache);
  view.shell = newShell(parent, {
    skeleton: raceNodes,
    canvases: (n) => [n.tracks, n.chart, ...LANES.map((cache) => n.lanes[cache].canvas)],
    goKeys: { back: "lanes.go.back", next: "lanes.go.next", end: "lanes.go.end" },
    terms: "lanes.term.",
    newStore: newRace,
    take: takeRaceFrame,
    isOver: isRaceOver,
    isReady: isRaceOver,
    track: () => view.track,
    reset: () => resetRace(view),
    first: () => beginRace(view),
    asked: (data) => askMode(view, data.mode),
    label: () => labelRace(view.shell),
    measured: () => measureRace(view),
    draw: (now, dirty) => drawRace(view, now, dirty),
    step: (track, by, event) => stepRace(view, by, event),
    scrub: (n) => ({
      canvas: n.tracks,
      shareAt: (event) => shareOfBars(view.shell, event),
      seek: (share) => seek(view.shell.player, view.track, share * view.track.finished.end_ns),
    }),
    pop: { key: "cell", node: (name) => view.shell.n.cells[name], content: (name) => popOfCell(view.shell, name) },
  });
  wireRace(view);
  return view.shell;
}

function raceNodes(n) {
  const mode = (name) => el("button", { type: "button", class: "seg mode term", "data-term": name });
  n.clock = mode("clock");
  n.token = mode("token");
  n.tracks = el("canvas", { class: "tracks-canvas", role: "img" });
  n.lanes = Object.fromEntries(LANES.map((cache) => [cache, laneNodes(cache)]));
  n.empty = el("div", { class: "empty" }, el("b"), el("span"), el("i", { class: "bar" }, el("i")));
  tableNodes(n);
  n.chartTitle = el("button", { type: "button", class: "h term", "data-term": "chart" });
  n.chartNote = el("span", { class: "sub" });
  n.chartTag = el("span", { class: "tag" });
  n.chart = el("canvas", { class: "chart-canvas", role: "img" });
  n.chartCard = el("section", { class: "card chart" },
    el("header", {}, n.chartTitle, n.chartNote, n.chartTag), el("div", { class: "chart-stage" }, n.chart));
  const modes = el("div", { class: "segs", role: "group" }, n.clock, n.token);
  n.root = el("div", { class: "kv race" }, n.top,
    el("div", { class: "ribbon" }, modes, el("div", { class: "ribbon-stage" }, n.tracks), n.slider),
    el("div", { class: "lanes" }, n.lanes.none.card, n.lanes.full.card, n.empty),
    el("div", { class: "under" }, n.table, n.chartCard), n.live, n.tip, n.pop);
}

function resetRace(view) {
  view.track = null;
  Object.values(view.lanes).forEach(resetLane);
}

function isRaceOver(race) {
  return Boolean(race.finished) || race.status?.state === "finished";
}

/** The race is over: it is replayed from its start, at a speed that shows all of it. */
function beginRace(view) {
  const { n, store: race, player, data, sawLive } = view.shell;
  view.track = trackOf(race, view.mode);
  const seconds = view.track.finished.end_ns / 1e9;
  const enough = SPEEDS.find((speed) => speed >= 1 && seconds / speed <= PATIENCE_S);
  player.speed = enough ?? SPEEDS[SPEEDS.length - 1];
  n.speed.value = String(player.speed);
  seek(player, view.track, 0);
  if (data.autoplay || sawLive) play(player, view.track);
}

function askMode(view, mode) {
  if (!mode || mode === view.modeAsked) return;
  view.modeAsked = mode;
  if (mode !== view.mode) setMode(view, mode);
}

/** "clock" or "token"; the token that is shown stays. */
function setMode(view, mode) {
  const { shell, track } = view;
  const { player, store: race } = shell;
  view.mode = mode;
  shell.invalidate("words");
  if (!track) return;
  const before = momentOf(view).token;
  const { playing } = player;
  view.track = trackOf(race, mode);
  const ends = LANES.map((cache) => blocksOf(race, cache, view.track)[before - 1]?.to ?? 0);
  const end = mode === "token" ? view.track.steps[before - 1]?.end_ns : Math.max(...ends);
  seek(player, view.track, before ? end : 0);
  if (playing) play(player, view.track);
}

/** What is on screen: the time on the track, where each lane stands, the last token that all lanes have given. */
function momentOf({ shell, track }) {
  const { store: race, player } = shell;
  const t = Math.min(player.t, track.finished.end_ns);
  const at = {};
  const tokens = [];
  for (const cache of LANES) {
    const run = race.shown[cache];
    at[cache] = run ? laneAt(run, laneTime(race, cache, track, t)) : null;
    if (run) tokens.push(at[cache].tokens);
  }
  return { t, at, token: tokens.length ? Math.min(...tokens) : 0 };
}

function wireRace(view) {
  const { shell } = view;
  const { n } = shell;
  for (const mode of ["clock", "token"]) {
    n[mode].addEventListener("click", () => {
      setMode(view, mode);
      shell.component.setStateValue("mode", mode);
    });
  }
  n.root.addEventListener("click", (event) => {
    const row = event.target.closest?.("[data-quantity]");
    if (!row) return;
    view.quantity = row.dataset.quantity;
    shell.invalidate("words");
  });
}

/** A token on or back. A key that goes back from between two tokens first goes to the one that was reached. */
function stepRace({ shell, track }, by, event) {
  const { player } = shell;
  const reached = track.steps[stepsAt(track, player.t) - 1]?.end_ns;
  if (event.key && by < 0 && player.t > reached) seek(player, track, reached);
  else stepBy(player, track, by);
}

// ---- drawing ------------------------------------------------------------------------------------

function measureRace({ shell, lanes }) {
  for (const lane of Object.values(lanes)) measureLane(lane, shell.n.lanes[lane.cache].canvas, shell.unit);
}

function drawRace(view, now, dirty) {
  const { shell, lanes, last } = view;
  const moment = view.track ? momentOf(view) : null;
  for (const cache of LANES) paintLane(shell, lanes[cache], moment, now);
  paintTracks(view, moment);
  const fresh = dirty.all || dirty.words || dirty.size || dirty.run || !shell.player.playing
    || moment?.token !== last.token || LANES.some((cache) => moment?.at[cache]?.tokens !== last[cache]);
  if (fresh) {
    paintRaceChart(view, moment);
    writeTable(view, moment);
    for (const cache of LANES) writeLane(shell, cache, moment);
  }
  writeStory(shell, sayOfRace(view, moment), now);
  writeEmpty(shell, moment);
  writeRaceInfo(shell);
  writeRaceTransport(view, moment);
  markRace(view, moment);
  view.last = { token: moment?.token };
  for (const cache of LANES) view.last[cache] = moment?.at[cache]?.tokens;
  return { animating: LANES.some((cache) => isFlashing(lanes[cache], now)), wait: 0 };
}

/** What is on screen, for those who ask the page. */
function markRace({ shell, mode }, moment) {
  const { store: race, n } = shell;
  const { dataset } = n.root;
  dataset.run = shell.runId ?? "";
  dataset.token = moment?.token ?? 0;
  dataset.events = race?.numEvents ?? 0;
  dataset.mode = mode;
  for (const cache of LANES) {
    const at = moment?.at[cache];
    dataset[`${cache}Tokens`] = at?.tokens ?? 0;
    dataset[`${cache}Rows`] = at ? rowsOf(race.shown[cache], at) : 0;
  }
}

function writeRaceTransport({ shell, track, mode }, moment) {
  const { n, store: race, player, words } = shell;
  const on = Boolean(moment && track.steps.length);
  const time = on ? moment.t / Math.max(1, track.finished.end_ns) : 0;
  writeTransport(shell, {
    on,
    running: player.playing,
    atEnd: on && player.t >= track.finished.end_ns,
    where: on ? words.t("lanes.where", { n: moment.token, of: numTokens(race) }) : "",
    share: time,
    told: on ? words.t("lanes.slider", { time: timeOf(moment.t), n: moment.token }) : "",
  });
  for (const name of ["clock", "token"]) n[name].setAttribute("aria-pressed", String(mode === name));
  for (const cache of LANES) {
    const run = race?.shown[cache];
    put(n.lanes[cache].clock, moment && run ? timeOf(laneTime(race, cache, track, moment.t)) : "");
  }
}

// ---- words --------------------------------------------------------------------------------------

/** All texts that stay: once a language. */
function labelRace(shell) {
  const { n, words } = shell;
  const { t } = words;
  put(n.clock, t("lanes.mode.clock"));
  put(n.token, t("lanes.mode.token"));
  n.tracks.setAttribute("aria-label", t("lanes.aria.tracks"));
  n.chart.setAttribute("aria-label", t("lanes.term.chart"));
  labelTable(shell);
}

function sayOfRace(view, moment) {
  const { store: race, words, data, state } = view.shell;
  const { t } = words;
  if (state === "broken") return { text: t("lanes.say.broken"), tone: "bad" };
  if (state === "gone") return { text: t("lanes.say.gone"), tone: "bad" };
  if (!race) return { text: t("lanes.say.empty"), tone: "quiet" };
  if (!isRaceOver(race)) return { text: race.status?.text ?? t("lanes.say.waiting"), tone: "busy" };
  const why = race.finished?.finish_reason === "done" ? null : race.status?.text;
  const short = [race.error, why, ...(data.missing ?? [])].filter(Boolean).join(" ");
  if (!moment || LANES.some((cache) => !race.shown[cache])) {
    return { text: short || t("lanes.say.never"), tone: race.error ? "bad" : "quiet" };
  }
  const from = race.logits?.first_difference ?? null;
  const other = from !== null && moment.token > from ? ` ${t("lanes.say.differs", { n: from + 1 })}` : "";
  const text = `${raceStory(view, moment)}${other}${short ? ` ${short}` : ""}`;
  return { text, tone: other || race.error ? "bad" : "plain" };
}

function raceStory({ shell, mode, track }, { t: now, at, token }) {
  const { store: race, words } = shell;
  const { t } = words;
  const { none, full } = at;
  const prompt = countOf(promptTokens(race.shown.full));
  if (!none.tokens && !full.tokens) return t("lanes.say.reading", { prompt });
  const over = none.over && full.over;
  if (mode === "clock" && !over) {
    const done = secondsOf(totalNs(race.shown.full));
    const params = { time: timeOf(now), none: none.tokens, full: full.tokens, done };
    return t(full.over ? "lanes.say.clock_done" : "lanes.say.clock", params);
  }
  if (!token) return t("lanes.say.reading", { prompt });
  const last = track.steps.length && over;
  const tokens = { none: token, full: token };
  const found = valuesAt(race, "ns", tokens, last || token === 1);
  const again = countOf(valuesAt(race, "rows", tokens, false).none);
  const [a, b] = [found.none, found.full].map(secondsOf);
  const params = { n: token, a, b, ratio: ratioOf(found.ratio), again, prompt };
  if (last) return t("lanes.say.end", params);
  return t(token === 1 ? "lanes.say.first" : "lanes.say.token", params);
}

/** What stands over the lanes while there is nothing in them. */
function writeEmpty({ n, store: race, words }, moment) {
  const { t } = words;
  const waiting = Boolean(race) && !isRaceOver(race);
  n.empty.hidden = Boolean(moment && LANES.some((cache) => race.shown[cache]));
  const timing = waiting && race.status?.state === "running";
  const [head, body, bar] = n.empty.children;
  put(head, t(timing ? "lanes.empty.timing" : waiting ? "lanes.empty.soon" : "lanes.empty.head"));
  put(body, t(waiting ? "lanes.empty.why" : "lanes.empty.body"));
  bar.hidden = !waiting;
  bar.firstChild.style.width = `${Math.round((waiting ? race.status?.fraction ?? 0 : 0) * 100)}%`;
}

function writeRaceInfo(shell) {
  const { n, store: race, words, state, data } = shell;
  const run = race?.shown.full ?? race?.shown.none;
  if (!run) {
    put(n.info, "");
    return;
  }
  const { t } = words;
  const { hardware, settings, started_at: startedAt } = run.started;
  const repeats = Math.max(...LANES.map((cache) => race.runs[cache].length));
  const head = t(state === "retry" ? "info.retry" : data.recorded ? "info.recorded" : "info.over");
  const times = t(repeats > 1 ? "lanes.info.repeats" : "lanes.info.once", { n: repeats });
  const date = dateOf(startedAt, words.language);
  const text = [head, date, machineOf(hardware), modelOf(run.started, words), settings.dtype, times].join(" · ");
  writeInfo(shell, text, state === "retry" ? "retry" : "over");
}

const render = mountShell(newRaceView);
export default render;
