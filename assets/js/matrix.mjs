// The matrix on its canvas: a pyramid of pooled rows, and the drawing of one frame from it.
//
// Level L of the pyramid holds the greatest of each 2**L rows, so that a frame costs the same at 30 rows and at
// 32 000. It knows rows and columns, not steps or time. Brightness 0 means that no sample of the row has come.
import { levelFor } from "./layout.mjs";

const TILE_ROWS = 512;
const MAX_TILES = 40;
const GAMMA = 1.3; // most cells dim, the few large ones bright
const BELOW = 0.25; // a byte of brightness reaches this share of a column's range below it
const ABOVE = 0.75; // and this share above it, where the greatest of many rows lie
const NORM_ROWS = 256; // each column's contrast is set by its first rows, at most this many

/** An empty pyramid for rows of these columns. Rows before `first` have no sample; `redone`: how many of the changes to
 * rows that were sampled before it has seen. */
export function newPyramid(columns, palette, blank) {
  return {
    columns, palette, blank, first: 0, redone: 0, rows: 0, norm: null, normRows: 0, levels: [], palettes: [],
    tiles: new Map(), pixels: pixelColumns(columns),
  };
}

function pixelColumns(columns) {
  const map = new Int32Array(columns.used).fill(-1);
  for (let c = 0; c < columns.count; c++) {
    for (let x = 0; x < columns.cell - columns.separator; x++) map[columns.x[c] + x] = c;
  }
  return map;
}

/** Bring a pyramid up to the samples of a sequence: what has come, and what was sampled anew. */
export function fillRows(pyramid, bytes, { first, sampled, redone }) {
  if (!pyramid.rows) pyramid.first = first ?? 0;
  const from = Math.min(pyramid.rows || pyramid.first, ...redone.slice(pyramid.redone));
  pyramid.redone = redone.length;
  if (sampled > from) setRows(pyramid, bytes, from, sampled);
}

/** Take rows [from, to) of `bytes` [rows, columns]; what was there is replaced. */
export function setRows(pyramid, bytes, from, to) {
  if (to <= from) return;
  const { first } = pyramid;
  if (pyramid.normRows < NORM_ROWS && to - first > pyramid.normRows) {
    pyramid.normRows = Math.min(to - first, NORM_ROWS);
    pyramid.norm = contrast(bytes, pyramid.normRows, pyramid.columns.total, first);
    from = first;
    pyramid.tiles.clear();
    pyramid.palettes = [];
  }
  const { total, count, group } = pyramid.columns;
  const base = levelOf(pyramid, 0, to);
  for (let row = from; row < to; row++) {
    const out = row * count;
    for (let c = 0; c < count; c++) base[out + c] = 0;
    for (let c = 0; c < total; c++) {
      const value = pyramid.norm[c * 256 + bytes[row * total + c]];
      if (value > base[out + group[c]]) base[out + group[c]] = value;
    }
  }
  pyramid.rows = Math.max(pyramid.rows, to);
  markDirty(pyramid, 0, from, to);
  poolUp(pyramid, from);
}

function levelOf(pyramid, level, rows) {
  const need = rows * pyramid.columns.count;
  const held = pyramid.levels[level];
  if (held && held.length >= need) return held;
  const larger = new Uint8Array(Math.max(need, (held?.length ?? 0) * 2, 64 * pyramid.columns.count));
  if (held) larger.set(held);
  pyramid.levels[level] = larger;
  return larger;
}

function poolUp(pyramid, from) {
  const count = pyramid.columns.count;
  let rows = pyramid.rows;
  for (let level = 1; rows > 1; level++) {
    const below = pyramid.levels[level - 1];
    const belowRows = rows;
    from >>= 1;
    rows = (rows + 1) >> 1;
    const here = levelOf(pyramid, level, rows);
    for (let row = from; row < rows; row++) {
      const a = row * 2 * count;
      const b = row * 2 + 1 < belowRows ? a + count : a;
      const out = row * count;
      for (let c = 0; c < count; c++) here[out + c] = below[a + c] > below[b + c] ? below[a + c] : below[b + c];
    }
    markDirty(pyramid, level, from, rows);
  }
}

