// The two lanes of a race: each the matrix of its run at one moment, with the text so far below it.
import { el, put } from "./elements.mjs";
import { columnLayout, rowBands } from "./layout.mjs";
import { fillRows, newPyramid, wordOf } from "./matrix.mjs";
import { LANES } from "./race.mjs";
import { endsAt, keptAt, layersOf, reservedRowsOf, rowsAt, textOf } from "./run.mjs";
import { drawStage, labelOf, stageLayout } from "./stage.mjs";
import { countOf, stageWords, turnsText } from "./words.mjs";

const SEEN_MS = 180; // a step that is shorter than this on screen is not drawn while it runs: it would flicker
const FLASH_MS = 260;

/** A lane: its boxes and pooled rows, the steps that were drawn last, when the newest of them came. */
export function newLane(cache) {
  return { cache, columns: null, pyramid: null, box: null, flashAt: -1e9, k: -1 };
}

export function resetLane(lane) {
  Object.assign(lane, { columns: null, pyramid: null, k: -1 });
}

export function laneNodes(cache) {
  const lane = {
    title: el("button", { type: "button", class: "h term", "data-term": `lane.${cache}` }),
    sub: el("span", { class: "sub" }), clock: el("b", { class: "clock" }),
    canvas: el("canvas", { class: "matrix-canvas", role: "img" }), text: el("p", { class: "lane-text" }),
  };
  lane.stage = el("div", { class: "stage" }, lane.canvas);
  const head = el("header", {}, lane.title, lane.sub, lane.clock);
  lane.card = el("section", { class: `card lane ${cache}`, "data-lane": cache }, head, lane.stage, lane.text);
  return lane;
}

export function measureLane(lane, canvas, unit) {
  lane.box = stageLayout(canvas.width, canvas.height, unit);
  lane.columns = lane.pyramid = null;
}

/** Whether the newest step of a lane still shines. */
export function isFlashing(lane, now) {
  return now - lane.flashAt < FLASH_MS;
}

/** Rows of a lane: held with a cache; without one those that the last step computed again. */
export function rowsOf(run, at) {
  if (!at.k) return 0;
  if (run.started.settings.cache === "none") return run.steps[at.k - 1].context_len[0];
  return rowsAt(run, at.k)[0];
}

function layLane(lane, run) {
  const { box } = lane;
  lane.columns = columnLayout(layersOf(run.started).map((layer) => layer.num_kv_heads), box.width);
  const spare = box.width - lane.columns.used;
  box.x0 += spare;
  box.labelW += spare;
  box.width -= spare;
}

function fillLane(lane, run, theme) {
  if (lane.cache === "none") return null;
  if (lane.pyramid?.stamp !== theme.stamp) {
    lane.pyramid = newPyramid(lane.columns, theme.rampK, wordOf(theme.cardRgb));
    lane.pyramid.stamp = theme.stamp;
  }
  const store = run.sequences[0];
  fillRows(lane.pyramid, store.k, store);
  return lane.pyramid;
}

export function paintLane(shell, lane, moment, now) {
  const { theme, words, store: race, reduced } = shell;
  const context = shell.n.lanes[lane.cache].canvas.getContext("2d", { alpha: false });
  const { box } = lane;
  const run = race?.shown[lane.cache];
  if (!moment || !run) {
    context.fillStyle = theme.card;
    context.fillRect(0, 0, box.w, box.h);
    return;
  }
  if (!lane.columns) layLane(lane, run);
  const at = moment.at[lane.cache];
  if (at.k > lane.k && lane.k >= 0 && !reduced.matches) lane.flashAt = now;
  lane.k = at.k;
  const none = lane.cache === "none";
  const running = isSeen(shell, at) ? at.running : null;
  const step = at.k ? run.steps[at.k - 1] : null;
  const reading = running && (none || running.phase === "prefill");
  const rows = reading ? running.context_len[0] : none ? rowsOf(run, at) : endsAt(run, at.k)[0];
  const flash = Math.max(0, 1 - (now - lane.flashAt) / FLASH_MS) * 0.55;
  const note = noteOf(running ?? step, running, words);
  const again = { flash: running ? 0 : Math.max(flash, 0.2), share: reading ? at.share : 0, note };
  const recompute = reading || none ? again : null;
  const bands = rowBands(rows, box.height, box.rowPx, null);
  drawStage(context, {
    box, columns: lane.columns, pyramid: none || reading ? null : fillLane(lane, run, theme), theme, bands,
    rows: recompute ? 0 : rows, kept: recompute ? null : keptAt(run, 0, at.k),
    newRows: !recompute && step?.phase === "decode" ? rows - endsAt(run, at.k - 1)[0] : 0,
    promptLen: run.started.prompt_texts[0].length, layers: layersOf(run.started),
    reservedRows: recompute ? 0 : reservedRowsOf(run, at.k) ?? 0,
    slide: 1, pop: 1, reveal: 1, revealFrom: 0, recompute: rows ? recompute : null,
    ghost: laneGhost(run, at, none, words), hoverLayer: -1,
    textOf: (row) => textOf(run, 0, row),
    words: stageWords(words, none),
  });
  if (running && !reading) drawRead(context, lane, theme, bands, at.share);
}

