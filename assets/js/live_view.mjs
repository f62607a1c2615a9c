// The live view: one component that draws everything that follows a run, as a pure function of a prefix of its events.
//
// It keeps the store of run.mjs, lets player.mjs say which prefix is on screen, and draws only what has changed. Here
// is what stands where, and when each of it is drawn; the rest is in shell.mjs and in the other live_*.mjs.
import { writeTransport } from "./controls.mjs";
import { liveNodes } from "./dom.mjs";
import {
  fillMatrix, hoverMatrix, measureMatrix, newMatrix, paintMatrix, resetMatrix, wireMatrix,
} from "./live_matrix.mjs";
import { animate, isMoving, newMotion } from "./live_motion.mjs";
import { newTimes, paintChart, paintRibbon, scrubOf, wireTimes } from "./live_time.mjs";
import { clearText, labelLive, labelWhole, newWriting, popOf, writePhases, writeText, writeWords } from "./live_words.mjs";
import { cursorOf, play, runEnd, seek, stepBy, tokenBy } from "./player.mjs";
import { factsAt, isOver, newRun, piecesAt, summaryAt, takeFrame } from "./run.mjs";
import { mountShell, newShell } from "./shell.mjs";
import { countOf, timeOf } from "./words.mjs";

// Figures, ribbon and chart follow a fast run no faster than this; at rest they show what the matrix shows.
const SIDE_MS = 80;
// Nor does the text, in a frame of its own and in one of those: no frame of a fast run bears all.
const TEXT_MS = [28, 42];
const TIME_MS = 70; // while a run goes on the ribbon's time does too

/** The live view in `parent`: `b` is the sequence shown, `facts` and `sum` are of the prefix on screen, `last` says
 * what was drawn, `anchor` when the newest event came, `pace` what of the side and the text is due. */
function newLive(parent) {
  const view = {
    shell: null, b: 0, whole: false, facts: null, sum: null, last: { k: -1 }, anchor: null,
    pace: { side: false, sideAt: 0, text: false, textAt: 0 },
    matrix: newMatrix(), motion: newMotion(), times: newTimes(), writing: newWriting(),
    choose: (b) => choose(view, b),
  };
  view.shell = newShell(parent, {
    skeleton: liveNodes,
    canvases: (n) => [n.matrix, n.ribbon, n.chart],
    terms: "term.",
    newStore: newRun,
    take: takeFrame,
    isOver,
    isReady: (run) => Boolean(run.started) || isOver(run),
    track: () => (view.shell.store?.started ? view.shell.store : null),
    reset: () => reset(view),
    took: (added) => took(view, added),
    first: () => begin(view.shell),
    label: () => labelLive(view),
    measured: () => measureMatrix(view),
    draw: (now, dirty, moved) => draw(view, now, dirty, moved),
    step: (run, by, event) => stepLive(view, run, by, event.shiftKey),
    scrub: (n) => scrubOf(view, n),
    pop: {
      key: "figure", atLeft: true,
      node: (name) => view.shell.n.figures[name].card,
      content: (name) => popOf(view, name),
    },
    tipHidden: () => view.shell.n.cross.classList.remove("on"),
    projected: (on) => view.shell.component.setStateValue("projection", on),
  });
  wireMatrix(view);
  wireTimes(view);
  wireChoices(view);
  return view.shell;
}

/** Another run: forget all that was of the one before. */
function reset(view) {
  Object.assign(view, { b: 0, facts: null, sum: null, last: { k: -1 }, anchor: null });
  resetMatrix(view.matrix);
  Object.assign(view.motion, newMotion());
  view.times.extent = 1e9;
  clearText(view);
}

function took(view, added) {
  const { store: run } = view.shell;
  if (run.numEvents && (added || !view.anchor)) view.anchor = { wall: performance.now(), ns: runEnd(run) };
}

/** The first frame of a run has come: a finished one plays from its start when the page asks for it. */
function begin({ store: run, player, data }) {
  if (!isOver(run) || !data.autoplay || !run.steps.length) return;
  seek(player, run, 0);
  play(player, run);
}

function wireChoices(view) {
  view.shell.n.whole.addEventListener("click", () => {
    view.whole = !view.whole;
    labelWhole(view);
    view.pace.text = true;
    view.shell.invalidate("time");
  });
  const { shell, matrix } = view;
  const { n } = shell;
  for (const tensor of ["k", "v"]) {
    n[tensor].addEventListener("click", () => {
      matrix.tensor = tensor;
      shell.invalidate("words");
    });
  }
  n.follow.addEventListener("click", () => {
    matrix.free = null;
    shell.invalidate("view");
  });
}

/** Show another sequence of the batch. */
function choose(view, b) {
  view.b = b;
  view.matrix.free = null;
  clearText(view);
  view.shell.invalidate("words");
}

/** One token on or back; with `single` one step, which may be a piece of the prompt. */
function stepLive(view, run, by, single) {
  const { player, reduced } = view.shell;
  const went = single ? stepBy(player, run, by) : tokenBy(player, run, by, !reduced.matches);
  if (went) view.motion.slow = by > 0 && player.until === null;
  view.motion.sweepUntil = 0;
}

