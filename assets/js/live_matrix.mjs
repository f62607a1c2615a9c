// The matrix of the live view: its canvas, and what a pointer does with it: zoom, scroll, jump, point at a cell.
import { hideTip, showTip } from "./controls.mjs";
import { put } from "./elements.mjs";
import {
  clampView, columnAt, columnLayout, layerAt, rowBands, rowTop, rowsGone, rowsUnder, zoomView,
} from "./layout.mjs";
import { progress } from "./live_motion.mjs";
import { fillRows, newPyramid, wordOf } from "./matrix.mjs";
import { keptAt, layersOf, magnitudeOf, piecesAt, textOf } from "./run.mjs";
import { evictedRanges, isCellGone } from "./rows.mjs";
import { drawStage, labelOf, stageLayout } from "./stage.mjs";
import { countOf, layerWords, stageWords } from "./words.mjs";

/** What is seen of the rows. `tensor`: K or V; `free`: the view that the visitor chose, null while it follows; the rest
 * is worked out: places (`box`, `columns`, `bands`), pooled rows, how many rows there are, what is pointed at. */
export function newMatrix() {
  return {
    tensor: "k", free: null, box: null, columns: null, bands: [], pyramid: null, numRows: 0, atEnd: false,
    hoverLayer: -1, pointer: null,
  };
}

/** Forget what was of another run. */
export function resetMatrix(matrix) {
  Object.assign(matrix, { free: null, columns: null, pyramid: null, hoverLayer: -1, pointer: null });
}

// ---- sizes --------------------------------------------------------------------------------------

/** The canvas has a size: its boxes, and the columns anew where they have other widths now. */
export function measureMatrix(view) {
  const { shell, matrix } = view;
  const { width, height } = shell.n.matrix;
  const box = stageLayout(width, height, shell.unit);
  box.dpr = shell.dpr;
  const old = matrix.box;
  if (!old || box.w !== old.w || box.u !== old.u) matrix.columns = matrix.pyramid = null;
  else Object.assign(box, { x0: old.x0, labelW: old.labelW, width: old.width });
  matrix.box = box;
}

/** Bring columns and pooled rows up to the samples that have come. */
export function fillMatrix(view) {
  const { matrix, shell, b } = view;
  const { store: run, theme } = shell;
  if (!matrix.columns) layColumns(matrix, run);
  const { tensor } = matrix;
  const key = `${tensor}${b}${theme.stamp}`;
  if (matrix.pyramid?.key !== key) {
    matrix.pyramid = newPyramid(matrix.columns, theme[tensor === "k" ? "rampK" : "rampV"], wordOf(theme.cardRgb));
    matrix.pyramid.key = key;
  }
  const store = run.sequences[b];
  fillRows(matrix.pyramid, store[tensor], store);
}

function layColumns(matrix, run) {
  const { box } = matrix;
  matrix.columns = columnLayout(layersOf(run.started).map((layer) => layer.num_kv_heads), box.width);
  const spare = box.width - matrix.columns.used; // columns are whole pixels: what is left goes to the labels
  box.x0 += spare;
  box.labelW += spare;
  box.width -= spare;
  matrix.pyramid = null;
}

// ---- the canvas ---------------------------------------------------------------------------------

export function paintMatrix(view, cursor, now) {
  const { shell, matrix, motion, facts, b } = view;
  const { n, store: run, theme, words } = shell;
  const { box } = matrix;
  const context = n.matrix.getContext("2d", { alpha: false });
  const started = Boolean(run?.started);
  n.empty.hidden = started && (cursor.k > 0 || facts.ends[b] > 0);
  put(n.empty.lastChild, words.t(started ? "empty.start" : "empty.body"));
  if (!started) {
    n.follow.hidden = true;
    paintEmpty(view, context);
    return;
  }
  const none = run.started.settings.cache === "none";
  const step = facts.step;
  const end = none ? 0 : facts.ends[b];
  const rejected = facts.rejected[b]; // drafts of this very step stand below the rows that it has kept
  const rows = none ? step?.context_len[b] ?? 0 : rejected?.[1] ?? end;
  matrix.free = clampView(matrix.free, rows, box.height, box.rowPx);
  matrix.bands = rowBands(rows, box.height, box.rowPx, keptAtEnd(matrix, rows));
  matrix.numRows = rows;
  n.follow.hidden = !matrix.free;
  const newRows = step?.phase === "decode" && !none ? newRowsOf(step.appended[b], rejected) : 0;
  const { anim } = motion;
  const again = () => ({ flash: 1 - progress(anim.flash, now), note: againNote(step.num_new_tokens[b], words) });
  drawStage(context, {
    box, columns: matrix.columns, pyramid: none ? null : matrix.pyramid, theme, bands: matrix.bands,
    rows: end, newRows, kept: none ? null : keptAt(run, b, cursor.k),
    promptLen: run.started.prompt_texts[b].length,
    layers: layersOf(run.started),
    reservedRows: none ? 0 : facts.reservedRows ?? 0,
    slide: progress(anim.slide, now), pop: progress(anim.pop, now),
    reveal: progress(anim.reveal, now), revealFrom: anim.reveal?.from ?? 0,
    recompute: none && step ? again() : null,
    ghost: ghostOf(view, cursor),
    hoverLayer: matrix.hoverLayer,
    textOf: (row) => textOf(run, b, row),
    words: stageWords(words, none),
  });
}