/** Look-up tables [column, byte] -> brightness 1 to 255: the 3rd to 97th percentile of a column's first rows (from
 * row `first` on) is its range, at least a factor of 1.4 wide so that noise is not blown up. */
export function contrast(bytes, rows, total, first = 0) {
  const norm = new Uint8Array(total * 256);
  const skip = rows > 8 ? 1 : 0; // the first position is far from all others in most models
  const values = new Uint8Array(rows - skip);
  for (let c = 0; c < total; c++) {
    for (let row = skip; row < rows; row++) values[row - skip] = bytes[(first + row) * total + c];
    const sorted = values.slice().sort();
    let low = sorted[Math.floor((sorted.length - 1) * 0.03)];
    let high = sorted[Math.ceil((sorted.length - 1) * 0.97)];
    const lack = 6 - (high - low);
    if (lack > 0) {
      low -= lack / 2;
      high += lack / 2;
    }
    const range = high - low;
    for (let u = 0; u < 256; u++) {
      const share = Math.max(0, Math.min(1, ((u - low) / range + BELOW) / (1 + BELOW + ABOVE)));
      norm[c * 256 + u] = 1 + Math.round(share * 254);
    }
  }
  return norm;
}

function markDirty(pyramid, level, from, to) {
  for (let t = Math.floor(from / TILE_ROWS); t * TILE_ROWS < to; t++) {
    const tile = pyramid.tiles.get(level * 1e6 + t);
    if (!tile) continue;
    tile.from = Math.min(tile.from, Math.max(from, t * TILE_ROWS));
    tile.to = Math.max(tile.to, Math.min(to, (t + 1) * TILE_ROWS));
  }
}

/** The canvas of a tile, brought up to date. */
function tileOf(pyramid, level, t) {
  const key = level * 1e6 + t;
  const palette = paletteFor(pyramid, level);
  let tile = pyramid.tiles.get(key);
  if (tile) {
    pyramid.tiles.delete(key); // the order of the map is that of last use
  } else {
    const canvas = document.createElement("canvas");
    canvas.width = pyramid.columns.used;
    canvas.height = TILE_ROWS;
    const rows = Math.min((t + 1) * TILE_ROWS, Math.ceil(pyramid.rows / 2 ** level));
    tile = { canvas, context: canvas.getContext("2d", { alpha: false }), first: t * TILE_ROWS, from: t * TILE_ROWS, to: rows };
    if (pyramid.tiles.size >= MAX_TILES) pyramid.tiles.delete(pyramid.tiles.keys().next().value);
  }
  pyramid.tiles.set(key, tile);
  if (tile.to > tile.from) {
    const image = paintRows(pyramid, pyramid.levels[level], tile.from, tile.to, palette);
    tile.context.putImageData(image, 0, tile.from - t * TILE_ROWS);
    tile.from = Infinity;
    tile.to = -Infinity;
  }
  return tile.canvas;
}

/** The colours of a level. Rows as they are: the range of a column's first rows is the whole ramp. The greatest of many
 * rows lie higher, so each level of pooling has a ramp of its own, set by its first texels. */
function paletteFor(pyramid, level) {
  const held = pyramid.palettes[level];
  const rows = Math.ceil(pyramid.rows / 2 ** level);
  if (held && (level === 0 || held.rows >= Math.min(rows, 64))) return held.colours;
  let low = 1 + (254 * BELOW) / (1 + BELOW + ABOVE);
  let high = 1 + (254 * (1 + BELOW)) / (1 + BELOW + ABOVE);
  if (level) {
    const values = pyramid.levels[level].slice(0, Math.min(rows, 64) * pyramid.columns.count).sort();
    low = Math.min(low + (high - low) * 0.6, values[Math.floor(values.length * 0.03)]);
    high = Math.max(high, values[Math.floor(values.length * 0.97)], low + 24);
    low = Math.max(low, values[Math.floor(values.length * 0.03)] - (high - low) * 0.35);
  }
  const colours = new Uint32Array(256);
  colours[0] = pyramid.palette[0];
  for (let i = 1; i < 256; i++) colours[i] = pyramid.palette[1 + Math.round(Math.max(0, Math.min(1, (i - low) / (high - low))) * 254)];
  if (held) for (const [key, tile] of pyramid.tiles) if (Math.floor(key / 1e6) === level) Object.assign(tile, { from: tile.first, to: Math.min(tile.first + TILE_ROWS, rows) });
  pyramid.palettes[level] = { rows: Math.min(rows, 64), colours };
  return colours;
}

