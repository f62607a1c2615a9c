// The live view: one component that draws everything that follows a run, as a pure function of a prefix of its events.
//
// It takes frames from a feed (or from the page), keeps the store of run.mjs, lets player.mjs say which prefix is on
// screen, and draws only what has changed; nothing runs while nothing happens.
import { chartAt, chartLayout, drawChart } from "./chart.mjs";
import { keyFor, skeleton } from "./dom.mjs";
import { float, mounting, place, put, setIcon } from "./elements.mjs";
import { openFeed } from "./feed.mjs";
import { figuresOf } from "./figures.mjs";
import { clampView, columnAt, columnLayout, layerAt, niceCeil, rowBands, rowTop, rowsGone, rowsUnder, timeScale, zoomView } from "./layout.mjs";
import { newPyramid, setRows, wordOf } from "./matrix.mjs";
import { SPEEDS, advance, cursorOf, newPlayer, pause, play, runEnd, seek, stepBy, stepEnd, stepsAt, toEnd, tokenBy } from "./player.mjs";
import { decodeBlocks, drawRibbon, firstDecode } from "./ribbon.mjs";
import { copiedAt, elementSize, factsAt, isOver, keepsAllRows, magnitudeOf, newRun, piecesAt, reservedRowsOf, summaryAt, takeFrame, textOf } from "./run.mjs";
import { drawStage, labelOf, stageLayout } from "./stage.mjs";
import { probe, themeOf } from "./theme.mjs";
import { axisWords, countOf, dateOf, kindsOf, layerWords, machineOf, promptTokens, rowlessWords, secondsOf, sentenceOf, sizeOf, summaryText, timeOf, timeParts, tokensRead, turnsText, wordsOf } from "./words.mjs";

const views = new WeakMap();
const mounted = new Set(); // views on the page now: the last one to leave takes the projector's class along
const WINDOW_TOKENS = 110; // token marks kept in the text card; older ones are plain text
const SIDE_MS = 80; // figures, ribbon and chart follow a fast run no faster than this; at rest they show what the matrix shows
const TEXT_MS = [28, 42]; // nor does the text, in a frame of its own and in one of those: no frame of a fast run bears all
const SWEEP_MS = [380, 1100]; // a read is drawn no faster and no slower than this
const BASE_PX = 13;
const LOST_MS = 4000; // without a connection this long, the sentence says so

/** Make the view in `parent`. */
function newView(parent) {
  const n = skeleton();
  parent.append(n.root);
  const view = {
    n, parent, run: null, runId: undefined, feed: null, player: newPlayer(), words: wordsOf({}, "en"), theme: null,
    tensor: "k", b: 0, free: null, pyramid: null, columns: null, box: null, bands: [], dirty: {}, frame: 0, timer: 0,
    last: { k: -1 }, anim: {}, sweepUntil: 0, anchor: null, hover: null, tokens: { start: 0, spans: [] }, extent: 1e9,
    reduced: matchMedia("(prefers-reduced-motion: reduce)"), component: null, data: {}, sawLive: false, spokenAt: 0,
  };
  mounted.add(view);
  n.root.classList.toggle("projection", document.documentElement.classList.contains("st-projection"));
  wire(view);
  view.resize = new ResizeObserver(() => invalidate(view, "size"));
  view.resize.observe(n.root);
  for (const stage of [n.stage, n.ribbon.parentElement, n.chartStage]) view.resize.observe(stage);
  return view;
}

function destroy(view) {
  view.feed?.close();
  view.resize.disconnect();
  cancelAnimationFrame(view.frame);
  clearTimeout(view.timer);
  clearTimeout(view.lostTimer);
  document.removeEventListener("keydown", view.onKey);
  view.n.root.remove();
  views.delete(view.parent);
  mounted.delete(view);
  if (!mounted.size) document.documentElement.classList.remove("st-projection");
}

// ---- what comes from Python ---------------------------------------------------------------------

function update(view, component) {
  view.component = component;
  const data = component.data ?? {};
  const language = data.language ?? "en";
  const strangeLanguage = view.words.language !== language || !view.data.strings;
  view.data = data;
  if (data.strings && strangeLanguage) {
    view.words = wordsOf(data.strings, language);
    label(view);
  }
  readTheme(view);
  if (data.projection !== undefined && data.projection !== view.projectionAsked) {
    view.projectionAsked = data.projection;
    project(view, Boolean(data.projection), false);
  }
  const runId = data.run_id ?? null;
  if (runId !== view.runId) open(view, runId);
  else if (runId && data.transport !== "poll" && view.state !== "broken" && (strangeLanguage || !view.feed)) {
    connect(view); // for the words of a status or an error; or the page is back after the connection was lost
  }
  for (const text of data.frames ?? []) take(view, text);
  invalidate(view, "all");
}

/** Start with a run, or with none. */
function open(view, runId) {
  view.feed?.close();
  view.feed = null;
  view.runId = runId;
  view.run = runId ? newRun() : null;
  view.player = Object.assign(newPlayer(), { speed: view.player.speed });
  Object.assign(view, { pyramid: null, columns: null, free: null, b: 0, sawLive: false, opened: false, told: false, anchor: null, extent: 1e9, state: null, lost: false });
  clearTimeout(view.lostTimer);
  view.lostTimer = 0;
  view.last = { k: -1 };
  view.anim = {};
  view.sweepUntil = 0;
  clearText(view);
  if (runId && view.data.transport !== "poll") connect(view);
}

function connect(view) {
  view.feed?.close();
  const runId = view.runId;
  view.feed = openFeed({
    runId,
    language: view.words.language,
    next: () => view.run.numEvents,
    handle: (text) => take(view, text),
    onState: (state) => connection(view, state),
    onLost: () => {
      view.feed = null;
      view.component.setStateValue("transport", "poll");
    },
  });
}

/** What the feed says of the connection: open, retry or gone. After a while without one the sentence says it too. */
function connection(view, state) {
  view.state = state;
  if (state !== "retry") {
    clearTimeout(view.lostTimer);
    view.lostTimer = 0;
    view.lost = false;
  } else if (!view.lostTimer) {
    view.lostTimer = setTimeout(() => {
      view.lost = true;
      invalidate(view, "words");
    }, LOST_MS);
  }
  invalidate(view, "words");
}

/** Take a frame, whatever is in it: what cannot be shown is said, and never thrown into the page. */
function take(view, text) {
  if (!view.run || view.state === "broken") return { gap: false, over: true };
  try {
    return takeText(view, text);
  } catch (error) {
    giveUp(view, error);
    return { gap: false, over: true };
  }
}

/** This run's data cannot be shown: say so, and wait for another run. */
function giveUp(view, error) {
  console.warn("second token: this run's data cannot be shown", error);
  view.feed?.close();
  view.run = newRun();
  view.player = Object.assign(newPlayer(), { speed: view.player.speed });
  Object.assign(view, { pyramid: null, columns: null, free: null, b: 0, anchor: null, facts: null, sum: null, figures: {}, hover: null, pointer: null });
  view.last = { k: -1 };
  view.anim = {};
  clearText(view);
  connection(view, "broken");
}

