// One frame of the matrix card: axis, labels, rows, the token that has no row yet, the map at the right.
//
// It draws what it is given and asks nothing: every number comes in `s`. Lengths are device pixels; `u` is one unit of
// type (a CSS pixel at the base size, larger when projected).
import { drawFound, drawKept, drawRejected } from "./gone.mjs";
import { rowTop, axisTicks, rowsGone } from "./layout.mjs";
import { drawRows } from "./matrix.mjs";
import { drawMinimap } from "./minimap.mjs";

/** Boxes of the card's canvas. */
export function stageLayout(w, h, u) {
  const labelW = Math.round(Math.min(104 * u, w * 0.24));
  const miniW = Math.round(12 * u);
  const rowPx = Math.max(6, Math.round(15 * u));
  const x0 = labelW + Math.round(9 * u);
  const top = Math.round(19 * u);
  const ghostH = rowPx + Math.round(9 * u);
  const height = Math.max(rowPx * 3, h - top - ghostH);
  return {
    w, h, u, labelW, rowPx, x0, top, ghostH, height, miniW,
    miniX: w - miniW - 1,
    width: Math.max(20, w - x0 - miniW - Math.round(11 * u)),
  };
}

/** Draw the whole frame. */
export function drawStage(context, s) {
  const { box, theme } = s;
  context.fillStyle = theme.card;
  context.fillRect(0, 0, box.w, box.h);
  if (!s.columns) return;
  drawLayerAxis(context, s);
  if (s.recompute) drawRecomputed(context, s);
  else {
    if (s.bands.length === 1 && s.bands[0].kind === "all") drawReserved(context, s);
    for (const band of s.bands) drawBand(context, s, band);
    drawNewest(context, s);
    drawRowless(context, s);
  }
  drawGhost(context, s);
  drawMinimap(context, s);
}

function font(s, size, weight = 400) {
  return `${weight} ${Math.round(size * s.box.u * 10) / 10}px ${s.theme.font}`;
}

function drawLayerAxis(context, s) {
  const { box, columns, theme } = s;
  context.font = font(s, 10.5);
  context.fillStyle = theme.mut;
  context.textBaseline = "alphabetic";
  context.textAlign = "right";
  context.fillText(s.words.layer, box.labelW, box.top - Math.round(6 * box.u));
  const layers = columns.heads.length;
  const each = Math.max(1, Math.ceil((layers * 30 * box.u) / Math.max(1, columns.used)));
  const every = [1, 2, 5, 10, 20, 25, 50, 100, 200, 500].find((n) => n >= each) ?? 1000;
  for (let layer = 0; layer < layers; layer += every) {
    const x = box.x0 + columns.left[layer] + columns.span[layer] / 2;
    context.textAlign = "center";
    context.fillStyle = layer === s.hoverLayer ? theme.text : theme.mut;
    context.fillText(String(layer), x, box.top - Math.round(6 * box.u));
  }
}

function drawBand(context, s, band) {
  const { box, columns, theme } = s;
  const y = box.top + band.y;
  const slide = band.kind === "tail" || band.kind === "free" ? (1 - s.slide) * band.rowH : 0;
  context.save();
  context.beginPath();
  context.rect(0, y, box.w, band.h);
  context.clip();
  const from = slide ? Math.max(0, band.from - 1) : band.from;
  const at = y + slide - (band.from - from) * band.rowH;
  stampEmpty(context, s, at, (band.to - from) * band.rowH);
  const yOf = (row) => at + (row - from) * band.rowH;
  if (s.pyramid) drawRows(context, s.pyramid, from, keptEnd(s, band), box.x0, at, band.rowH);
  if (band.kind === "all" && s.slide < 1 && s.newRows) {
    context.fillStyle = theme.card;
    context.globalAlpha = 1 - s.slide;
    context.fillRect(box.x0, y + (s.rows - s.newRows) * band.rowH, columns.used, s.newRows * band.rowH);
    context.globalAlpha = 1;
  }
  drawGone(context, s, band, from, at);
  drawReveal(context, s, band, y);
  if (band.rowH >= 5 * box.u) separateRows(context, s, band, from, at);
  drawKept(context, s, band, from, yOf);
  drawRejected(context, s, band, from, yOf);
  drawPhases(context, s, band, from, at);
  drawLabels(context, s, band, from, at);
  context.restore();
}