function paintRows(pyramid, values, from, to, palette) {
  const { pixels, blank } = pyramid;
  const width = pixels.length;
  const count = pyramid.columns.count;
  const image = new ImageData(width, to - from);
  const out = new Uint32Array(image.data.buffer);
  for (let row = from, at = 0; row < to; row++) {
    const base = row * count;
    for (let x = 0; x < width; x++) out[at++] = pixels[x] < 0 ? blank : palette[values[base + pixels[x]]];
  }
  return image;
}

/** The greatest brightness of rows [from, to) of each texture column. */
export function pooled(pyramid, from, to) {
  const count = pyramid.columns.count;
  const most = new Uint8Array(count);
  const base = pyramid.levels[0];
  for (let row = from; row < Math.min(to, pyramid.rows); row++) {
    for (let c = 0; c < count; c++) if (base[row * count + c] > most[c]) most[c] = base[row * count + c];
  }
  return most;
}

/** Draw rows [from, to) (fractions allowed) so that a row is `rowH` high and `from` stands at y. Nothing outside the
 * rows that are given is shown: a texel at an end that holds others too is pooled again. */
export function drawRows(context, pyramid, from, to, x, y, rowH) {
  if (!pyramid.rows || to <= from) return;
  const level = Math.min(levelFor(rowH), pyramid.levels.length - 1);
  const size = 2 ** level;
  const first = Math.floor(from);
  const last = Math.ceil(to);
  const whole0 = Math.ceil(first / size);
  const whole1 = Math.floor(last / size);
  const yOf = (row) => y + (row - from) * rowH;
  context.imageSmoothingEnabled = rowH < 3 && rowH !== 1;
  if (whole1 <= whole0) {
    if (level) drawPooled(context, pyramid, level, first, last, x, yOf(first), yOf(last));
    return;
  }
  if (first < whole0 * size) drawPooled(context, pyramid, level, first, whole0 * size, x, yOf(first), yOf(whole0 * size));
  for (let t = Math.floor(whole0 / TILE_ROWS); t * TILE_ROWS < whole1; t++) {
    const a = Math.max(whole0, t * TILE_ROWS);
    const b = Math.min(whole1, (t + 1) * TILE_ROWS);
    const canvas = tileOf(pyramid, level, t);
    context.drawImage(canvas, 0, a - t * TILE_ROWS, canvas.width, b - a, x, yOf(a * size), canvas.width, (b - a) * size * rowH);
  }
  if (last > whole1 * size) drawPooled(context, pyramid, level, whole1 * size, last, x, yOf(whole1 * size), yOf(last));
}

let poolCanvas = null;
function drawPooled(context, pyramid, level, from, to, x, y0, y1) {
  if (to <= from || from >= pyramid.rows) return;
  const image = paintRows(pyramid, pooled(pyramid, from, to), 0, 1, paletteFor(pyramid, level));
  poolCanvas ??= document.createElement("canvas");
  if (poolCanvas.width !== image.width) poolCanvas.width = image.width;
  if (poolCanvas.height !== 1) poolCanvas.height = 1;
  poolCanvas.getContext("2d").putImageData(image, 0, 0);
  context.drawImage(poolCanvas, 0, 0, image.width, 1, x, y0, image.width, y1 - y0);
}

/** 256 colours between the stops (each [r, g, b]) as ABGR words; word 0 is that of a row without a sample. */
export function paletteOf(stops, empty) {
  const palette = new Uint32Array(256);
  for (let i = 1; i < 256; i++) {
    const place = ((i - 1) / 254) ** GAMMA * (stops.length - 1);
    const low = Math.min(stops.length - 2, Math.floor(place));
    const share = place - low;
    palette[i] = wordOf(stops[low].map((v, c) => v + (stops[low + 1][c] - v) * share));
  }
  palette[0] = wordOf(empty);
  return palette;
}

export function wordOf([r, g, b]) {
  return ((255 << 24) | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r)) >>> 0;
}