/** Take a frame. Returns {gap, over}. */
function takeText(view, text) {
  const { run } = view;
  const before = { over: isOver(run), status: JSON.stringify([run.status, run.error]) };
  const { gap, added } = takeFrame(run, text);
  if (view.state === "retry" && view.data.transport === "poll") connection(view, "open"); // the page has taken over
  if (JSON.stringify([run.status, run.error]) !== before.status) invalidate(view, "words");
  if (gap && view.data.transport === "poll") view.component.setStateValue("resume", run.numEvents);
  if (gap) return { gap, over: false };
  if (!isOver(run)) view.sawLive = true;
  if (run.numEvents && (added || !view.anchor)) {
    view.anchor = { wall: performance.now(), ns: runEnd(run) };
  }
  if (!view.opened && (run.started || isOver(run))) first(view);
  if (isOver(run) && !before.over && (view.sawLive || view.data.over === false) && !view.told) {
    view.told = true;
    view.component.setTriggerValue("finished", view.runId);
  }
  if (globalThis.kvProbe) globalThis.kvProbe.push(["frame", run.numEvents, performance.timeOrigin + performance.now()]);
  invalidate(view, "run");
  return { gap: false, over: isOver(run) };
}

/** The first frame of a run has come: a finished one plays from its start when the page asks for it. */
function first(view) {
  view.opened = true;
  const { run } = view;
  if (isOver(run) && view.data.autoplay && run.steps.length) {
    seek(view.player, run, 0);
    play(view.player, run);
  }
}

// ---- when to draw -------------------------------------------------------------------------------

function invalidate(view, what) {
  view.dirty[what] = true;
  if (!view.frame) view.frame = requestAnimationFrame((now) => tick(view, now));
}

function tick(view, now) {
  view.frame = 0;
  clearTimeout(view.timer);
  if (!view.n.root.isConnected) return;
  const ms = view.lastTick ? Math.min(250, now - view.lastTick) : 16;
  view.lastTick = now;
  const moved = view.run ? advance(view.player, view.run, ms) : false;
  const dirty = view.dirty;
  view.dirty = {};
  const late = drawSafely(view, now, dirty, moved);
  const animating = Object.values(view.anim).some((a) => a && now < a.t0 + a.ms);
  if (view.player.playing && !view.player.live) invalidate(view, "time");
  else if (animating) invalidate(view, "anim");
  else {
    view.lastTick = 0;
    if (busy(view) || late) view.timer = setTimeout(() => invalidate(view, "time"), late ? SIDE_MS : 70);
  }
  if (globalThis.kvProbe) {
    const shown = view.run?.numEvents ?? 0;
    requestAnimationFrame((at) => globalThis.kvProbe.push(["drawn", shown, performance.timeOrigin + at]));
  }
}

/** Whether time goes on by itself: a live run that is being followed and has not ended. */
function busy(view) {
  return Boolean(view.run?.started) && view.player.live && !isOver(view.run) && view.state !== "gone" && !view.lost;
}

/** The moment on screen, in ns since the run was accepted. */
function present(view) {
  const { run, player } = view;
  if (!run?.started) return 0;
  if (!player.live) return player.t;
  if (!busy(view) || !view.anchor) return runEnd(run);
  return view.anchor.ns + (performance.now() - view.anchor.wall) * 1e6;
}

/** A run that passes for one may still hold what cannot be drawn. */
function drawSafely(view, now, dirty, moved) {
  try {
    return draw(view, now, dirty, moved);
  } catch (error) {
    if (view.state === "broken" || !view.run) throw error; // not the run's fault
    giveUp(view, error);
    return false;
  }
}

function draw(view, now, dirty, moved) {
  const { n, run } = view;
  if (dirty.all || dirty.size || !view.box) measure(view);
  const cursor = run ? cursorOf(view.player, run) : { k: 0, ended: false };
  const t = present(view);
  const k = cursor.k;
  const fresh = dirty.all || dirty.words || k !== view.last.k || cursor.ended !== view.last.ended
    || view.b !== view.last.b || (run?.numEvents ?? 0) !== view.last.events;
  if (run?.started) {
    if (!view.columns) layColumns(view);
    fillPyramid(view);
  }
  if (fresh) {
    if (k !== view.last.k) animate(view, now, view.last.k, k);
    view.facts = run?.started ? factsAt(run, k) : null;
    view.sum = run?.started ? summaryAt(run, k) : null;
  }
  // Canvases first: to set a font on one after the page's text has changed would work out all styles twice.
  const stage = fresh || dirty.size || dirty.view || dirty.hover || dirty.anim || view.animating;
  view.animating = Object.values(view.anim).some((a) => a && now < a.t0 + a.ms);
  if (stage) paintStage(view, cursor, now);
  view.sideDue ||= fresh;
  const rushed = (!view.player.live && !view.player.playing) || Math.abs(k - view.last.k) > 3 || cursor.ended;
  const side = rushed || now - (view.sideAt ?? 0) >= SIDE_MS - 4;
  view.textDue ||= fresh;
  const textMs = TEXT_MS[Number(side && view.sideDue)];
  if (view.textDue && started(view) && (rushed || now - (view.textAt ?? 0) >= textMs)) {
    writeText(view, piecesAt(run, view.b, k));
    view.textDue = false;
    view.textAt = now;
  }
  if (view.pointer && (dirty.view || (fresh && moved))) hoverMatrix(view, ...view.pointer); // other rows are under it now
  if (moved || (side && (view.sideDue || dirty.time || dirty.size || dirty.hover || dirty.run))) paintRibbon(view, cursor, t);
  if (side && (view.sideDue || moved || dirty.time || dirty.size || dirty.hover)) {
    if (view.sideDue || dirty.size || dirty.hover) paintChart(view, cursor);
    if (view.sideDue) writeWords(view, cursor, now);
    if (started(view) && (view.sideDue || dirty.size)) writePhases(view, cursor);
    writeTransport(view, cursor, t);
    view.sideDue = false;
    view.sideAt = now;
  }
  view.last = { k, ended: cursor.ended, b: view.b, events: run?.numEvents ?? 0 };
  n.root.dataset.run = view.runId ?? "";
  n.root.dataset.k = k;
  n.root.dataset.rows = view.facts?.rows[view.b] ?? 0;
  n.root.dataset.events = run?.numEvents ?? 0;
  n.root.dataset.ended = cursor.ended ? "1" : "0";
  return view.sideDue || (view.textDue && started(view));
}

function started(view) {
  return Boolean(view.run?.started);
}

// ---- motion -------------------------------------------------------------------------------------

/** Start what explains the change from k0 to k1 steps. Motion is a picture only: the numbers are there at once. */
function animate(view, now, k0, k1) {
  const { run, player } = view;
  view.anim = {};
  if (view.reduced.matches || !run?.started || k1 <= k0 || k0 < 0) return;
  const step = run.steps[k1 - 1];
  const slow = view.stepping;
  view.stepping = false;
  if (k1 - k0 > 3 && !slow) return;
  if (step.phase === "prefill") {
    const from = step.appended[view.b][0];
    view.anim.reveal = { t0: now, ms: 320, from };
    if (run.started.settings.cache === "none") view.anim.flash = { t0: now, ms: 600 };
    return;
  }
  const gap = k1 > 1 ? (stepEnd(run, k1 - 1) - stepEnd(run, k1 - 2)) / 1e6 : 100;
  const shown = slow ? 2000 : gap / (player.live ? 1 : player.speed);
  if (run.started.settings.cache === "none") view.anim.flash = { t0: now, ms: Math.max(300, Math.min(900, shown * 0.9)) };
  else {
    const slide = slow ? 320 : Math.min(170, shown * 0.7);
    if (slide >= 34) view.anim.slide = { t0: now, ms: slide };
    if (slow) view.anim.pop = { t0: now, ms: 1150, delay: 900 };
    if (slow || player.live || player.speed <= 2) sweep(view, now, shown, slow ? 260 : 0);
  }
}