/** Rows that a step has added and kept. */
function newRowsOf([first, stop], rejected) {
  return (rejected?.[0] ?? stop) - first;
}

function againNote(n, words) {
  return words.t("recomputed", { n: countOf(n) });
}

/** A free view that showed the last row goes on showing it. */
function keptAtEnd(matrix, rows) {
  const { free, box } = matrix;
  if (free && matrix.atEnd && rows > matrix.numRows) {
    matrix.free = clampView({ ...free, top: rows }, rows, box.height, box.rowPx);
  }
  matrix.atEnd = Boolean(matrix.free) && matrix.free.top + box.height / matrix.free.rowH >= rows - 0.5;
  return matrix.free;
}

/** The token that has no row yet, with what is to be said of it. */
function ghostOf(view, cursor) {
  const { b, facts, shell } = view;
  const { store: run, words } = shell;
  const count = piecesAt(run, b, cursor.k);
  if (!count) return null;
  const piece = run.pieces[b][count - 1];
  const token = labelOf(piece.text);
  const ended = cursor.ended && run.finished;
  const reason = ended ? run.finished.sequence_reasons[b] ?? run.finished.finish_reason : "stop";
  if (ended || piece.step < cursor.k - 1) {
    const key = words.has(`ghost.${reason}`) ? `ghost.${reason}` : "ghost.cancelled";
    return { token, ended: true, note: words.t(key, { token }) };
  }
  if (run.started.settings.cache !== "none") return { token, note: words.t("ghost", { token }) };
  return { token, note: words.t("ghost.none", { token, n: countOf(facts.step.context_len[b] + 1) }) };
}

/** Before there is a run: the empty matrix, drawn faintly. */
function paintEmpty(view, context) {
  const { theme, unit } = view.shell;
  const { box } = view.matrix;
  context.fillStyle = theme.card;
  context.fillRect(0, 0, box.w, box.h);
  const columns = columnLayout(new Array(30).fill(3), box.width);
  context.fillStyle = theme.emptyCell;
  const w = 3 * columns.cell - columns.separator;
  const h = box.rowPx - Math.round(2 * unit);
  for (let y = box.top, i = 0; y + box.rowPx < box.h - 6 * unit; y += box.rowPx, i++) {
    context.globalAlpha = Math.max(0.12, 0.75 - i * 0.03);
    for (let layer = 0; layer < 30; layer++) context.fillRect(box.x0 + columns.x[layer * 3], y, w, h);
  }
  context.globalAlpha = 1;
}

// ---- pointer and keys ---------------------------------------------------------------------------

export function wireMatrix(view) {
  const { shell, matrix } = view;
  const canvas = shell.n.matrix;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.left) * shell.dpr, (event.clientY - box.top) * shell.dpr];
  };
  canvas.addEventListener("wheel", (event) => {
    if (shell.store?.started && matrix.box) turn(view, event, at(event)[1]);
  }, { passive: false });
  wireDrag(view, at);
  canvas.addEventListener("pointerleave", () => {
    matrix.hoverLayer = -1;
    matrix.pointer = null;
    hideTip(shell);
    shell.invalidate("hover");
  });
  canvas.addEventListener("keydown", (event) => shell.store?.started && pressed(view, event));
}