/** Where the rows of a band end that are held: rejected drafts stand below them. */
function keptEnd(s, band) {
  return s.kept ? Math.min(band.to, s.rows) : band.to;
}

/** Cells in the colour of a row whose sample has not come. */
function stampEmpty(context, s, y, h) {
  const { columns, box, theme } = s;
  context.fillStyle = theme.emptyCell;
  if (columns.pooled) {
    context.fillRect(box.x0, y, columns.used, h);
    return;
  }
  for (let layer = 0; layer < columns.heads.length; layer++) {
    if (columns.heads[layer]) context.fillRect(box.x0 + columns.left[layer], y, columns.span[layer] - columns.separator, h);
  }
}

/** Rows that have left a layer's window: nearly wiped out, with a line where the window begins. */
function drawGone(context, s, band, from, at) {
  const { box, columns, theme } = s;
  s.layers.forEach((layer, i) => {
    const gone = Math.min(rowsGone(s.rows, layer.window), band.to);
    if (gone <= from || columns.pooled) return;
    const x = box.x0 + columns.left[i];
    const h = (gone - from) * band.rowH;
    context.fillStyle = theme.card;
    context.globalAlpha = 0.86;
    context.fillRect(x, at, columns.span[i], h);
    context.globalAlpha = 1;
    context.fillStyle = theme.read;
    if (gone < band.to) context.fillRect(x, at + h, columns.span[i] - columns.separator, Math.max(1, Math.round(1.5 * box.u)));
  });
}

/** Layers without rows: a block that stands for a state of constant size, or an outline with the layer whose rows are
 * read. Their height says nothing: neither grows. */
function drawRowless(context, s) {
  const { box, columns, theme } = s;
  if (columns.pooled) return;
  const h = Math.min(box.height, box.rowPx * 8);
  context.font = font(s, 10.5, 600);
  context.textAlign = "right";
  context.textBaseline = "middle";
  s.layers.forEach((layer, i) => {
    if (layer.num_kv_heads) return;
    const x = box.x0 + columns.left[i];
    const w = columns.span[i] - columns.separator;
    const state = layer.state_bytes > 0;
    context.fillStyle = state ? theme.dec : theme.emptyCell;
    context.globalAlpha = state ? 0.22 : 0.6;
    context.fillRect(x, box.top, w, h);
    context.globalAlpha = 1;
    context.setLineDash(state ? [] : [4 * box.u, 3 * box.u]);
    context.strokeStyle = state ? theme.dec : theme.mut;
    context.lineWidth = Math.max(1, Math.round(box.u));
    context.strokeRect(x + 0.5, box.top + 0.5, w - 1, h - 1);
    context.setLineDash([]);
    if (w < 11 * box.u) return;
    context.save();
    context.translate(x + w / 2, box.top + 6 * box.u);
    context.rotate(-Math.PI / 2);
    context.fillStyle = theme.text;
    context.fillText(fitted(context, s.words.rowless(layer), h - 10 * box.u), 0, 0);
    context.restore();
  });
}

/** Rows of a piece of the prompt that have just come: a bright wipe runs over them, all together. */
function drawReveal(context, s, band, y) {
  if (!(s.reveal < 1)) return;
  const from = Math.max(band.from, s.revealFrom);
  if (from >= band.to) return;
  const top = y + (from - band.from) * band.rowH;
  const h = (band.to - from) * band.rowH;
  context.fillStyle = s.theme.pre;
  context.globalAlpha = 0.75 * (1 - s.reveal);
  context.fillRect(s.box.x0, top, s.columns.used, h);
  context.globalAlpha = 1;
}

function separateRows(context, s, band, from, at) {
  const { box, columns, theme } = s;
  const line = Math.max(1, Math.round(1.6 * box.u * Math.min(1, band.rowH / box.rowPx)));
  context.fillStyle = theme.card;
  for (let row = Math.floor(from); row <= band.to; row++) {
    context.fillRect(box.x0, Math.round(at + (row - from) * band.rowH) - line, columns.used, line);
  }
}