function progress(anim, now) {
  if (!anim) return 1;
  const share = (now - anim.t0 - (anim.delay ?? 0)) / (anim.ms - (anim.delay ?? 0));
  const p = Math.max(0, Math.min(1, share));
  return 1 - (1 - p) ** 3;
}

/** The read of a step: a line of light that passes every row. It is never drawn faster than the eye can follow (and
 * never flickers): where steps are faster, one read in several is drawn. */
function sweep(view, now, shown, delay) {
  if (now < view.sweepUntil && !delay) return;
  const { n, box } = view;
  const rows = view.run.steps[view.player.live ? view.run.steps.length - 1 : cursorOf(view.player, view.run).k - 1]?.context_len[view.b] ?? 0;
  if (!rows || !box) return;
  const ms = Math.max(SWEEP_MS[0], Math.min(SWEEP_MS[1], shown * 0.85));
  view.sweepUntil = now + delay + ms + (shown < 60 ? 700 : 120);
  const scale = box.dpr;
  const bands = view.bands;
  const end = bands.length ? Math.min(box.height, bands[bands.length - 1].y + bands[bands.length - 1].h) : box.height;
  const top = box.top / scale;
  const bottom = (box.top + end) / scale;
  put(n.sweepLabel, view.words.t(keepsAllRows(view.run.started) ? "read.label" : "read.kept", { n: countOf(rows) }));
  const line = n.sweep.lastElementChild;
  line.style.left = `${(box.x0 - 3) / scale}px`;
  line.style.width = `${(view.columns.used + 6) / scale}px`;
  n.sweepLabel.style.width = `${(box.labelW - 2) / scale}px`;
  n.sweep.getAnimations().forEach((animation) => animation.cancel());
  n.sweep.animate(
    [
      { transform: `translateY(${top}px)`, opacity: 0 },
      { transform: `translateY(${top + (bottom - top) * 0.06}px)`, opacity: 1, offset: 0.06 },
      { transform: `translateY(${bottom}px)`, opacity: 1, offset: 0.97 },
      { transform: `translateY(${bottom}px)`, opacity: 0 },
    ],
    { duration: ms, delay, easing: "linear" },
  );
}

// ---- sizes, colours -----------------------------------------------------------------------------

function measure(view) {
  const { n } = view;
  const dpr = Math.min(3, window.devicePixelRatio || 1);
  const unit = (parseFloat(getComputedStyle(n.root).fontSize) / BASE_PX) * dpr;
  view.unit = unit;
  view.dpr = dpr;
  for (const canvas of [n.matrix, n.ribbon, n.chart]) {
    const w = Math.max(1, Math.round(canvas.parentElement.clientWidth * dpr));
    const h = Math.max(1, Math.round(canvas.parentElement.clientHeight * dpr));
    if (canvas.width !== w) canvas.width = w;
    if (canvas.height !== h) canvas.height = h;
  }
  const box = stageLayout(n.matrix.width, n.matrix.height, unit);
  box.dpr = dpr;
  const resized = !view.box || box.w !== view.box.w || box.u !== view.box.u;
  if (resized) {
    view.columns = null;
    view.pyramid = null;
  } else Object.assign(box, { x0: view.box.x0, labelW: view.box.labelW, width: view.box.width });
  view.box = box;
}

function layColumns(view) {
  const { box } = view;
  view.columns = columnLayout(view.run.started.spec.layers.map((layer) => layer.num_kv_heads), box.width);
  const spare = box.width - view.columns.used; // columns are whole pixels: what is left goes to the labels
  box.x0 += spare;
  box.labelW += spare;
  box.width -= spare;
  view.pyramid = null;
}

/** Bring the pyramid up to the samples that have come. */
function fillPyramid(view) {
  const { run, tensor, b } = view;
  const key = `${tensor}${b}`;
  if (!view.pyramid || view.pyramid.key !== key) {
    view.pyramid = newPyramid(view.columns, view.theme[tensor === "k" ? "rampK" : "rampV"], wordOf(view.theme.cardRgb));
    view.pyramid.key = key;
  }
  const store = run.sequences[b];
  if (store.sampled > view.pyramid.rows) setRows(view.pyramid, store[tensor], view.pyramid.rows, store.sampled);
}

function readTheme(view) {
  const theme = themeOf(view.n.root);
  if (theme.stamp !== view.theme?.stamp) view.pyramid = null;
  view.theme = theme;
}

// ---- the three canvases -------------------------------------------------------------------------

function paintStage(view, cursor, now) {
  const { n, run, box, words } = view;
  const context = n.matrix.getContext("2d", { alpha: false });
  n.empty.hidden = started(view) && cursor.k > 0;
  put(n.empty.lastChild, words.t(started(view) ? "empty.start" : "empty.body"));
  if (!started(view)) {
    n.follow.hidden = true;
    paintEmptyStage(view, context);
    return;
  }
  const { facts, b } = view;
  const none = run.started.settings.cache === "none";
  const step = facts.step;
  const rows = none ? (step ? step.context_len[b] : 0) : facts.rows[b];
  view.free = clampView(view.free, rows, box.height, box.rowPx);
  view.bands = rowBands(rows, box.height, box.rowPx, pinned(view, rows));
  view.rowsShown = rows;
  n.follow.hidden = !view.free;
  const decode = step?.phase === "decode";
  const newRows = decode && !none ? step.appended[b][1] - step.appended[b][0] : 0;
  drawStage(context, {
    box, columns: view.columns, pyramid: none ? null : view.pyramid, theme: view.theme, bands: view.bands, rows: none ? 0 : rows, newRows,
    promptLen: run.started.prompt_texts[b].length,
    layers: run.started.spec.layers,
    reservedRows: none ? 0 : reservedRowsOf(run, facts.reservedBytes) ?? 0,
    slide: progress(view.anim.slide, now), pop: progress(view.anim.pop, now),
    reveal: progress(view.anim.reveal, now), revealFrom: view.anim.reveal?.from ?? 0,
    recompute: none && step ? { flash: 1 - progress(view.anim.flash, now), note: words.t("recomputed", { n: countOf(step.num_new_tokens[b]) }) } : null,
    ghost: ghostOf(view, cursor),
    hoverLayer: view.hover?.layer ?? -1,
    textOf: (row) => textOf(run, b, row),
    words: {
      layer: words.t("layer"),
      reserved: words.t("reserved"),
      rowless: (layer) => rowlessWords(layer, words),
      position: (row) => countOf(row),
      middle: (count, per) => [words.t(none ? "middle.positions" : "middle.rows", { n: countOf(count) }), ...(per > 1 && !none ? [words.t("middle.pooled", { n: per })] : [])],
    },
  });
}

