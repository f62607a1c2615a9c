// The race: two lanes side by side, the same model and prompt, as a pure function of a race's records and one moment.
//
// The matrix, the player, the feed and the looks are those of the live view. Nothing runs while nothing moves.
import { keyFor } from "./dom.mjs";
import { el, float, iconButton, mounting, place, put, setIcon } from "./elements.mjs";
import { openFeed } from "./feed.mjs";
import { axisTicks, columnLayout, niceCeil, rowBands } from "./layout.mjs";
import { newPyramid, setRows, wordOf } from "./matrix.mjs";
import { SPEEDS, advance, newPlayer, pause, play, seek, stepBy, stepsAt } from "./player.mjs";
import { LANES, QUANTITIES, blocksOf, laneAt, laneTime, newRace, numTokens, ratioSpread, takeRaceFrame, totalNs, trackOf, valuesAt } from "./race.mjs";
import { reservedRowsOf, textOf } from "./run.mjs";
import { drawStage, labelOf, stageLayout } from "./stage.mjs";
import { themeOf } from "./theme.mjs";
import { axisWords, countOf, dateOf, flopParts, machineOf, promptTokens, ratioOf, rowlessWords, secondsOf, sizeParts, timeOf, timeParts, turnsText, wordsOf } from "./words.mjs";

const views = new WeakMap();
const mounted = new Set();
const BASE_PX = 13;
const SEEN_MS = 180; // a step that is shorter than this on screen is not drawn while it runs: it would flicker
const FLASH_MS = 260;
const PATIENCE_S = 24; // the replay starts at a speed that shows all of it within this
const RACE_TAGS = { rows: "counted", flops: "predicted", moved_bytes: "counted", ns: "measured", energy_j: "measured" };

function newView(parent) {
  const n = raceSkeleton();
  parent.append(n.root);
  const view = {
    n, parent, race: null, runId: undefined, feed: null, player: newPlayer(), words: wordsOf({}, "en"), theme: null, track: null,
    mode: "clock", quantity: "ns", lanes: {}, dirty: {}, frame: 0, last: {}, data: {}, component: null, state: null,
    reduced: matchMedia("(prefers-reduced-motion: reduce)"),
  };
  for (const cache of LANES) view.lanes[cache] = { cache, n: n.lanes[cache], columns: null, pyramid: null, box: null, flashAt: -1e9, k: -1 };
  mounted.add(view);
  n.root.classList.toggle("projection", document.documentElement.classList.contains("st-projection"));
  wireRace(view);
  view.resize = new ResizeObserver(() => invalidate(view, "size"));
  for (const node of [n.root, n.tracks.parentElement, n.chart.parentElement, ...LANES.map((cache) => n.lanes[cache].stage)]) view.resize.observe(node);
  return view;
}

function destroy(view) {
  view.feed?.close();
  view.resize.disconnect();
  cancelAnimationFrame(view.frame);
  document.removeEventListener("keydown", view.onKey);
  view.n.root.remove();
  views.delete(view.parent);
  mounted.delete(view);
  if (!mounted.size) document.documentElement.classList.remove("st-projection");
}

function raceSkeleton() {
  const n = { lanes: {}, rows: {}, cells: {} };
  n.say = el("p", { class: "say" });
  n.live = el("p", { class: "sr", "aria-live": "polite" });
  n.info = el("p", { class: "info" });
  for (const name of ["start", "back", "play", "next", "end", "project"]) n[name] = iconButton(name);
  n.play.classList.add("main");
  n.speed = el("select", { class: "speed" });
  n.where = el("span");
  n.transport = el("div", { class: "transport", role: "group" }, el("span", { class: "where" }, n.where), n.start, n.back, n.play, n.next, n.end, n.speed, n.project);
  n.clock = el("button", { type: "button", class: "seg mode term", "data-term": "lanes.clock" });
  n.token = el("button", { type: "button", class: "seg mode term", "data-term": "lanes.token" });
  n.tracks = el("canvas", { class: "tracks-canvas", role: "img" });
  n.slider = el("input", { type: "range", min: "0", max: "1000", step: "1", class: "scrub" });
  for (const cache of LANES) {
    const lane = { title: el("button", { type: "button", class: "h term", "data-term": `lanes.lane.${cache}` }), sub: el("span", { class: "sub" }), clock: el("b", { class: "clock" }) };
    lane.canvas = el("canvas", { class: "matrix-canvas", role: "img" });
    lane.stage = el("div", { class: "stage" }, lane.canvas);
    lane.text = el("p", { class: "lane-text" });
    lane.card = el("section", { class: `card lane ${cache}`, "data-lane": cache }, el("header", {}, lane.title, lane.sub, lane.clock), lane.stage, lane.text);
    n.lanes[cache] = lane;
  }
  n.empty = el("div", { class: "empty" }, el("b"), el("span"), el("i", { class: "bar" }, el("i")));
  n.table = raceTable(n);
  n.chartTitle = el("button", { type: "button", class: "h term", "data-term": "lanes.chart" });
  n.chartNote = el("span", { class: "sub" });
  n.chartTag = el("span", { class: "tag" });
  n.chart = el("canvas", { class: "chart-canvas", role: "img" });
  n.chartCard = el("section", { class: "card chart" }, el("header", {}, n.chartTitle, n.chartNote, n.chartTag), el("div", { class: "chart-stage" }, n.chart));
  n.tip = el("div", { class: "tip", role: "tooltip", popover: "manual" });
  n.pop = el("div", { class: "pop", role: "dialog", popover: "auto" });
  n.root = el("div", { class: "kv race" },
    el("div", { class: "top" }, el("div", { class: "story" }, n.say), el("div", { class: "side" }, n.transport, n.info)),
    el("div", { class: "ribbon" }, el("div", { class: "segs", role: "group" }, n.clock, n.token), el("div", { class: "ribbon-stage" }, n.tracks), n.slider),
    el("div", { class: "lanes" }, n.lanes.none.card, n.lanes.full.card, n.empty),
    el("div", { class: "under" }, n.table, n.chartCard), n.live, n.tip, n.pop);
  return n;
}