/** The wheel zooms around the pointer; with shift it scrolls. */
function turn(view, event, y) {
  const { matrix } = view;
  const { box, free, numRows } = matrix;
  if (event.shiftKey && free) {
    const top = free.top + (event.deltaY || event.deltaX) / free.rowH;
    matrix.free = clampView({ ...free, top }, numRows, box.height, box.rowPx);
  } else {
    const factor = Math.exp(-event.deltaY * 0.0022);
    const next = zoomView(free, matrix.bands, numRows, box.height, box.rowPx, y - box.top, factor);
    if (!next && !free) return; // nothing to zoom out of: the page scrolls
    matrix.free = next;
  }
  event.preventDefault();
  view.shell.invalidate("view");
}

/** A drag scrolls, on the map at the right it jumps; a pointer that is not down points. */
function wireDrag(view, at) {
  const { shell, matrix } = view;
  const canvas = shell.n.matrix;
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (!shell.store?.started || event.pointerType === "touch") return;
    const [x, y] = at(event);
    canvas.setPointerCapture(event.pointerId);
    drag = { y, mini: x >= matrix.box.miniX - 4 * shell.unit, moved: false };
    if (drag.mini) jump(view, y);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = at(event);
    if (!drag) hoverMatrix(view, x, y, event);
    else if (drag.mini) jump(view, y);
    else if (drag.moved || Math.abs(y - drag.y) > 4 * shell.dpr) {
      if (!drag.moved) hideTip(shell);
      drag.moved = true;
      scrollBy(view, drag.y - y, y);
      drag.y = y;
    }
  });
  const stop = () => { drag = null; };
  canvas.addEventListener("pointerup", (event) => {
    if (event.pointerType === "touch") hoverMatrix(view, ...at(event), event);
    stop();
  });
  canvas.addEventListener("pointercancel", stop);
}

function pressed(view, event) {
  const { matrix } = view;
  const { box, free, bands, numRows } = matrix;
  const page = { PageDown: 0.8, PageUp: -0.8, ArrowDown: 0.08, ArrowUp: -0.08 }[event.key];
  const factor = { "+": 1.5, "-": 1 / 1.5 }[event.key];
  if (page) scrollBy(view, page * box.height, box.height / 2);
  else if (factor) matrix.free = zoomView(free, bands, numRows, box.height, box.rowPx, box.height / 2, factor);
  else if (event.key === "0" || event.key === "Escape") matrix.free = null;
  else return;
  event.preventDefault();
  view.shell.invalidate("view");
}

/** Scroll by pixels; from the whole-cache view this begins at readable rows around y. */
function scrollBy(view, pixels, y) {
  const { matrix } = view;
  const { box, numRows } = matrix;
  const free = matrix.free ?? (numRows * box.rowPx > box.height ? readableAt(matrix, y) : null);
  if (!free) return;
  const top = free.top + pixels / free.rowH;
  matrix.free = clampView({ ...free, top }, numRows, box.height, box.rowPx);
  view.shell.invalidate("view");
}

function readableAt(matrix, y) {
  const { box, bands, numRows } = matrix;
  const range = rowsUnder(bands, Math.max(0, Math.min(box.height - 1, y - box.top))) ?? [numRows - 1];
  const top = range[0] - (y - box.top) / box.rowPx;
  return clampView({ mode: "free", rowH: box.rowPx, top }, numRows, box.height, box.rowPx);
}

/** Show the rows at this place of the map at the right. */
function jump(view, y) {
  const { matrix, facts, shell } = view;
  const { box, numRows } = matrix;
  if (numRows * box.rowPx <= box.height) return;
  const row = ((y - box.top) / box.height) * Math.max(numRows, facts.reservedRows ?? 0);
  const rowH = matrix.free?.rowH ?? box.rowPx;
  const top = row - box.height / rowH / 2;
  matrix.free = clampView({ mode: "free", rowH, top }, numRows, box.height, box.rowPx);
  shell.invalidate("view");
}

// ---- what is pointed at -------------------------------------------------------------------------

/** Point at a place of the canvas, in device pixels: the row or cell under it says what it is. */
export function hoverMatrix(view, x, y, event) {
  const { shell, matrix, facts } = view;
  const { box, columns, bands } = matrix;
  if (!shell.store?.started || !columns || !facts) return;
  const range = rowsUnder(bands, y - box.top);
  if (!range || x > box.x0 + columns.used) {
    matrix.hoverLayer = -1;
    hideTip(shell);
    return;
  }
  const column = columnAt(columns, x - box.x0);
  const { lines, layer } = tipOf(view, range, column, x - box.x0);
  matrix.hoverLayer = layer;
  showTip(shell, lines, { left: event.clientX, width: 0, top: event.clientY - 14, bottom: event.clientY + 14 });
  showCross(shell.n.cross, matrix, range);
  matrix.pointer = [x, y, event];
  shell.invalidate("hover");
}