/** A free view that showed the last row goes on showing it. */
function pinned(view, rows) {
  const { free, box } = view;
  if (free && view.pinnedToEnd && rows > (view.rowsShown ?? 0)) {
    view.free = clampView({ ...free, top: rows }, rows, box.height, box.rowPx);
  }
  view.pinnedToEnd = Boolean(view.free) && view.free.top + box.height / view.free.rowH >= rows - 0.5;
  return view.free;
}

function ghostOf(view, cursor) {
  const { run, b, words, facts } = view;
  const count = piecesAt(run, b, cursor.k);
  if (!count) return null;
  const piece = run.pieces[b][count - 1];
  const token = labelOf(piece.text);
  const ended = cursor.ended && run.finished;
  const reason = ended ? run.finished.sequence_reasons[b] ?? run.finished.finish_reason : "stop";
  if (ended || piece.step < cursor.k - 1) {
    return { token, ended: true, note: words.t(words.has(`ghost.${reason}`) ? `ghost.${reason}` : "ghost.cancelled", { token }) };
  }
  if (run.started.settings.cache === "none") return { token, note: words.t("ghost.none", { token, n: countOf(facts.step.context_len[b] + 1) }) };
  return { token, note: words.t("ghost", { token }) };
}

/** Before there is a run: the empty matrix, drawn faintly. */
function paintEmptyStage(view, context) {
  const { box, theme, unit } = view;
  context.fillStyle = theme.card;
  context.fillRect(0, 0, box.w, box.h);
  const columns = columnLayout(new Array(30).fill(3), box.width);
  context.fillStyle = theme.emptyCell;
  for (let y = box.top, i = 0; y + box.rowPx < box.h - 6 * unit; y += box.rowPx, i++) {
    context.globalAlpha = Math.max(0.12, 0.75 - i * 0.03);
    for (let layer = 0; layer < 30; layer++) {
      context.fillRect(box.x0 + columns.x[layer * 3], y, 3 * columns.cell - columns.separator, box.rowPx - Math.round(2 * unit));
    }
  }
  context.globalAlpha = 1;
}

/** The end of the ribbon's axis: the end of a run that is over; while it goes on a round time beyond the present. */
function ribbonExtent(view, t) {
  const { run } = view;
  if (isOver(run)) return Math.max(1, runEnd(run));
  return Math.max(niceCeil(t * 1.12), 1e9, view.extent > t * 1.02 && view.extent < t * 40 ? view.extent : 0);
}

function paintRibbon(view, cursor, t) {
  const { n, run, theme, unit, words } = view;
  const context = n.ribbon.getContext("2d");
  const s = { w: n.ribbon.width, h: n.ribbon.height, u: unit, theme, run: run ?? newRun(), k: cursor.k, t, over: cursor.ended, hover: view.hoverStep ?? -1, axis: axisWords(view.extent) };
  if (!run?.started) {
    drawRibbon(context, { ...s, scale: timeScale(0, 1e9, s.w, false) });
    put(n.pre, "");
    put(n.dec, "");
    return;
  }
  const first = firstDecode(run, cursor.k);
  const prefillEnd = first ? stepEnd(run, first - 1) : 0;
  view.extent = ribbonExtent(view, t);
  const all = isOver(run) ? firstDecode(run, run.steps.length) : 0;
  const knee = all ? stepEnd(run, all - 1) : prefillEnd;
  view.scale = timeScale(knee, view.extent, s.w, isOver(run) && run.steps.length - all > 3);
  drawRibbon(context, { ...s, scale: view.scale });
}

/** The labels above the ribbon. Their widths are measured on a canvas: to ask the page would make it lay out at once. */
function writePhases(view, cursor) {
  const { n, run, words, sum, scale } = view;
  const t = words.t;
  const first = firstDecode(run, cursor.k);
  const prefillEnd = first ? stepEnd(run, first - 1) : 0;
  const tokens = countOf(promptTokens(run));
  const decodeX = first ? scale.x(prefillEnd) / view.dpr : 0;
  const total = n.ribbon.width / view.dpr;
  const firstDone = sum?.ttftNs !== null && sum?.ttftNs !== undefined;
  const done = countOf(tokensRead(run, first));
  const note = firstDone ? t("phase.prefill.done", { tokens, time: timeOf(sum.ttftNs) })
    : t(cursor.ended ? "phase.prefill.stopped" : "phase.prefill.now", { done, tokens });
  const preText = `${t("phase.prefill")}\u2002${note}${scale.broken ? ` · ${t("phase.broken")}` : ""}`;
  put(n.pre, preText);
  const decode = cursor.k - first;
  let decText = "";
  if (decode > 0) {
    const { size } = decodeBlocks(run, first, cursor.k, scale, 3.2 * view.unit);
    const median = sum.itlMedianNs === null ? timeOf(run.steps[first].end_ns - run.steps[first].start_ns) : timeOf(sum.itlMedianNs);
    const again = countOf(run.steps[cursor.k - 1].num_new_tokens.reduce((a, n) => a + n, 0));
    const each = run.started.settings.cache === "none" ? t("phase.decode.none", { time: median, n: again }) : t("phase.decode.note", { time: median });
    decText = `${t("phase.decode")}\u2002${each}${size > 1 ? ` · ${t("phase.decode.group", { size })}` : ""}`;
  }
  put(n.dec, decText);
  const preRoom = decode > 0 ? Math.max(decodeX - 10, Math.min(total * 0.46, 330 * (view.unit / view.dpr))) : total;
  n.pre.style.maxWidth = `${Math.max(120, preRoom)}px`;
  probe.font = `${(view.unit / view.dpr) * BASE_PX * 0.96}px ${view.theme.font}`;
  const preWidth = Math.min(probe.measureText(preText).width, preRoom);
  const decLeft = Math.max(Math.min(decodeX, total * 0.62), Math.min(preWidth + 14, total * 0.5));
  n.dec.style.left = `${decLeft}px`;
  n.dec.style.maxWidth = `${Math.max(60, total - decLeft)}px`;
}

function paintChart(view, cursor) {
  const { n, run, theme, unit, words } = view;
  const context = n.chart.getContext("2d");
  const layers = run?.started?.spec.layers ?? [];
  const key = layers.reduce((sum, l) => sum + l.num_kv_heads * l.key_dim, 0);
  const all = layers.reduce((sum, l) => sum + l.num_kv_heads * (l.key_dim + l.value_dim), 0);
  view.chartInput = {
    w: n.chart.width, h: n.chart.height, u: unit, run: run ?? newRun(), k: cursor.k, ended: cursor.ended, theme, hover: view.hoverStep ?? -1,
    ttftNs: view.sum?.ttftNs ?? null, kShare: all ? key / all : 0.5,
    ms: (ns) => axisWords(ns)(ns), seconds: (ns) => timeParts(ns).join(" "),
    words: {
      steps: (g) => {
        const decode = cursor.k - g.first;
        if (decode <= 0) return words.t("chart.waiting");
        return words.t("chart.steps", { n: countOf(decode) }) + (g.size > 1 ? ` · ${words.t("chart.group", { size: g.size })}` : "");
      },
    },
  };
  drawChart(context, view.chartInput);
}