/** A row a quantity; its name chooses the chart, its numbers open to the formula. */
function raceTable(n) {
  n.heads = { token: el("th", { colspan: "3", scope: "colgroup" }), soFar: el("th", { colspan: "3", scope: "colgroup" }) };
  n.subheads = [];
  const sub = el("tr", {}, el("td"));
  for (let i = 0; i < 6; i++) {
    n.subheads.push(el("th", { scope: "col", class: i % 3 === 2 ? "ratio" : "" }));
    sub.append(n.subheads[i]);
  }
  const body = el("tbody");
  for (const name of QUANTITIES) {
    const label = el("button", { type: "button", class: "row-name", "data-quantity": name });
    const tag = el("span", { class: "tag" });
    const row = el("tr", { "data-row": name }, el("th", { scope: "row" }, label, tag));
    n.rows[name] = { row, label, tag };
    for (const span of ["token", "soFar"]) {
      for (const part of [...LANES, "ratio"]) {
        const button = el("button", { type: "button", "data-cell": `${name}.${span}.${part}`, "aria-haspopup": "dialog" });
        n.cells[`${name}.${span}.${part}`] = button;
        row.append(el("td", { class: part === "ratio" ? "ratio" : part }, button));
      }
    }
    body.append(row);
  }
  return el("section", { class: "card table" }, el("table", {}, el("thead", {}, el("tr", {}, el("td"), n.heads.token, n.heads.soFar), sub), body));
}

// ---- what comes from Python ---------------------------------------------------------------------

function update(view, component) {
  view.component = component;
  const data = component.data ?? {};
  const language = data.language ?? "en";
  const strange = view.words.language !== language || !view.data.strings;
  view.data = data;
  if (data.strings && strange) {
    view.words = wordsOf(data.strings, language);
    label(view);
  }
  view.theme = themeOf(view.n.root);
  for (const lane of Object.values(view.lanes)) lane.pyramid = null;
  const runId = data.run_id ?? null;
  if (runId !== view.runId) open(view, runId);
  else if (runId && data.transport !== "poll" && view.state !== "broken" && (strange || !view.feed)) connect(view);
  if (data.mode && data.mode !== view.modeAsked) {
    view.modeAsked = data.mode;
    if (data.mode !== view.mode) setMode(view, data.mode, false);
  }
  for (const text of data.frames ?? []) take(view, text);
  invalidate(view, "all");
}

function open(view, runId) {
  view.feed?.close();
  view.feed = null;
  Object.assign(view, { runId, race: runId ? newRace() : null, player: newPlayer(), track: null, opened: false, state: null, told: false, sawLive: false });
  for (const lane of Object.values(view.lanes)) Object.assign(lane, { columns: null, pyramid: null, k: -1 });
  if (runId && view.data.transport !== "poll") connect(view);
}

function connect(view) {
  view.feed?.close();
  view.feed = openFeed({
    runId: view.runId,
    language: view.words.language,
    next: () => view.race.numEvents,
    handle: (text) => take(view, text),
    onState: (state) => {
      view.state = state;
      invalidate(view, "words");
    },
    onLost: () => {
      view.feed = null;
      view.component.setStateValue("transport", "poll");
    },
  });
}

/** Take a frame, whatever is in it: what cannot be shown is said, and never thrown into the page. */
function take(view, text) {
  if (!view.race || view.state === "broken") return { gap: false, over: true };
  try {
    const { gap } = takeRaceFrame(view.race, text);
    const over = raceOver(view.race);
    if (!over) view.sawLive = true;
    if (over && !view.opened) first(view);
    if (over && (view.sawLive || view.data.over === false) && !view.told) {
      view.told = true;
      view.component.setTriggerValue("finished", view.runId);
    }
    invalidate(view, "all");
    return { gap, over };
  } catch (error) {
    giveUp(view, error);
    return { gap: false, over: true };
  }
}

function giveUp(view, error) {
  console.warn("second token: this race's data cannot be shown", error);
  view.feed?.close();
  Object.assign(view, { race: newRace(), track: null, state: "broken" });
  invalidate(view, "all");
}

function raceOver(race) {
  return Boolean(race.finished) || race.status?.state === "finished";
}

/** The race is over: it is replayed from its start, at a speed that shows all of it. */
function first(view) {
  view.opened = true;
  view.track = trackOf(view.race, view.mode);
  const seconds = view.track.finished.end_ns / 1e9;
  view.player.speed = SPEEDS.find((speed) => speed >= 1 && seconds / speed <= PATIENCE_S) ?? SPEEDS[SPEEDS.length - 1];
  view.n.speed.value = String(view.player.speed);
  seek(view.player, view.track, 0);
  if (view.data.autoplay || view.sawLive) play(view.player, view.track);
}