/** Lines of the tip for rows [first, stop), and the layer that they are of or -1. */
function tipOf(view, [first, stop], column, x) {
  const { shell, matrix, facts, b } = view;
  const { store: run, words } = shell;
  const { t } = words;
  const { columns } = matrix;
  const none = run.started.settings.cache === "none";
  if (!none && first >= facts.ends[b]) {
    const draft = keptAt(run, b, facts.k).drafts[first - facts.ends[b]] ?? "";
    return { lines: [t("tip.row", { token: labelOf(draft) }), t("tip.rejected")], layer: -1 };
  }
  const lines = stop - first > 1
    ? [t("tip.pooled", { first: countOf(first), last: countOf(stop - 1) })]
    : [t("tip.row", { token: labelOf(textOf(run, b, first)) }), t("tip.position", { n: countOf(first) })];
  if (column < 0 || none) {
    const layer = none ? -1 : layerAt(columns, x);
    if (layer < 0) return { lines, layer };
    return { lines: [t("tip.layer", { layer }), layerWords(layersOf(run.started)[layer], words)], layer };
  }
  const layer = columns.layerOf[column];
  const spec = layersOf(run.started)[layer];
  lines.push(t("tip.cell", { layer, head: columns.headOf[column] }), magnitudes(view, first, stop, column));
  lines.push(...lostLines(view, first, stop, column));
  const size = run.elementBytes;
  const cell = (spec.key_dim + spec.value_dim) * size;
  if (size) lines.push(t("tip.bytes", { cell: countOf(cell), row: countOf(run.rowBytes) }));
  if (layerWords(spec, words)) lines.push(layerWords(spec, words));
  if (first < rowsGone(facts.ends[b], spec.window)) lines.push(t("tip.gone"));
  return { lines, layer };
}

/** What has become of rows [first, stop), or of their cells in this column. */
function lostLines(view, first, stop, cell) {
  const { store: run, words } = view.shell;
  const { t } = words;
  const rows = run.rows[view.b];
  const { k } = view.facts;
  const evicted = evictedRanges(rows, first, stop, k).reduce((sum, [from, to]) => sum + to - from, 0);
  const lines = [];
  if (first < rows.found) lines.push(t("tip.found"));
  if (stop - first > 1) {
    if (evicted) lines.push(t("tip.evicted_some", { n: countOf(evicted), of: countOf(stop - first) }));
  } else if (evicted) lines.push(t("tip.evicted", { step: countOf(rows.goneAt[first]) }));
  else if (isCellGone(rows, first, cell, k)) {
    lines.push(t("tip.cell_gone", { step: countOf(rows.cells[first * rows.numCells + cell]) }));
  }
  return lines;
}

/** The outline of rows [first, stop), in CSS pixels. */
function showCross(cross, matrix, [first, stop]) {
  const { box, columns, bands } = matrix;
  const top = rowTop(bands, first);
  if (top === null) return;
  const band = bands.find((one) => first >= Math.floor(one.from) && first < one.to);
  cross.classList.add("on");
  cross.style.transform = `translate(${(box.x0 - 2) / box.dpr}px, ${(box.top + top) / box.dpr}px)`;
  cross.style.width = `${(columns.used + 4) / box.dpr}px`;
  cross.style.height = `${Math.max(2, ((stop - first) * band.rowH) / box.dpr)}px`;
}

function magnitudes(view, first, stop, column) {
  const { store: run, words } = view.shell;
  const store = run.sequences[view.b];
  if (stop > store.sampled || first < store.first) return words.t("tip.nosample");
  const most = (bytes) => {
    let value = 0;
    for (let row = first; row < stop; row++) value = Math.max(value, bytes[row * run.numColumns + column]);
    return magnitudeOf(value);
  };
  const shown = (value) => (value >= 100 ? value.toFixed(0) : value.toPrecision(3));
  return words.t("tip.magnitude", { k: shown(most(store.k)), v: shown(most(store.v)) });
}