// ---- words and numbers --------------------------------------------------------------------------

/** All texts that stay: once a language. */
function label(view) {
  const { n, words } = view;
  const t = words.t;
  n.root.lang = words.language === "zh" ? "zh-Hans" : words.language;
  put(n.title, t("title"));
  put(n.textTitle, t("text"));
  put(n.chartTitle, t("chart"));
  put(n.chartNote, t("chart.bytes"));
  put(n.follow, t("follow"));
  put(n.empty.firstChild, t("empty.head"));
  for (const [node, key] of [[n.start, "go.start"], [n.back, "go.back"], [n.next, "go.next"], [n.end, "go.end"], [n.project, "go.project"]]) {
    node.title = t(key);
    node.setAttribute("aria-label", t(key));
  }
  n.speed.setAttribute("aria-label", t("go.speed"));
  n.speed.title = t("go.speed");
  n.slider.setAttribute("aria-label", t("go.slider"));
  n.ribbon.setAttribute("aria-label", t("aria.ribbon"));
  n.chart.setAttribute("aria-label", t("aria.chart"));
  for (const [name, f] of Object.entries(n.figures)) {
    put(f.label, t(`fig.${name}`));
  }
  writeLegend(view);
  clearText(view);
}

function writeLegend(view) {
  const { n, words, tensor } = view;
  const t = words.t;
  const part = (kind, text) => {
    const span = document.createElement("span");
    span.className = `key ${kind}`;
    span.textContent = text;
    return span;
  };
  const ramp = document.createElement("i");
  ramp.className = `ramp ${tensor}`;
  const scale = part("term", `${t("legend.strong")} · ${t("legend.scale", { tensor: tensor.toUpperCase() })}`);
  scale.dataset.term = "magnitude";
  scale.tabIndex = 0;
  n.legend.replaceChildren(
    part("weak", t("legend.weak")), ramp, scale,
    part("mark prompt", t("legend.prefill")), part("mark decode", t("legend.decode")),
  );
  for (const [node, name] of [[n.k, "k"], [n.v, "v"]]) node.setAttribute("aria-pressed", String(tensor === name));
}

function sayOf(view, cursor) {
  const { run, words } = view;
  if (view.state === "broken") return { text: words.t("say.broken"), tone: "bad" };
  if (view.state === "gone") return { text: words.t("info.gone"), tone: "bad" };
  if (view.lost && run && !isOver(run) && view.player.live) return { text: words.t("say.lost"), tone: "bad" };
  return sentenceOf(run, cursor, words);
}

function writeWords(view, cursor, now) {
  const { n, run, words, facts, sum } = view;
  const t = words.t;
  const say = sayOf(view, cursor);
  put(n.say, say.text);
  n.say.dataset.tone = say.tone;
  if (say.tone !== view.spoken && now - view.spokenAt > 900) {
    view.spoken = say.tone;
    view.spokenAt = now;
    put(n.live, say.text);
  }
  writeInfo(view);
  writeChips(view);
  const hasRun = started(view);
  const kinds = hasRun ? kindsOf(run.started.spec.layers, words) : "";
  put(n.subtitle, t(hasRun && run.started.settings.cache === "none" ? "subtitle.none" : "subtitle") + (kinds ? ` · ${kinds}` : ""));
  n.matrixCard.classList.toggle("none", hasRun && run.started.settings.cache === "none");
  n.matrix.setAttribute("aria-label", summaryText(run, cursor, view.b, words));
  const figures = hasRun ? figuresOf(run, facts, sum, view.b, cursor, words) : {};
  view.figures = figures;
  put(n.chartTag, t(`tag.${tagOf(view, "measured")}`));
  for (const [name, f] of Object.entries(n.figures)) {
    put(f.tag, t(`tag.${tagOf(view, f.tagName)}`));
    writeFigure(f, figures[name]);
  }
  const count = hasRun ? piecesAt(run, view.b, cursor.k) : 0;
  put(n.textCount, !hasRun ? "" : cursor.ended ? t("text.done", { n: countOf(count) }) : t("text.count", { n: countOf(count), of: countOf(run.started.settings.new_tokens) }));
  if (view.openFigure && n.pop.matches?.(":popover-open")) fillPop(view, view.openFigure);
}

/** What was measured is read back, in a run that was made earlier. */
function tagOf(view, name) {
  return name === "measured" && view.data.recorded ? "recorded" : name;
}

function writeFigure(f, figure) {
  put(f.value, figure?.value ?? "–");
  put(f.unit, figure?.unit ?? "");
  put(f.extra, figure?.extra ?? "");
  f.notes.forEach((node, i) => {
    put(node, figure?.notes[i] ?? "");
    node.title = figure?.notes[i] ?? "";
  });
  f.card.dataset.tone = figure?.tone ?? "";
  if (f.bar) {
    const share = figure?.split ?? 1;
    f.bar.style.visibility = figure?.split == null ? "hidden" : "";
    const [weights, k, v] = f.bar.children;
    weights.style.flexGrow = share;
    k.style.flexGrow = (1 - share) / 2;
    v.style.flexGrow = (1 - share) / 2;
  }
}

function writeInfo(view) {
  const { n, run, words } = view;
  if (!run?.started) {
    put(n.info, "");
    return;
  }
  const { hardware, settings, started_at: startedAt } = run.started;
  const recorded = Boolean(view.data.recorded);
  const over = isOver(run);
  const date = recorded || over ? ` · ${dateOf(startedAt, words.language)}` : "";
  const state = view.state === "retry" ? words.t("info.retry") : words.t(recorded ? "info.recorded" : over ? "info.over" : "info.live");
  put(n.info, `${state}${date} · ${machineOf(hardware)} · ${run.started.spec.name} · ${settings.dtype}`);
  n.info.title = n.info.textContent;
  n.info.dataset.state = view.state === "retry" ? "retry" : recorded || over ? "over" : "live";
}

function writeChips(view) {
  const { n, run, words } = view;
  const batch = run?.started?.settings.batch ?? 1;
  const key = `${view.runId}|${batch}|${words.language}`;
  if (n.chips.dataset.key !== key) {
    n.chips.dataset.key = key;
    n.chips.replaceChildren();
    for (let b = 0; batch > 1 && b < batch; b++) {
      const chip = document.createElement("button");
      chip.type = "button";
      chip.className = "chip";
      chip.textContent = String(b + 1);
      chip.setAttribute("aria-label", words.t("sequence", { n: b + 1 }));
      chip.title = words.t("sequence", { n: b + 1 });
      chip.addEventListener("click", () => {
        view.b = b;
        view.free = null;
        clearText(view);
        invalidate(view, "words");
      });
      n.chips.append(chip);
    }
  }
  n.root.classList.toggle("batch", batch > 1);
  const ended = view.facts?.step?.num_new_tokens;
  [...n.chips.children].forEach((chip, b) => {
    chip.setAttribute("aria-pressed", String(b === view.b));
    chip.classList.toggle("over", Boolean(view.facts?.phase === "decode" && ended && !ended[b]));
  });
}