/** Whether the step that is on lasts long enough on screen to be drawn while it runs. */
function isSeen({ reduced, player }, at) {
  if (!at.running || at.share <= 0 || reduced.matches) return false;
  return (at.running.end_ns - at.running.start_ns) / 1e6 / player.speed >= SEEN_MS;
}

/** A decode step with the cache: layer after layer reads all of its rows, and adds one. */
function drawRead(context, { box, columns }, theme, bands, share) {
  const layer = Math.min(columns.heads.length - 1, Math.floor(share * columns.heads.length));
  const last = bands[bands.length - 1];
  if (!last) return;
  context.fillStyle = theme.read;
  context.globalAlpha = 0.5;
  context.fillRect(box.x0 + columns.left[layer], box.top, columns.span[layer], last.y + last.h);
  const y = box.top + Math.min(last.y + last.h, box.height) + 6 * box.u;
  context.fillStyle = theme.new;
  context.globalAlpha = 0.55;
  context.fillRect(box.x0, y, columns.left[layer], box.rowPx - box.u);
  context.globalAlpha = 1;
}

function noteOf(step, running, { t }) {
  if (!step) return "";
  const n = countOf(step.num_new_tokens[0]);
  if (step.phase === "prefill") return t(running ? "lanes.note.reading" : "lanes.note.read", { n });
  return t("recomputed", { n });
}

function laneGhost(run, at, none, { t }) {
  if (!at.tokens) return null;
  const piece = run.pieces[0][at.tokens - 1];
  const token = labelOf(piece.text);
  if (at.over) return { token, ended: true, note: t(`ghost.${run.finished.sequence_reasons[0]}`, { token }) };
  return { token, note: t(none ? "ghost.none" : "ghost", { token, n: countOf(rowsOf(run, at) + 1) }) };
}

/** Title, number of tokens and text of a lane. */
export function writeLane({ n, store: race, words }, cache, moment) {
  const node = n.lanes[cache];
  const run = race?.shown[cache];
  const at = moment?.at[cache];
  put(node.title, words.t(`lanes.lane.${cache}`));
  const parts = [];
  if (run && at) {
    const done = run.pieces[0].slice(0, at.tokens).map((piece) => piece.text);
    const newest = done.pop() ?? "";
    put(node.sub, words.t("lanes.lane.tokens", { n: at.tokens, of: run.tokenSteps.length }));
    const from = race.logits?.first_difference ?? null;
    const differs = from !== null && LANES.every((lane) => race.shown[lane]) && at.tokens > from;
    parts.push(textNode("old", done.join("")), textNode(differs ? "tok cur differs" : "tok cur", newest));
    const label = words.t(`lanes.aria.${cache}`, { rows: countOf(rowsOf(run, at)), n: at.tokens });
    node.canvas.setAttribute("aria-label", label);
  } else put(node.sub, moment ? words.t("lanes.lane.missing") : "");
  node.text.replaceChildren(...parts);
}

function textNode(name, text) {
  const oneLine = text.replace(/\r?\n/g, "⏎");
  return el("span", { class: turnsText(text) ? `${name} turns` : name }, oneLine);
}