// ---- drawing ------------------------------------------------------------------------------------

/** Whether time goes on by itself: a live run that is being followed and has not ended. */
function isGoingOn({ store: run, player, state, lost }) {
  return Boolean(run?.started) && player.live && !isOver(run) && state !== "gone" && !lost;
}

/** The moment on screen, in ns since the run was accepted. */
function present(view) {
  const { store: run, player } = view.shell;
  if (!run?.started) return 0;
  if (!player.live) return player.t;
  if (!isGoingOn(view.shell) || !view.anchor) return runEnd(run);
  return view.anchor.ns + (performance.now() - view.anchor.wall) * 1e6;
}

function draw(view, now, dirty, moved) {
  const { shell, motion, last } = view;
  const { store: run, player } = shell;
  const started = Boolean(run?.started);
  const cursor = run ? cursorOf(player, run) : { k: 0, ended: false };
  const { k } = cursor;
  const t = present(view);
  const fresh = dirty.all || dirty.words || k !== last.k || cursor.ended !== last.ended
    || view.b !== last.b || (run?.numEvents ?? 0) !== last.events;
  if (started) fillMatrix(view);
  if (fresh) {
    if (k !== last.k) animate(view, now, last.k, k);
    view.facts = started ? factsAt(run, k) : null;
    view.sum = started ? summaryAt(run, k) : null;
  }
  // Canvases first: to set a font on one after the page's text has changed would work out all styles twice.
  const stage = fresh || dirty.size || dirty.view || dirty.hover || dirty.anim || motion.moving;
  motion.moving = isMoving(motion, now);
  if (stage) paintMatrix(view, cursor, now);
  const rushed = (!player.live && !player.playing) || Math.abs(k - last.k) > 3 || cursor.ended;
  const late = drawRest(view, cursor, t, { now, dirty, moved, fresh, rushed });
  view.last = { k, ended: cursor.ended, b: view.b, events: run?.numEvents ?? 0 };
  mark(view, cursor);
  return { animating: motion.moving, wait: late ? SIDE_MS : isGoingOn(shell) ? TIME_MS : 0 };
}

/** Text, ribbon, chart, words and transport, each when it is due. Returns whether something was put off. */
function drawRest(view, cursor, t, { now, dirty, moved, fresh, rushed }) {
  const { shell, pace, matrix } = view;
  const { store: run } = shell;
  const started = Boolean(run?.started);
  pace.side ||= fresh;
  pace.text ||= fresh;
  const side = rushed || now - pace.sideAt >= SIDE_MS - 4;
  const textMs = TEXT_MS[Number(side && pace.side)];
  if (pace.text && started && (rushed || now - pace.textAt >= textMs)) {
    writeText(view, piecesAt(run, view.b, view.whole ? run.steps.length : cursor.k));
    pace.text = false;
    pace.textAt = now;
  }
  const { pointer } = matrix;
  if (pointer && (dirty.view || (fresh && moved))) hoverMatrix(view, ...pointer); // other rows are under it now
  const asked = dirty.time || dirty.size || dirty.hover;
  if (moved || (side && (pace.side || asked || dirty.run))) paintRibbon(view, cursor, t);
  if (side && (pace.side || moved || asked)) {
    if (pace.side || dirty.size || dirty.hover) paintChart(view, cursor);
    if (pace.side) writeWords(view, cursor, now);
    if (started && (pace.side || dirty.size)) writePhases(view, cursor);
    writeLiveTransport(view, cursor, t);
    pace.side = false;
    pace.sideAt = now;
  }
  return pace.side || (pace.text && started);
}

function writeLiveTransport(view, cursor, t) {
  const { shell, times } = view;
  const { store: run, player, words } = shell;
  const on = Boolean(run?.started && run.steps.length);
  const over = Boolean(run && isOver(run));
  const of = run ? run.steps.length : 0;
  writeTransport(shell, {
    on,
    running: on && (player.playing || (player.live && !over)),
    atEnd: over && (player.live || t >= runEnd(run)),
    where: on ? words.t("go.step", { k: countOf(cursor.k), of: countOf(of) }) : "",
    share: times.scale ? times.scale.x(t) / times.scale.x(times.extent) : 0,
    told: words.t("go.where", { time: timeOf(Math.max(0, t)), k: cursor.k, of }),
    lit: Boolean(run) && !over && !player.live,
  });
}

/** What is on screen, for those who ask the page. */
function mark(view, cursor) {
  const { shell, facts, b } = view;
  const { dataset } = shell.n.root;
  dataset.run = shell.runId ?? "";
  dataset.k = cursor.k;
  dataset.rows = facts?.rows[b] ?? 0;
  dataset.events = shell.store?.numEvents ?? 0;
  dataset.ended = cursor.ended ? "1" : "0";
}

const render = mountShell(newLive);
export default render;