function writeTransport(view, cursor, t) {
  const { n, run, player, words } = view;
  const on = Boolean(run?.started && run.steps.length);
  const over = Boolean(run && isOver(run));
  const atEnd = over && (player.live || t >= runEnd(run));
  const running = on && (player.playing || (player.live && !over));
  for (const node of [n.start, n.back, n.play, n.next, n.end, n.slider]) node.disabled = !on;
  setIcon(n.play, running ? "pause" : atEnd ? "replay" : "play");
  const key = running ? "go.pause" : atEnd ? "go.replay" : "go.play";
  n.play.title = words.t(key);
  n.play.setAttribute("aria-label", words.t(key));
  const total = run ? run.steps.length : 0;
  n.slider.classList.toggle("off", !on);
  put(n.where, on ? words.t("go.step", { k: countOf(cursor.k), of: countOf(total) }) : "");
  if (on && !view.dragging) {
    const max = view.scale ? view.scale.x(view.extent) : 1;
    n.slider.value = String(Math.round((view.scale ? view.scale.x(t) / max : 0) * 1000));
    n.slider.setAttribute("aria-valuetext", words.t("go.where", { time: timeOf(Math.max(0, t)), k: cursor.k, of: total }));
  }
  n.end.classList.toggle("lit", Boolean(run) && !over && !player.live);
}

// ---- the text card ------------------------------------------------------------------------------

function clearText(view) {
  view.n.words.firstChild.replaceChildren();
  view.tokens = { start: 0, spans: [], ready: false };
}

/** Show the end of the prompt and the first `count` tokens; what is on screen already is left alone. */
function writeText(view, count) {
  const { n, run, b, tokens } = view;
  const box = n.words.firstChild;
  if (!tokens.ready || count < tokens.start) {
    clearText(view);
    beginText(view, Math.max(0, count - Math.floor(WINDOW_TOKENS / 2)));
    return writeText(view, count);
  }
  const want = count - tokens.start;
  if (want > WINDOW_TOKENS) {
    clearText(view);
    beginText(view, Math.max(0, count - Math.floor(WINDOW_TOKENS / 2)));
    return writeText(view, count);
  }
  while (tokens.spans.length > want) tokens.spans.pop().remove();
  tokens.current?.classList.remove("cur");
  while (tokens.spans.length < want) {
    const i = tokens.start + tokens.spans.length;
    const span = document.createElement("span");
    span.className = i % 2 ? "tok odd" : "tok";
    span.textContent = run.pieces[b][i].text;
    span.classList.toggle("turns", turnsText(span.textContent));
    tokens.spans.push(span);
    box.append(span);
  }
  tokens.current = tokens.spans[want - 1] ?? null;
  tokens.current?.classList.add("cur");
  return null;
}

function beginText(view, start) {
  const { n, run, b, words, tokens: old } = view;
  const prompt = run.started.prompt_texts[b];
  const tail = [];
  let length = 0;
  for (let i = prompt.length - 1; i >= 0 && length < 420; i--) {
    tail.unshift(prompt[i]);
    length += prompt[i].length;
  }
  const before = document.createElement("span");
  before.className = "old";
  before.title = words.t("text.prompt");
  while (tail.length && !tail[0].trim()) tail.shift();
  if (tail.length) tail[0] = tail[0].trimStart();
  joinPieces(before, tail.length < prompt.length ? ["… ", ...tail] : tail);
  n.words.firstChild.append(before);
  if (start) {
    const earlier = document.createElement("span");
    earlier.className = "earlier";
    joinPieces(earlier, run.pieces[b].slice(0, start).map((piece) => piece.text));
    n.words.firstChild.append(earlier);
  }
  Object.assign(view.tokens, { start, spans: [], ready: true, current: null });
  return old;
}

/** Put pieces into a node as one text. A piece that turns the direction of what follows stands apart, so that it turns
 * itself only; to set every piece apart would break the order of words in Arabic or Hebrew. */
function joinPieces(node, texts) {
  let plain = "";
  for (const text of texts) {
    if (!turnsText(text)) {
      plain += text;
      continue;
    }
    const apart = document.createElement("span");
    apart.className = "turns";
    apart.textContent = text;
    node.append(plain, apart);
    plain = "";
  }
  node.append(plain);
}

// ---- pop-overs, tool tips -----------------------------------------------------------------------

function fillPop(view, name) {
  const { n, words, run } = view;
  const t = words.t;
  const f = n.figures[name];
  const node = (tag, className, text) => {
    const made = document.createElement(tag);
    made.className = className;
    made.textContent = text;
    return made;
  };
  const head = node("h4", "", t(`fig.${name}`));
  head.append(node("span", "tag", t(`tag.${tagOf(view, f.tagName)}`)));
  const parts = [head, node("p", "", t(`fig.${name}.meaning`)), node("h5", "", t("pop.formula")), node("pre", "", t(`fig.${name}.formula`))];
  const figure = view.figures?.[name];
  if (figure?.numbers) parts.push(node("h5", "", t("pop.here")), node("pre", "", figure.numbers));
  parts.push(node("h5", "", t("pop.source")), node("p", "", `${t(`fig.${name}.source`)} ${t(`tag.${tagOf(view, f.tagName)}.why`)}`));
  if (run?.started) {
    const { hardware, started_at: startedAt } = run.started;
    parts.push(node("p", "small", !view.data.recorded ? t("pop.live", { machine: machineOf(hardware) })
      : t("pop.recorded", { machine: machineOf(hardware), date: dateOf(startedAt, words.language) })));
  }
  const text = parts.map((part) => part.textContent).join("|");
  if (n.pop.dataset.text !== text) {
    n.pop.dataset.text = text;
    n.pop.replaceChildren(...parts);
  }
}

function openPop(view, name) {
  const { n } = view;
  const again = view.openFigure === name && n.pop.matches?.(":popover-open");
  hideTip(view);
  if (again) {
    float(n.pop, false);
    return;
  }
  view.openFigure = name;
  fillPop(view, name);
  float(n.pop, true);
  place(n.pop, n.figures[name].card.getBoundingClientRect(), true);
}

function showTip(view, lines, box) {
  const { tip } = view.n;
  tip.replaceChildren(...lines.filter(Boolean).map((line, i) => {
    const node = document.createElement(i ? "span" : "b");
    node.textContent = line;
    return node;
  }));
  tip.classList.toggle("wide", lines.length === 1);
  float(tip, true);
  place(tip, box);
}

function hideTip(view) {
  float(view.n.tip, false);
  view.n.cross.classList.remove("on");
}

// ---- pointer and keys ---------------------------------------------------------------------------