/** The band at the left: solid beside rows of the prompt, one bead a row beside rows written in decode. */
function drawPhases(context, s, band, from, at) {
  const { box, theme } = s;
  const x = box.labelW + Math.round(3 * box.u);
  const w = Math.max(2, Math.round(3 * box.u));
  const yOf = (row) => at + (row - from) * band.rowH;
  const end = keptEnd(s, band);
  const split = Math.max(from, Math.min(end, s.promptLen));
  const found = Math.max(from, Math.min(split, s.kept?.found ?? 0));
  context.fillStyle = theme.pre;
  if (found > from) drawFound(context, s, x, w, yOf(from), yOf(found));
  if (split > found) context.fillRect(x, yOf(found), w, yOf(split) - yOf(found));
  if (split >= end) return;
  context.fillStyle = theme.dec;
  if (band.rowH < 4) {
    context.fillRect(x + w / 2, yOf(split), Math.max(1, w / 2), yOf(end) - yOf(split));
    return;
  }
  const gap = Math.max(1.5, band.rowH * 0.28);
  for (let row = split; row < end; row++) context.fillRect(x, yOf(row) + gap / 2, w, band.rowH - gap);
}

function drawLabels(context, s, band, from, at) {
  const { box, theme } = s;
  context.textAlign = "right";
  context.textBaseline = "middle";
  const right = box.labelW - Math.round(4 * box.u);
  if (band.rowH >= 6 * box.u) {
    const stride = Math.ceil((11.5 * box.u) / band.rowH);
    for (let row = Math.ceil(Math.floor(from) / stride) * stride; row < band.to; row += stride) {
      const rejected = row >= keptEnd(s, band);
      const fresh = s.newRows > 0 && row >= s.rows - s.newRows && !rejected;
      context.font = font(s, 11, fresh ? 650 : 400);
      context.fillStyle = fresh ? theme.new : row < s.promptLen || rejected ? theme.mut : theme.text;
      context.globalAlpha = s.kept?.evicted(row, row + 1).length ? 0.45 : 1;
      const y = at + (row + 0.5 - from) * band.rowH;
      const text = rejected ? s.kept.drafts[row - s.rows] ?? "" : s.textOf(row);
      context.fillText(fitted(context, labelOf(text), right - 4 * box.u), right, y);
    }
    context.globalAlpha = 1;
    return;
  }
  context.fillStyle = theme.mut;
  context.font = font(s, 10.5);
  if (band.kind === "middle") drawMiddleLabel(context, s, band, at, right);
  else drawRuler(context, s, band, at, right);
}

function drawMiddleLabel(context, s, band, at, right) {
  const { box, theme } = s;
  const y = at + band.h / 2;
  const ranges = s.kept?.evicted(Math.ceil(band.from), Math.floor(band.to)) ?? [];
  const evicted = ranges.reduce((sum, [first, stop]) => sum + stop - first, 0);
  const per = band.rowH < 1 ? Math.round(1 / band.rowH) : 0;
  const lines = s.words.middle(band.to - band.from - evicted, per, evicted);
  const lineH = 13 * box.u;
  if (band.h < lineH * (lines.length + 1)) lines.length = 1;
  lines.forEach((line, i) => {
    context.fillText(fitted(context, line, right - 2 * box.u), right, y + (i - (lines.length - 1) / 2) * lineH);
  });
  const room = (band.h - (lines.length + 1.5) * lineH) / 2;
  if (room > lineH * 1.2) {
    context.globalAlpha = 0.7;
    for (const side of [-1, 1]) {
      const tickY = y + side * (band.h / 2 - room / 2);
      const row = Math.round(band.from + (tickY - at) / band.rowH);
      context.fillText(s.words.position(row), right, tickY);
    }
    context.globalAlpha = 1;
  }
  context.strokeStyle = theme.line;
}

function drawRuler(context, s, band, at, right) {
  const span = band.to - band.from;
  const ticks = axisTicks(span, band.h, 40 * s.box.u);
  const step = Math.max(1, Math.round(ticks[1] ?? span));
  for (let row = Math.ceil(band.from / step) * step; row < band.to; row += step) {
    const y = at + (row - band.from) * band.rowH;
    if (y < at + 6 * s.box.u || y > at + band.h - 6 * s.box.u) continue;
    context.fillText(s.words.position(row), right, y);
  }
}