/** "clock" or "token"; the token that is shown stays. */
function setMode(view, mode, tell) {
  const before = view.track ? momentOf(view).token : 0;
  view.mode = mode;
  if (view.track) {
    const playing = view.player.playing;
    view.track = trackOf(view.race, mode);
    const ends = LANES.map((cache) => blocksOf(view.race, cache, view.track)[before - 1]?.to ?? 0);
    seek(view.player, view.track, before ? (mode === "token" ? view.track.steps[before - 1].end_ns : Math.max(...ends)) : 0);
    if (playing) play(view.player, view.track);
  }
  if (tell) view.component.setStateValue("mode", mode);
  invalidate(view, "all");
}

/** What is on screen: the time on the track, where each lane stands, the last token that all lanes have given. */
function momentOf(view) {
  const { race, track, player } = view;
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

// ---- when to draw -------------------------------------------------------------------------------

function invalidate(view, what) {
  view.dirty[what] = true;
  if (!view.frame) view.frame = requestAnimationFrame((now) => tick(view, now));
}

function tick(view, now) {
  view.frame = 0;
  if (!view.n.root.isConnected) return;
  const ms = view.lastTick ? Math.min(250, now - view.lastTick) : 16;
  view.lastTick = now;
  if (view.track) advance(view.player, view.track, ms);
  const dirty = view.dirty;
  view.dirty = {};
  try {
    drawRace(view, now, dirty);
  } catch (error) {
    if (view.state === "broken" || !view.race) throw error;
    giveUp(view, error);
  }
  const flashing = LANES.some((cache) => now - view.lanes[cache].flashAt < FLASH_MS);
  if (view.player.playing || flashing) invalidate(view, "time");
  else view.lastTick = 0;
}

function drawRace(view, now, dirty) {
  if (dirty.all || dirty.size || !view.dpr) measureRace(view);
  const moment = view.track ? momentOf(view) : null;
  for (const cache of LANES) paintLane(view, view.lanes[cache], moment, now);
  paintTracks(view, moment);
  const fresh = dirty.all || dirty.words || dirty.size || moment?.token !== view.last.token || LANES.some((cache) => moment?.at[cache]?.tokens !== view.last[cache]) || !view.player.playing;
  if (fresh) {
    paintRaceChart(view, moment);
    writeTable(view, moment);
    for (const cache of LANES) writeLane(view, cache, moment);
  }
  writeSay(view, moment);
  writeClocks(view, moment);
  writeTransport(view, moment);
  const { root } = view.n;
  root.dataset.run = view.runId ?? "";
  root.dataset.token = moment?.token ?? 0;
  root.dataset.events = view.race?.numEvents ?? 0;
  root.dataset.mode = view.mode;
  for (const cache of LANES) {
    const at = moment?.at[cache];
    view.last[cache] = at?.tokens;
    root.dataset[`${cache}Tokens`] = at?.tokens ?? 0;
    root.dataset[`${cache}Rows`] = at ? rowsOf(view.race.shown[cache], at) : 0;
  }
  view.last.token = moment?.token;
}

/** Rows of a lane: held with a cache; without one those that the last step computed again. */
function rowsOf(run, at) {
  if (!at.k) return 0;
  const step = run.steps[at.k - 1];
  return run.started.settings.cache === "none" ? step.context_len[0] : step.appended[0][1];
}

function measureRace(view) {
  const { n } = view;
  const dpr = Math.min(3, window.devicePixelRatio || 1);
  view.dpr = dpr;
  view.unit = (parseFloat(getComputedStyle(n.root).fontSize) / BASE_PX) * dpr;
  for (const canvas of [n.tracks, n.chart, ...LANES.map((cache) => n.lanes[cache].canvas)]) {
    const w = Math.max(1, Math.round(canvas.parentElement.clientWidth * dpr));
    const h = Math.max(1, Math.round(canvas.parentElement.clientHeight * dpr));
    if (canvas.width !== w) canvas.width = w;
    if (canvas.height !== h) canvas.height = h;
  }
  for (const lane of Object.values(view.lanes)) {
    lane.box = stageLayout(lane.n.canvas.width, lane.n.canvas.height, view.unit);
    lane.columns = lane.pyramid = null;
  }
}

// ---- a lane -------------------------------------------------------------------------------------

function layLane(view, lane, run) {
  const { box } = lane;
  lane.columns = columnLayout(run.started.spec.layers.map((layer) => layer.num_kv_heads), box.width);
  const spare = box.width - lane.columns.used;
  box.x0 += spare;
  box.labelW += spare;
  box.width -= spare;
}

function fillLane(view, lane, run) {
  if (lane.cache === "none") return null;
  lane.pyramid ??= newPyramid(lane.columns, view.theme.rampK, wordOf(view.theme.cardRgb));
  const store = run.sequences[0];
  if (store.sampled > lane.pyramid.rows) setRows(lane.pyramid, store.k, lane.pyramid.rows, store.sampled);
  return lane.pyramid;
}

function paintLane(view, lane, moment, now) {
  const context = lane.n.canvas.getContext("2d", { alpha: false });
  const { box } = lane;
  const { theme, words } = view;
  const run = view.race?.shown[lane.cache];
  if (!moment || !run) {
    context.fillStyle = theme.card;
    context.fillRect(0, 0, box.w, box.h);
    return;
  }
  if (!lane.columns) layLane(view, lane, run);
  const at = moment.at[lane.cache];
  if (at.k > lane.k && lane.k >= 0 && !view.reduced.matches) lane.flashAt = now;
  lane.k = at.k;
  const none = lane.cache === "none";
  const running = isSeen(view, at) ? at.running : null;
  const step = at.k ? run.steps[at.k - 1] : null;
  const reading = running && (none || running.phase === "prefill");
  const held = none ? 0 : rowsOf(run, at);
  const rows = reading ? running.context_len[0] : none ? step?.context_len[0] ?? 0 : held;
  const flash = Math.max(0, 1 - (now - lane.flashAt) / FLASH_MS) * 0.55;
  const recompute = reading || none ? { flash: running ? 0 : Math.max(flash, 0.2), share: reading ? at.share : 0, note: noteOf(view, run, at, running) } : null;
  const bands = rowBands(rows, box.height, box.rowPx, null);
  const newRows = !none && !reading && step?.phase === "decode" ? 1 : 0;
  drawStage(context, {
    box, columns: lane.columns, pyramid: none || reading ? null : fillLane(view, lane, run), theme, bands, rows: recompute ? 0 : rows, newRows,
    promptLen: run.started.prompt_texts[0].length, layers: run.started.spec.layers,
    reservedRows: recompute || !step ? 0 : reservedRowsOf(run, step.kv_reserved_bytes) ?? 0,
    slide: 1, pop: 1, reveal: 1, revealFrom: 0, recompute: rows ? recompute : null, ghost: ghostOfLane(view, run, at, none), hoverLayer: -1,
    textOf: (row) => textOf(run, 0, row),
    words: {
      layer: words.t("layer"), reserved: words.t("reserved"), rowless: (layer) => rowlessWords(layer, words), position: (row) => countOf(row),
      middle: (count, per) => [words.t(none ? "middle.positions" : "middle.rows", { n: countOf(count) }), ...(per > 1 && !none ? [words.t("middle.pooled", { n: per })] : [])],
    },
  });
  if (running && !reading) drawRead(context, view, lane, bands, at.share);
}

/** Whether the step that is on lasts long enough on screen to be drawn while it runs. */
function isSeen(view, at) {
  if (!at.running || at.share <= 0 || view.reduced.matches) return false;
  return (at.running.end_ns - at.running.start_ns) / 1e6 / view.player.speed >= SEEN_MS;
}

/** A decode step with the cache: layer after layer reads all of its rows, and adds one. */
function drawRead(context, view, lane, bands, share) {
  const { box, columns } = lane;
  const layer = Math.min(columns.heads.length - 1, Math.floor(share * columns.heads.length));
  const last = bands[bands.length - 1];
  if (!last) return;
  context.fillStyle = view.theme.read;
  context.globalAlpha = 0.5;
  context.fillRect(box.x0 + columns.left[layer], box.top, columns.span[layer], last.y + last.h);
  const y = box.top + Math.min(last.y + last.h, box.height) + 6 * box.u;
  context.fillStyle = view.theme.new;
  context.globalAlpha = 0.55;
  context.fillRect(box.x0, y, columns.left[layer], box.rowPx - box.u);
  context.globalAlpha = 1;
}

function noteOf(view, run, at, running) {
  const { t } = view.words;
  const step = running ?? (at.k ? run.steps[at.k - 1] : null);
  if (!step) return "";
  const n = countOf(step.num_new_tokens[0]);
  if (step.phase === "prefill") return t(running ? "lanes.note.reading" : "lanes.note.read", { n });
  return t("recomputed", { n });
}

function ghostOfLane(view, run, at, none) {
  if (!at.tokens) return null;
  const piece = run.pieces[0][at.tokens - 1];
  const token = labelOf(piece.text);
  const { t } = view.words;
  if (at.over) return { token, ended: true, note: t(`ghost.${run.finished.sequence_reasons[0]}`, { token }) };
  return { token, note: t(none ? "ghost.none" : "ghost", { token, n: countOf(rowsOf(run, at) + 1) }) };
}

function writeLane(view, cache, moment) {
  const { race, words } = view;
  const node = view.n.lanes[cache];
  const run = race?.shown[cache];
  const at = moment?.at[cache];
  put(node.title, words.t(`lanes.lane.${cache}`));
  const parts = [];
  if (run && at) {
    const total = run.tokenSteps.length;
    const done = run.pieces[0].slice(0, at.tokens).map((piece) => piece.text);
    const newest = done.pop() ?? "";
    put(node.sub, words.t("lanes.lane.tokens", { n: at.tokens, of: total }));
    const other = race.shown[cache === "none" ? "full" : "none"];
    const from = race.logits?.first_difference ?? null;
    const differs = from !== null && other && at.tokens > from;
    parts.push(textNode("old", done.join("")), textNode(differs ? "tok cur differs" : "tok cur", newest));
    node.canvas.setAttribute("aria-label", words.t(`lanes.aria.${cache}`, { rows: countOf(rowsOf(run, at)), n: at.tokens }));
  } else put(node.sub, moment ? words.t("lanes.lane.missing") : "");
  node.text.replaceChildren(...parts);
}

function textNode(name, text) {
  const span = document.createElement("span");
  span.className = turnsText(text) ? `${name} turns` : name;
  span.textContent = text.replace(/\r?\n/g, "⏎"); // one line
  return span;
}

// ---- the two bars, the chart ---------------------------------------------------------------------

function paintTracks(view, moment) {
  const { n, theme, unit: u, words } = view;
  const context = n.tracks.getContext("2d");
  const { width: w, height: h } = n.tracks;
  context.clearRect(0, 0, w, h);
  const labelW = Math.round(84 * u);
  const barH = Math.round((h - 20 * u) / 2);
  view.trackBox = { x: labelW, w: w - labelW - 1 };
  const extent = Math.max(1, view.track?.finished.end_ns ?? 1);
  const xOf = (ns) => labelW + (ns / extent) * view.trackBox.w;
  context.font = `600 ${11.5 * u}px ${theme.font}`;
  LANES.forEach((cache, i) => {
    const y = i * (barH + 3 * u);
    context.fillStyle = theme.mut;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillText(words.t(`lanes.bar.${cache}`), 0, y + barH / 2 + 0.5);
    context.fillStyle = theme.track;
    context.beginPath();
    context.roundRect(labelW, y, view.trackBox.w, barH, 4 * u);
    context.fill();
    if (!moment) return;
    for (const block of blocksOf(view.race, cache, view.track)) {
      const from = xOf(block.from);
      const to = xOf(Math.min(block.to, Math.max(block.from, moment.t)));
      if (moment.t <= block.from) break;
      const gap = Math.min(1.5 * u, (xOf(block.to) - from) * 0.3);
      context.fillStyle = block.token === 0 ? theme.pre : moment.t < block.to ? theme.new : theme.dec;
      context.globalAlpha = moment.t < block.to ? 0.5 : 1;
      context.fillRect(from + gap / 2, y, Math.max(1, to - from - gap), barH);
    }
    context.globalAlpha = 1;
  });
  if (!moment || !view.track.finished.end_ns) return; // a race that was stopped at once has no time to show
  drawTimeAxis(context, view, extent, xOf, 2 * barH + 3 * u, w);
  context.fillStyle = theme.text;
  context.fillRect(xOf(moment.t) - u, 0, Math.max(2, 2 * u), 2 * barH + 4 * u);
}

function drawTimeAxis(context, view, extent, xOf, y, w) {
  const { theme, unit: u } = view;
  const text = axisWords(extent);
  context.font = `${10.5 * u}px ${theme.font}`;
  context.textBaseline = "top";
  context.textAlign = "center";
  context.fillStyle = theme.mut;
  for (const tick of axisTicks(extent, view.trackBox.w, 110 * u)) {
    const half = context.measureText(text(tick)).width / 2;
    context.fillText(text(tick), Math.min(w - half, Math.max(half, xOf(tick))), y + 4 * u);
  }
}

/** What both lanes have taken together up to each token: the gap as it opens. */
function paintRaceChart(view, moment) {
  const { n, theme, unit: u, race, words, quantity } = view;
  const context = n.chart.getContext("2d");
  const { width: w, height: h } = n.chart;
  context.clearRect(0, 0, w, h);
  put(n.chartTitle, words.t(`lanes.chart.${quantity}`));
  put(n.chartTag, words.t(`tag.${tagOf(view, quantity)}`));
  const spread = moment?.token && quantity === "ns" ? ratioSpread(race, moment.token) : null;
  put(n.chartNote, spread ? words.t("lanes.chart.spread", { low: ratioOf(spread.low), high: ratioOf(spread.high), n: spread.num }) : "");
  const count = moment ? Math.max(...LANES.map((cache) => race.costs[cache]?.length ?? 0)) : 0;
  if (!count) return;
  const lines = LANES.map((cache) => Array.from({ length: race.costs[cache]?.length ?? 0 }, (_, i) => valuesAt(race, quantity, { [cache]: i + 1 }, true)[cache]));
  const most = Math.max(0, ...lines.flat().map((value) => value ?? 0));
  const left = 56 * u;
  const bottom = 17 * u;
  const xOf = (token) => left + ((token - 1) / Math.max(1, count - 1)) * (w - left - 8 * u);
  const top = niceCeil(most * 1.02);
  const yOf = (value) => h - bottom - (value / top) * (h - bottom - 10 * u);
  context.font = `${10.5 * u}px ${theme.font}`;
  context.fillStyle = theme.mut;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.strokeStyle = theme.line;
  context.lineWidth = 1;
  for (const share of [0, 0.5, 1]) {
    const y = Math.round(yOf(top * share)) + 0.5;
    context.beginPath();
    context.moveTo(left, y);
    context.lineTo(w, y);
    context.stroke();
    if (share && most) context.fillText(shortOf(quantity, top * share), left - 5 * u, y);
  }
  context.textBaseline = "bottom";
  context.textAlign = "left";
  context.fillText(words.t("lanes.chart.axis", { n: countOf(count) }), left, h);
  if (!most) {
    context.textAlign = "center";
    context.fillText(words.t("lanes.none.energy"), (left + w) / 2, h / 2);
    return;
  }
  lines.forEach((values, i) => drawLine(context, view, values, moment.token, xOf, yOf, LANES[i] === "none" ? theme.pre : theme.new, LANES[i] === "none"));
  writeRatio(context, view, moment, xOf, yOf, w);
}

function drawLine(context, view, values, token, xOf, yOf, colour, dashed) {
  const u = view.unit;
  for (const [to, alpha] of [[values.length, 0.3], [token, 1]]) {
    context.beginPath();
    context.globalAlpha = alpha;
    context.strokeStyle = colour;
    context.lineWidth = 2 * u;
    context.setLineDash(dashed ? [6 * u, 3 * u] : []);
    values.slice(0, to).forEach((value, i) => (i ? context.lineTo(xOf(i + 1), yOf(value ?? 0)) : context.moveTo(xOf(1), yOf(value ?? 0))));
    context.stroke();
  }
  context.setLineDash([]);
  if (token) {
    context.fillStyle = colour;
    context.beginPath();
    context.arc(xOf(token), yOf(values[token - 1] ?? 0), 3.5 * u, 0, 7);
    context.fill();
  }
  context.globalAlpha = 1;
}

function writeRatio(context, view, moment, xOf, yOf, w) {
  const { race, quantity, theme, unit: u } = view;
  if (!moment.token) return;
  const found = valuesAt(race, quantity, { none: moment.token, full: moment.token }, true);
  if (found.ratio === null) return;
  const x = xOf(moment.token);
  context.strokeStyle = theme.mut;
  context.lineWidth = Math.max(1, u);
  context.beginPath();
  context.moveTo(x, yOf(found.none));
  context.lineTo(x, yOf(found.full));
  context.stroke();
  context.font = `650 ${15 * u}px ${theme.font}`;
  context.fillStyle = theme.text;
  context.textBaseline = "middle";
  const text = `${ratioOf(found.ratio)} ×`;
  const room = context.measureText(text).width + 10 * u;
  context.textAlign = x + room > w ? "right" : "left";
  context.fillText(text, x + (x + room > w ? -8 : 8) * u, Math.max(14 * u, (yOf(found.none) + yOf(found.full)) / 2));
}

// ---- numbers and words ---------------------------------------------------------------------------

/** A value of a quantity as [number, unit]. */
function partsOf(name, value) {
  if (value === null) return ["–", ""];
  if (name === "rows") return [countOf(value), ""];
  if (name === "flops") return flopParts(value);
  if (name === "moved_bytes") return sizeParts(value);
  if (name === "ns") return timeParts(value);
  return [value >= 100 ? countOf(value) : value.toPrecision(3), "J"];
}

function shortOf(name, value) {
  const [number, unit] = partsOf(name, value);
  return `${number.includes(".") ? String(Number(number)) : number} ${unit}`.trim();
}

/** What was measured is read back, in a race that was made earlier. */
function tagOf(view, name) {
  const tag = RACE_TAGS[name];
  return tag === "measured" && view.data.recorded ? "recorded" : tag;
}

function writeTable(view, moment) {
  const { n, race, words } = view;
  const { t } = words;
  const token = moment?.token ?? 0;
  put(n.heads.token, t(token ? "lanes.table.token" : "lanes.table.token_none", { n: token }));
  put(n.heads.soFar, t(token ? "lanes.table.so_far" : "lanes.table.so_far_none", { n: token }));
  for (const name of QUANTITIES) {
    n.rows[name].row.setAttribute("aria-selected", String(name === view.quantity));
    put(n.rows[name].tag, t(`tag.${tagOf(view, name)}`));
    for (const span of ["token", "soFar"]) {
      const found = token ? valuesAt(race, name, { none: token, full: token }, span === "soFar") : { none: null, full: null, ratio: null };
      for (const part of [...LANES, "ratio"]) {
        const cell = n.cells[`${name}.${span}.${part}`];
        const value = found[part];
        put(cell, part === "ratio" ? (value === null ? "–" : `${ratioOf(value)} ×`) : partsOf(name, value).join("\u00a0").trim());
        cell.dataset.value = value ?? "";
      }
    }
  }
  if (view.openCell && n.pop.matches?.(":popover-open")) fillPop(view, view.openCell);
}

function writeClocks(view, moment) {
  for (const cache of LANES) {
    const run = view.race?.shown[cache];
    put(view.n.lanes[cache].clock, moment && run ? timeOf(laneTime(view.race, cache, view.track, moment.t)) : "");
  }
}

function sayOf(view, moment) {
  const { race, words, data } = view;
  const { t } = words;
  if (view.state === "broken") return { text: t("lanes.say.broken"), tone: "bad" };
  if (view.state === "gone") return { text: t("lanes.say.gone"), tone: "bad" };
  if (!race) return { text: t("lanes.say.empty"), tone: "quiet" };
  if (!raceOver(race)) return { text: race.status?.text ?? t("lanes.say.waiting"), tone: "busy" };
  const short = [race.error, race.finished?.finish_reason === "done" ? null : race.status?.text, ...(data.missing ?? [])].filter(Boolean).join(" ");
  if (!moment || LANES.some((cache) => !race.shown[cache])) return { text: short || t("lanes.say.never"), tone: race.error ? "bad" : "quiet" };
  const text = storyOf(view, moment);
  const from = race.logits?.first_difference ?? null;
  const other = from !== null && moment.token > from ? ` ${t("lanes.say.differs", { n: from + 1 })}` : "";
  const bad = other || race.error;
  return { text: `${text}${other}${short ? ` ${short}` : ""}`, tone: bad ? "bad" : "plain" };
}

function storyOf(view, moment) {
  const { race, words, mode, track } = view;
  const { t } = words;
  const { none, full } = moment.at;
  const prompt = countOf(promptTokens(race.shown.full));
  if (!none.tokens && !full.tokens) return t("lanes.say.reading", { prompt });
  const token = moment.token;
  if (mode === "clock" && !(none.over && full.over)) {
    const params = { time: timeOf(moment.t), none: none.tokens, full: full.tokens, done: secondsOf(totalNs(race.shown.full)) };
    return t(full.over ? "lanes.say.clock_done" : "lanes.say.clock", params);
  }
  if (!token) return t("lanes.say.reading", { prompt });
  const last = track.steps.length && none.over && full.over;
  const found = valuesAt(race, "ns", { none: token, full: token }, last || token === 1);
  const rows = valuesAt(race, "rows", { none: token, full: token }, false);
  const params = { n: token, a: secondsOf(found.none), b: secondsOf(found.full), ratio: ratioOf(found.ratio), again: countOf(rows.none), prompt };
  if (last) return t("lanes.say.end", params);
  return t(token === 1 ? "lanes.say.first" : "lanes.say.token", params);
}

function writeSay(view, moment) {
  const { n, race, words } = view;
  const { t } = words;
  const say = sayOf(view, moment);
  put(n.say, say.text);
  n.say.dataset.tone = say.tone;
  if (say.tone !== view.spoken) {
    view.spoken = say.tone;
    put(n.live, say.text);
  }
  const waiting = Boolean(race) && !raceOver(race);
  n.empty.hidden = Boolean(moment && LANES.some((cache) => race.shown[cache]));
  const timing = waiting && race.status?.state === "running";
  put(n.empty.children[0], t(timing ? "lanes.empty.timing" : waiting ? "lanes.empty.soon" : "lanes.empty.head"));
  put(n.empty.children[1], waiting ? t("lanes.empty.why") : t("lanes.empty.body"));
  const share = waiting ? race.status?.fraction ?? 0 : 0;
  n.empty.children[2].hidden = !waiting;
  n.empty.children[2].firstChild.style.width = `${Math.round(share * 100)}%`;
  const run = race?.shown.full ?? race?.shown.none;
  if (!run) {
    put(n.info, "");
    return;
  }
  const { hardware, settings, started_at: startedAt, spec } = run.started;
  const repeats = Math.max(...LANES.map((cache) => race.runs[cache].length));
  const state = t(view.state === "retry" ? "info.retry" : view.data.recorded ? "info.recorded" : "info.over");
  put(n.info, `${state} · ${dateOf(startedAt, words.language)} · ${machineOf(hardware)} · ${spec.name} · ${settings.dtype} · ${t(repeats > 1 ? "lanes.info.repeats" : "lanes.info.once", { n: repeats })}`);
  n.info.title = n.info.textContent;
  n.info.dataset.state = view.state === "retry" ? "retry" : "over";
}

function writeTransport(view, moment) {
  const { n, player, words, track } = view;
  const on = Boolean(moment && track.steps.length);
  const atEnd = on && player.t >= track.finished.end_ns;
  for (const node of [n.start, n.back, n.play, n.next, n.end, n.slider]) node.disabled = !on;
  setIcon(n.play, player.playing ? "pause" : atEnd ? "replay" : "play");
  const key = player.playing ? "go.pause" : atEnd ? "go.replay" : "go.play";
  n.play.title = words.t(key);
  n.play.setAttribute("aria-label", words.t(key));
  n.slider.classList.toggle("off", !on);
  put(n.where, on ? words.t("lanes.where", { n: moment.token, of: numTokens(view.race) }) : "");
  if (on && !view.dragging) n.slider.value = String(Math.round((moment.t / Math.max(1, track.finished.end_ns)) * 1000));
  if (on) n.slider.setAttribute("aria-valuetext", words.t("lanes.slider", { time: timeOf(moment.t), n: moment.token }));
  for (const [node, mode] of [[n.clock, "clock"], [n.token, "token"]]) node.setAttribute("aria-pressed", String(view.mode === mode));
}

/** All texts that stay: once a language. */
function label(view) {
  const { n, words } = view;
  const { t } = words;
  n.root.lang = words.language === "zh" ? "zh-Hans" : words.language;
  put(n.clock, t("lanes.mode.clock"));
  put(n.token, t("lanes.mode.token"));
  for (const [node, key] of [[n.start, "go.start"], [n.back, "lanes.go.back"], [n.next, "lanes.go.next"], [n.end, "lanes.go.end"], [n.project, "go.project"], [n.speed, "go.speed"]]) {
    node.title = t(key);
    node.setAttribute("aria-label", t(key));
  }
  n.slider.setAttribute("aria-label", t("go.slider"));
  n.tracks.setAttribute("aria-label", t("lanes.aria.tracks"));
  n.chart.setAttribute("aria-label", t("lanes.term.chart"));
  n.subheads.forEach((node, i) => put(node, [t("lanes.bar.none"), t("lanes.bar.full"), t("lanes.table.ratio")][i % 3]));
  for (const name of QUANTITIES) {
    put(n.rows[name].label, t(`lanes.q.${name}`));
    n.rows[name].label.title = t("lanes.table.choose");
  }
}

// ---- pop-overs, pointer and keys -----------------------------------------------------------------

function fillPop(view, cell) {
  const { n, words, race } = view;
  const { t } = words;
  const [name, span, part] = cell.split(".");
  const token = Number(n.root.dataset.token);
  const node = (tag, className, text) => {
    const made = document.createElement(tag);
    made.className = className;
    made.textContent = text;
    return made;
  };
  const head = node("h4", "", t(`lanes.q.${name}`));
  head.append(node("span", "tag", t(`tag.${tagOf(view, name)}`)));
  const found = token ? valuesAt(race, name, { none: token, full: token }, span === "soFar") : null;
  const exact = (value) => (value === null || value === undefined ? "–" : name === "energy_j" ? `${value.toPrecision(4)} J` : `${countOf(value)}${name === "ns" ? " ns" : name === "moved_bytes" ? " B" : ""}`);
  const params = { n: token, none: exact(found?.none), full: exact(found?.full), ratio: found?.ratio === null || !found ? "–" : found.ratio.toPrecision(4), prompt: race?.shown.full ? promptTokens(race.shown.full) : 0 };
  const lines = [t(span === "soFar" ? "lanes.pop.so_far" : "lanes.pop.token", params), t("lanes.pop.ratio", params)];
  const spread = name === "ns" && span === "soFar" && token ? ratioSpread(race, token) : null;
  if (spread) lines.push(t("lanes.pop.spread", { low: spread.low.toPrecision(3), high: spread.high.toPrecision(3), n: spread.num }));
  const parts = [head, node("p", "", t(`lanes.q.${name}.meaning`)), node("h5", "", t("pop.formula")), node("pre", "", t(`lanes.q.${name}.formula`)),
    node("h5", "", t("lanes.pop.here")), node("pre", "", lines.join("\n")), node("h5", "", t("pop.source")), node("p", "", `${t(`lanes.q.${name}.source`)} ${t(`tag.${tagOf(view, name)}.why`)}`)];
  const text = parts.map((one) => one.textContent).join("|") + part;
  if (n.pop.dataset.text === text) return;
  n.pop.dataset.text = text;
  n.pop.replaceChildren(...parts);
}

function openPop(view, cell) {
  const { n } = view;
  const again = view.openCell === cell && n.pop.matches?.(":popover-open");
  hideTip(view);
  float(n.pop, false);
  if (again) return;
  view.openCell = cell;
  fillPop(view, cell);
  float(n.pop, true);
  place(n.pop, n.cells[cell].getBoundingClientRect());
}

function showTip(view, text, box) {
  const { tip } = view.n;
  const node = document.createElement("b");
  node.textContent = text;
  tip.replaceChildren(node);
  tip.classList.add("wide");
  float(tip, true);
  place(tip, box);
}

function hideTip(view) {
  float(view.n.tip, false);
}

function wireRace(view) {
  const { n } = view;
  const go = (act) => () => {
    if (view.track) act(view.player, view.track);
    invalidate(view, "time");
  };
  n.start.addEventListener("click", go((p, r) => seek(p, r, 0)));
  n.end.addEventListener("click", go((p, r) => seek(p, r, r.finished.end_ns)));
  n.back.addEventListener("click", go((p, r) => stepBy(p, r, -1)));
  n.next.addEventListener("click", go((p, r) => stepBy(p, r, 1)));
  n.play.addEventListener("click", () => toggle(view));
  n.project.addEventListener("click", () => project(view));
  for (const speed of SPEEDS) n.speed.add(new Option(`${speed}×`, String(speed), speed === 1, speed === 1));
  n.speed.addEventListener("change", () => {
    view.player.speed = Number(n.speed.value);
  });
  n.clock.addEventListener("click", () => setMode(view, "clock", true));
  n.token.addEventListener("click", () => setMode(view, "token", true));
  wireScrub(view);
  wireTips(view);
  view.onKey = (event) => onKey(view, event);
  document.addEventListener("keydown", view.onKey);
}

function wireScrub(view) {
  const { n } = view;
  const to = (share) => {
    if (view.track) seek(view.player, view.track, share * view.track.finished.end_ns);
    invalidate(view, "time");
  };
  n.slider.addEventListener("input", () => {
    view.dragging = true;
    to(Number(n.slider.value) / 1000);
  });
  n.slider.addEventListener("change", () => { view.dragging = false; });
  const share = (event) => {
    const box = n.tracks.getBoundingClientRect();
    const { x, w } = view.trackBox;
    return Math.max(0, Math.min(1, ((event.clientX - box.left) * view.dpr - x) / w));
  };
  n.tracks.addEventListener("pointerdown", (event) => {
    n.tracks.setPointerCapture(event.pointerId);
    to(share(event));
  });
  n.tracks.addEventListener("pointermove", (event) => {
    if (n.tracks.hasPointerCapture(event.pointerId)) to(share(event));
  });
}

function wireTips(view) {
  const { root } = view.n;
  const show = (event) => {
    const node = event.target.closest?.(".term");
    const key = node?.dataset.term.replace(/^lanes\./, "lanes.term.");
    if (node && view.words.has(key)) showTip(view, view.words.t(key), node.getBoundingClientRect());
  };
  for (const name of ["pointerover", "focusin"]) root.addEventListener(name, show);
  for (const name of ["pointerout", "focusout"]) root.addEventListener(name, (event) => event.target.closest?.(".term") && hideTip(view));
  root.addEventListener("click", (event) => {
    const cell = event.target.closest?.("[data-cell]");
    const row = event.target.closest?.("[data-quantity]");
    if (cell) openPop(view, cell.dataset.cell);
    else if (row) {
      view.quantity = row.dataset.quantity;
      invalidate(view, "words");
    }
  });
}

function toggle(view) {
  const { player, track } = view;
  if (!track) return;
  if (player.playing) pause(player, track);
  else play(player, track);
  invalidate(view, "time");
}

function project(view) {
  const on = !view.n.root.classList.contains("projection");
  view.n.root.classList.toggle("projection", on);
  document.documentElement.classList.toggle("st-projection", on);
  invalidate(view, "size");
}

/** Keys of the whole page, unless somebody is typing or moving another control. */
function onKey(view, event) {
  const key = keyFor(event, view.n);
  if (key === null) return;
  const { player, track } = view;
  if (key === "f" || key === "F") project(view);
  else if (!track) return;
  else if (key === " ") toggle(view);
  else if (key === "ArrowRight") stepBy(player, track, 1);
  else if (key === "ArrowLeft") {
    // between two tokens: first back to the one that was reached
    const k = stepsAt(track, player.t);
    if (k && player.t > track.steps[k - 1].end_ns) seek(player, track, track.steps[k - 1].end_ns);
    else stepBy(player, track, -1);
  } else if (key === "Home") seek(player, track, 0);
  else if (key === "End") seek(player, track, track.finished.end_ns);
  else return;
  hideTip(view); // what it told stands elsewhere now, or is not there yet
  event.preventDefault();
  invalidate(view, "time");
}

const render = mounting(views, newView, update, destroy);
export default render;