function wire(view) {
  const { n } = view;
  const go = (act) => () => {
    if (view.run?.started) act(view.player, view.run);
    invalidate(view, "time");
  };
  n.start.addEventListener("click", go((p, r) => seek(p, r, 0)));
  n.end.addEventListener("click", go(toEnd));
  n.back.addEventListener("click", (event) => step(view, -1, event.shiftKey));
  n.next.addEventListener("click", (event) => step(view, 1, event.shiftKey));
  n.play.addEventListener("click", () => toggle(view));
  n.project.addEventListener("click", () => project(view, !n.root.classList.contains("projection"), true));
  for (const speed of SPEEDS) n.speed.add(new Option(`${speed}×`, String(speed), speed === 1, speed === 1));
  n.speed.addEventListener("change", () => {
    view.player.speed = Number(n.speed.value);
    invalidate(view, "time");
  });
  for (const tensor of ["k", "v"]) {
    n[tensor].addEventListener("click", () => {
      view.tensor = tensor;
      writeLegend(view);
      invalidate(view, "words");
    });
  }
  n.follow.addEventListener("click", () => {
    view.free = null;
    invalidate(view, "view");
  });
  wireScrub(view);
  wireMatrix(view);
  wireTips(view);
  view.onKey = (event) => onKey(view, event);
  document.addEventListener("keydown", view.onKey);
}

/** One token on or back; with `single` one step, which may be a piece of the prompt. */
function step(view, by, single) {
  const { player, run } = view;
  if (!run?.started) return;
  const went = single ? stepBy(player, run, by) : tokenBy(player, run, by, !view.reduced.matches);
  if (went) view.stepping = by > 0 && player.until === null;
  view.sweepUntil = 0;
  invalidate(view, "time");
}

function toggle(view) {
  const { player, run } = view;
  if (!run?.started) return;
  if (player.playing || (player.live && !isOver(run))) pause(player, run);
  else if (!player.live && !isOver(run) && player.t >= runEnd(run)) toEnd(player, run);
  else play(player, run);
  invalidate(view, "time");
}

/** Large type for a projector: at once here, and told to the page. */
function project(view, on, tell) {
  view.n.root.classList.toggle("projection", on);
  document.documentElement.classList.toggle("st-projection", on);
  if (tell) view.component.setStateValue("projection", on);
  invalidate(view, "size");
}

function wireScrub(view) {
  const { n } = view;
  const to = (share) => {
    if (!view.run?.started || !view.scale) return;
    seek(view.player, view.run, view.scale.t(share * n.ribbon.width));
    invalidate(view, "time");
  };
  n.slider.addEventListener("input", () => {
    view.dragging = true;
    to(Number(n.slider.value) / 1000);
  });
  n.slider.addEventListener("change", () => {
    view.dragging = false;
    invalidate(view, "time");
  });
  const share = (event) => {
    const box = n.ribbon.getBoundingClientRect();
    return Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
  };
  n.ribbon.addEventListener("pointerdown", (event) => {
    n.ribbon.setPointerCapture(event.pointerId);
    to(share(event));
  });
  n.ribbon.addEventListener("pointermove", (event) => {
    if (n.ribbon.hasPointerCapture(event.pointerId)) to(share(event));
    else hoverRibbon(view, share(event), event);
  });
  n.ribbon.addEventListener("pointerleave", () => hoverStep(view, null));
  n.chart.addEventListener("pointermove", (event) => hoverChart(view, event));
  n.chart.addEventListener("pointerleave", () => hoverStep(view, null));
}

function hoverRibbon(view, share, event) {
  const { run, n } = view;
  if (!run?.started || !view.scale) return;
  const { k } = cursorOf(view.player, run);
  const i = stepsAt(run, view.scale.t(share * n.ribbon.width));
  if (i >= k) hoverStep(view, null);
  else hoverStep(view, i < firstDecode(run, k) ? [0, firstDecode(run, k) - 1] : [i, i], event);
}

function hoverChart(view, event) {
  if (!view.run?.started || !view.chartInput) return;
  const box = view.n.chart.getBoundingClientRect();
  const g = chartLayout(view.chartInput);
  hoverStep(view, g.first ? chartAt(g, (event.clientX - box.left) * view.dpr) : null, event);
}

function hoverStep(view, range, event) {
  const { run, words } = view;
  if (!range) {
    view.hoverStep = -1;
    hideTip(view);
    invalidate(view, "hover");
    return;
  }
  const [first, last] = range;
  const t = words.t;
  const one = run.steps[first];
  const took = (s) => s.end_ns - s.start_ns;
  const size = (bytes) => (bytes === null ? t("fig.unknown_part") : sizeOf(bytes));
  const kvOf = (i) => (run.steps[i].kv_bytes_read === null ? null : run.steps[i].kv_bytes_read - copiedAt(run, i));
  let lines;
  if (one.phase === "prefill") {
    lines = [t("chart.tip.first", { time: timeOf(view.sum?.ttftNs ?? stepEnd(run, last)), pieces: last + 1 })];
  } else if (first === last) {
    const texts = one.token_texts[view.b].map(labelOf).join("");
    lines = [`“${texts}”`, t("chart.tip", { step: countOf(first), time: timeOf(took(one)), weights: size(one.weight_bytes_read), kv: size(kvOf(first)) })];
  } else {
    const times = run.steps.slice(first, last + 1).map(took);
    lines = [t("chart.tip.group", { first, last, least: timeOf(Math.min(...times)), most: timeOf(Math.max(...times)), kv: size(kvOf(last)) })];
  }
  for (let i = first; i <= last && one.phase !== "prefill"; i++) {
    const copied = copiedAt(run, i);
    if (copied) lines.push(t("chart.tip.copy", { step: countOf(i), copied: sizeOf(copied) }));
  }
  view.hoverStep = one.phase === "prefill" ? -1 : first;
  showTip(view, lines, { left: event.clientX, width: 0, top: event.clientY - 12, bottom: event.clientY + 12 });
  invalidate(view, "hover");
}

function wireMatrix(view) {
  const { n } = view;
  const at = (event) => {
    const box = n.matrix.getBoundingClientRect();
    return [(event.clientX - box.left) * view.dpr, (event.clientY - box.top) * view.dpr];
  };
  let drag = null;
  n.matrix.addEventListener("wheel", (event) => {
    if (!view.run?.started || !view.box) return;
    const [, y] = at(event);
    const rows = view.rowsShown ?? 0;
    const { box } = view;
    if (event.shiftKey && view.free) {
      view.free = clampView({ ...view.free, top: view.free.top + (event.deltaY || event.deltaX) / view.free.rowH }, rows, box.height, box.rowPx);
    } else {
      const next = zoomView(view.free, view.bands, rows, box.height, box.rowPx, y - box.top, Math.exp(-event.deltaY * 0.0022));
      if (!next && !view.free) return; // nothing to zoom out of: the page scrolls
      view.free = next;
    }
    event.preventDefault();
    invalidate(view, "view");
  }, { passive: false });
  n.matrix.addEventListener("pointerdown", (event) => {
    if (!view.run?.started || event.pointerType === "touch") return;
    const [x, y] = at(event);
    n.matrix.setPointerCapture(event.pointerId);
    drag = { y, mini: x >= view.box.miniX - 4 * view.unit, moved: false };
    if (drag.mini) jump(view, y);
  });
  n.matrix.addEventListener("pointermove", (event) => {
    const [x, y] = at(event);
    if (!drag) {
      hoverMatrix(view, x, y, event);
      return;
    }
    if (drag.mini) jump(view, y);
    else if (drag.moved || Math.abs(y - drag.y) > 4 * view.dpr) {
      if (!drag.moved) hideTip(view);
      drag.moved = true;
      scrollBy(view, drag.y - y, y);
      drag.y = y;
    }
  });
  const stop = () => { drag = null; };
  n.matrix.addEventListener("pointerup", (event) => {
    if (event.pointerType === "touch") hoverMatrix(view, ...at(event), event);
    stop();
  });
  n.matrix.addEventListener("pointercancel", stop);
  n.matrix.addEventListener("pointerleave", () => {
    view.hover = view.pointer = null;
    hideTip(view);
    invalidate(view, "hover");
  });
  n.matrix.addEventListener("keydown", (event) => {
    const page = { PageDown: 0.8, PageUp: -0.8, ArrowDown: 0.08, ArrowUp: -0.08 }[event.key];
    if (!view.run?.started) return;
    const { box } = view;
    if (page) scrollBy(view, page * box.height, box.height / 2);
    else if (event.key === "+" || event.key === "-") {
      view.free = zoomView(view.free, view.bands, view.rowsShown ?? 0, box.height, box.rowPx, box.height / 2, event.key === "+" ? 1.5 : 1 / 1.5);
    } else if (event.key === "0" || event.key === "Escape") view.free = null;
    else return;
    event.preventDefault();
    invalidate(view, "view");
  });
}