/** Rows that are reserved but not in use, while there is room to show them. */
function drawReserved(context, s) {
  const { box, columns, theme } = s;
  const from = s.rows;
  const most = Math.min(s.reservedRows, Math.floor(box.height / box.rowPx));
  if (most <= from) return;
  context.globalAlpha = 0.35;
  context.fillStyle = theme.emptyCell;
  for (let row = from; row < most; row++) {
    const y = box.top + row * box.rowPx;
    for (let layer = 0; layer < columns.heads.length && !columns.pooled; layer++) {
      context.fillRect(box.x0 + columns.left[layer], y, columns.span[layer] - columns.separator, box.rowPx - Math.round(2 * box.u));
    }
  }
  context.globalAlpha = 1;
  if (most - from < 3) return;
  context.fillStyle = theme.mut;
  context.font = font(s, 10.5);
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillText(s.words.reserved, box.labelW - Math.round(4 * box.u), box.top + ((from + 2 + most) / 2) * box.rowPx);
}

/** The row that this step has written: outlined, and tinted in the colour of what is new. */
function drawNewest(context, s) {
  const { box, columns, theme } = s;
  if (!s.newRows || s.newRows > 8 || !s.bands.length || !columns.count) return;
  const y = rowTop(s.bands, s.rows - s.newRows);
  if (y === null) return;
  const band = s.bands[s.bands.length - 1];
  const h = Math.max(3, s.newRows * band.rowH);
  const slide = band.kind === "tail" || band.kind === "free" ? (1 - s.slide) * band.rowH : 0;
  const line = Math.max(1, Math.round(1.5 * box.u));
  const top = box.top + y + slide - line;
  context.globalAlpha = 0.2;
  context.fillStyle = theme.new;
  for (let layer = 0; layer < columns.heads.length; layer++) {
    if (columns.heads[layer]) context.fillRect(box.x0 + columns.left[layer], top + line, columns.span[layer], h - line);
  }
  context.globalAlpha = 1;
  context.strokeStyle = theme.new;
  context.lineWidth = line;
  context.strokeRect(box.x0 - line * 1.5, top - line / 2 + 0.5, columns.used + line * 3, h + line);
}

/** The token that was just given: it stands outside the matrix until the next step writes its row. */
function drawGhost(context, s) {
  const { box, columns, theme } = s;
  if (!s.ghost) return;
  const last = s.recompute ? null : s.bands[s.bands.length - 1];
  const end = last ? last.y + last.h : box.height;
  const y = Math.round(box.top + Math.min(end, box.height) + 6 * box.u) + 0.5;
  const h = box.rowPx - Math.round(1 * box.u);
  context.setLineDash([4 * box.u, 3 * box.u]);
  context.strokeStyle = s.ghost.ended ? theme.mut : theme.new;
  context.lineWidth = Math.max(1, Math.round(box.u));
  context.globalAlpha = s.ghost.ended ? 0.5 : 0.9 * s.pop;
  context.strokeRect(box.x0 - 1.5, y, columns.used + 3, h);
  context.setLineDash([]);
  context.globalAlpha = s.pop;
  context.textBaseline = "middle";
  context.textAlign = "right";
  context.font = font(s, 11, 650);
  context.fillStyle = s.ghost.ended ? theme.mut : theme.new;
  const right = box.labelW - Math.round(4 * box.u);
  context.fillText(fitted(context, labelOf(s.ghost.token), right - 4 * box.u), right, y + h / 2 + 0.5);
  context.textAlign = "left";
  context.font = font(s, 11);
  context.fillStyle = s.ghost.ended ? theme.mut : theme.text;
  context.fillText(fitted(context, s.ghost.note, columns.used - 16 * box.u), box.x0 + 8 * box.u, y + h / 2 + 0.5);
  context.globalAlpha = 1;
}