/** Scroll by pixels; from the whole-cache view this begins at readable rows around y. */
function scrollBy(view, pixels, y) {
  const { box } = view;
  const rows = view.rowsShown ?? 0;
  if (!view.free) {
    if (rows * box.rowPx <= box.height) return;
    const range = rowsUnder(view.bands, Math.max(0, Math.min(box.height - 1, y - box.top))) ?? [rows - 1];
    view.free = clampView({ mode: "free", rowH: box.rowPx, top: range[0] - (y - box.top) / box.rowPx }, rows, box.height, box.rowPx);
  }
  if (view.free) view.free = clampView({ ...view.free, top: view.free.top + pixels / view.free.rowH }, rows, box.height, box.rowPx);
  invalidate(view, "view");
}

/** Show the rows at this place of the map at the right. */
function jump(view, y) {
  const { box, facts } = view;
  const rows = view.rowsShown ?? 0;
  if (rows * box.rowPx <= box.height) return;
  const reserved = reservedRowsOf(view.run, facts.reservedBytes) ?? 0;
  const row = ((y - box.top) / box.height) * Math.max(rows, reserved);
  const rowH = view.free?.rowH ?? box.rowPx;
  view.free = clampView({ mode: "free", rowH, top: row - box.height / rowH / 2 }, rows, box.height, box.rowPx);
  invalidate(view, "view");
}

function hoverMatrix(view, x, y, event) {
  const { run, box, columns, words, n, b } = view;
  if (!run?.started || !columns || !view.facts) return;
  const range = rowsUnder(view.bands, y - box.top);
  const column = columnAt(columns, x - box.x0);
  if (!range || x > box.x0 + columns.used) {
    view.hover = null;
    hideTip(view);
    return;
  }
  const t = words.t;
  const [first, stop] = range;
  const none = run.started.settings.cache === "none";
  const lines = stop - first > 1
    ? [t("tip.pooled", { first: countOf(first), last: countOf(stop - 1) })]
    : [t("tip.row", { token: labelOf(textOf(run, b, first)) }), t("tip.position", { n: countOf(first) })];
  if (column >= 0 && !none) {
    const layer = columns.layerOf[column];
    const spec = run.started.spec.layers[layer];
    lines.push(t("tip.cell", { layer, head: columns.headOf[column] }));
    lines.push(magnitudes(view, first, stop, column));
    const size = elementSize(run.started);
    if (size) lines.push(t("tip.bytes", { cell: countOf((spec.key_dim + spec.value_dim) * size), row: countOf(run.rowBytes) }));
    if (layerWords(spec, words)) lines.push(layerWords(spec, words));
    if (first < rowsGone(view.facts.rows[b], spec.window)) lines.push(t("tip.gone"));
    view.hover = { layer };
  } else {
    const layer = none ? -1 : layerAt(columns, x - box.x0);
    if (layer >= 0) lines.splice(0, lines.length, t("tip.layer", { layer }), layerWords(run.started.spec.layers[layer], words));
    view.hover = { layer };
  }
  showTip(view, lines, { left: event.clientX, width: 0, top: event.clientY - 14, bottom: event.clientY + 14 });
  const top = rowTop(view.bands, first);
  if (top !== null) {
    const band = view.bands.find((one) => first >= Math.floor(one.from) && first < one.to);
    n.cross.classList.add("on");
    n.cross.style.transform = `translate(${(box.x0 - 2) / view.dpr}px, ${(box.top + top) / view.dpr}px)`;
    n.cross.style.width = `${(columns.used + 4) / view.dpr}px`;
    n.cross.style.height = `${Math.max(2, ((stop - first) * band.rowH) / view.dpr)}px`;
  }
  view.pointer = [x, y, event];
  invalidate(view, "hover");
}

function magnitudes(view, first, stop, column) {
  const { run, b, words } = view;
  const store = run.sequences[b];
  if (stop > store.sampled) return words.t("tip.nosample");
  const most = (bytes) => {
    let value = 0;
    for (let row = first; row < stop; row++) value = Math.max(value, bytes[row * run.numColumns + column]);
    return magnitudeOf(value);
  };
  const shown = (value) => (value >= 100 ? value.toFixed(0) : value.toPrecision(3));
  return words.t("tip.magnitude", { k: shown(most(store.k)), v: shown(most(store.v)) });
}

function wireTips(view) {
  const { root } = view.n;
  const term = (event) => event.target.closest?.(".term");
  const show = (event) => {
    const node = term(event);
    if (node && view.words.has(`term.${node.dataset.term}`)) showTip(view, [view.words.t(`term.${node.dataset.term}`)], node.getBoundingClientRect());
  };
  root.addEventListener("pointerover", show);
  root.addEventListener("focusin", show);
  root.addEventListener("click", show);
  root.addEventListener("pointerout", (event) => term(event) && hideTip(view));
  root.addEventListener("focusout", (event) => term(event) && hideTip(view));
  root.addEventListener("click", (event) => {
    const card = event.target.closest?.("[data-figure]");
    if (card) openPop(view, card.dataset.figure);
  });
  for (const [node, name] of [[view.n.pre, "prefill"], [view.n.dec, "decode"], [view.n.subtitle, "kv_head"]]) {
    node.classList.add("term");
    node.dataset.term = name;
    node.tabIndex = 0;
  }
}

/** Keys of the whole page, unless somebody is typing or moving another control. */
function onKey(view, event) {
  const key = keyFor(event, view.n);
  if (key === null) return;
  if (key === "f" || key === "F") project(view, !view.n.root.classList.contains("projection"), true);
  else if (key === " ") toggle(view);
  else if (key === "ArrowRight") step(view, 1, event.shiftKey);
  else if (key === "ArrowLeft") step(view, -1, event.shiftKey);
  else if (key === "Home" && view.run?.started) seek(view.player, view.run, 0);
  else if (key === "End" && view.run?.started) toEnd(view.player, view.run);
  else return;
  hideTip(view); // what it told stands elsewhere now, or is not there yet
  event.preventDefault();
  invalidate(view, "time");
}

const render = mounting(views, newView, update, destroy);
export default render;