/** Without a cache: the rows that this step computed, and threw away again. Outlines only: nothing is held. */
function drawRecomputed(context, s) {
  const { box, columns, theme } = s;
  for (const band of s.bands) {
    const y = box.top + band.y;
    context.save();
    context.beginPath();
    context.rect(0, y, box.w, band.h);
    context.clip();
    context.fillStyle = theme.pre;
    const done = (s.recompute.share ?? 0) * columns.heads.length; // layers computed so far, where a step is on
    for (let layer = 0; layer < columns.heads.length; layer++) {
      const lit = Math.max(0, Math.min(1, done - layer));
      context.globalAlpha = 0.08 + 0.72 * Math.max(s.recompute.flash, 0.62 * lit);
      context.fillRect(box.x0 + columns.left[layer], y, columns.span[layer] - columns.separator, band.h);
    }
    context.globalAlpha = 1;
    if (band.rowH >= 5 * box.u) {
      separateRows(context, s, band, band.from, y);
      outlineCells(context, s, band, y);
    }
    drawPhases(context, s, band, band.from, y);
    drawLabels(context, s, band, band.from, y);
    context.restore();
  }
  if (!s.recompute.note) return;
  context.font = font(s, 12, 600);
  context.textAlign = "center";
  context.textBaseline = "middle";
  const middle = s.bands.find((band) => band.kind === "middle") ?? s.bands[0];
  if (!middle) return;
  // On a narrow screen its words stand in several lines.
  const room = columns.used - 4 * box.u;
  const widthOf = (text) => context.measureText(text).width + 28 * box.u;
  const lines = widthOf(s.recompute.note) <= room ? [s.recompute.note]
    : wrapped(context, s.recompute.note, room - 28 * box.u);
  const w = Math.max(...lines.map(widthOf));
  const h = (12 + 16 * lines.length) * box.u;
  const x = box.x0 + columns.used / 2;
  const y = box.top + Math.max(16 * box.u, middle.y + middle.h / 2); // below the layers' numbers
  context.fillStyle = theme.card;
  context.beginPath();
  context.roundRect(x - w / 2, y - h / 2, w, h, 8 * box.u);
  context.fill();
  context.strokeStyle = theme.pre;
  context.lineWidth = Math.max(1, box.u);
  context.stroke();
  context.fillStyle = theme.text;
  lines.forEach((text, i) => context.fillText(text, x, y + 16 * box.u * (i - (lines.length - 1) / 2) + 0.5));
}

function outlineCells(context, s, band, y) {
  const { box, columns, theme } = s;
  context.strokeStyle = theme.pre;
  context.globalAlpha = 0.45;
  context.lineWidth = 1;
  for (let row = Math.floor(band.from); row < band.to; row++) {
    const top = Math.round(y + (row - band.from) * band.rowH) + 0.5;
    for (let layer = 0; layer < columns.heads.length; layer++) {
      const w = columns.span[layer] - columns.separator;
      context.strokeRect(box.x0 + columns.left[layer] + 0.5, top, w - 1, band.rowH - Math.round(2 * box.u) - 1);
    }
  }
  context.globalAlpha = 1;
}

/** A token as a label: white space made visible, control characters left out, one line. */
export function labelOf(text) {
  const shown = text.replace(/\r?\n/g, "⏎").replace(/\t/g, "⇥").replace(/[\u0000-\u001f\u007f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "");
  const trimmed = shown.replace(/^ +/, "");
  return trimmed || "␣".repeat(Math.min(4, shown.length)) || "·";
}

/** A text in lines no wider than `width`, broken between words or Chinese characters. */
function wrapped(context, text, width) {
  const lines = [""];
  for (const word of text.split(/(?<=[ ，·])|(?=[\u4e00-\u9fff])/)) {
    const longer = lines[lines.length - 1] + word;
    if (lines[lines.length - 1] && context.measureText(longer.trimEnd()).width > width) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines.map((line) => line.trim());
}

const fittedCache = new Map();

function fitted(context, text, width) {
  const key = `${context.font}|${Math.round(width)}|${text}`;
  const held = fittedCache.get(key);
  if (held !== undefined) return held;
  let shown = text;
  if (context.measureText(text).width > width) {
    const parts = [...text];
    let keep = Math.min(parts.length, 400);
    while (keep > 1 && context.measureText(parts.slice(0, keep).join("") + "…").width > width) keep--;
    shown = parts.slice(0, keep).join("") + "…";
  }
  if (fittedCache.size > 4000) fittedCache.clear();
  fittedCache.set(key, shown);
  return shown;
}
