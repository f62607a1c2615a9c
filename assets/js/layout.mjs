// Where things stand: pure functions from shapes and sizes to boxes. No canvas, no run, no clock.
//
// Lengths are device pixels unless a name says otherwise. Try it: node --test tests/js

/** Columns of the matrix: one a KV head of a layer, grouped by layer. `heads`: KV heads of each layer. A layer without
 * rows (a state, a layer that shares another's) gets a place of one column that holds none.
 *
 * Returns texture columns with their left edges and widths; where there are more columns than pixels, `group` says
 * which of them share one (the greatest is shown). `left` and `span` are those of each layer. */
export function columnLayout(heads, width) {
  const total = heads.reduce((sum, n) => sum + n, 0);
  const places = Math.max(1, heads.reduce((sum, n) => sum + Math.max(n, 1), 0));
  const layerOf = new Int32Array(total);
  const headOf = new Int32Array(total);
  const placeOf = new Int32Array(total);
  const firstPlace = [];
  let column = 0;
  let place = 0;
  heads.forEach((n, layer) => {
    firstPlace.push(place);
    for (let head = 0; head < n; head++, column++) {
      layerOf[column] = layer;
      headOf[column] = head;
      placeOf[column] = place + head;
    }
    place += Math.max(n, 1);
  });
  const gaps = Math.max(0, heads.length - 1);
  let gap = gaps ? Math.max(1, Math.min(Math.round(width / 110), Math.floor((width * 0.12) / gaps))) : 0;
  let cell = Math.floor((width - gap * gaps) / places);
  const group = new Int32Array(total);
  const pooled = cell < 1;
  const share = pooled ? Math.ceil(places / width) : 1;
  if (pooled) {
    gap = 0;
    cell = 1;
  } else if (gaps && places > heads.length) {
    const spare = width - cell * places - gap * gaps;
    gap += Math.min(Math.floor(spare / gaps), cell * 2);
  }
  for (let c = 0; c < total; c++) group[c] = pooled ? Math.floor(c / share) : c;
  const count = total ? group[total - 1] + 1 : 0;
  const xOf = (at, layer) => (pooled ? Math.floor(at / share) : at * cell + layer * gap);
  const x = new Int32Array(count);
  for (let c = 0; c < total; c++) x[group[c]] = pooled ? group[c] : xOf(placeOf[c], layerOf[c]);
  const left = heads.map((n, layer) => xOf(firstPlace[layer], layer));
  const span = heads.map((n, layer) => xOf(firstPlace[layer] + Math.max(n, 1) - 1, layer) + cell - left[layer]);
  const separator = pooled || cell < 4 ? 0 : Math.max(1, Math.round(cell / 8));
  const last = heads.length - 1;
  return {
    total, count, group, layerOf, headOf, heads, x, left, span, cell, gap, separator, pooled,
    used: pooled ? Math.max(count, 1) : heads.length ? left[last] + span[last] : 0,
  };
}

/** The layer under x, or -1 between two. */
export function layerAt(columns, x) {
  return columns.left.findIndex((left, layer) => x >= left && x < left + columns.span[layer]);
}

/** Rows at the top that have left a layer's window: the next query sees only the last `window` - 1. */
export function rowsGone(rows, window) {
  return window === null || window === undefined ? 0 : Math.max(0, rows - (window - 1));
}

/** The column under x, or -1 between two layers. */
export function columnAt(columns, x) {
  if (x < 0 || x >= columns.used || !columns.count) return -1;
  if (columns.pooled) return columns.group.indexOf(Math.floor(x));
  let low = 0;
  let high = columns.count - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (columns.x[middle] <= x) low = middle;
    else high = middle - 1;
  }
  return x >= columns.x[low] && x < columns.x[low] + columns.cell ? low : -1;
}

/** Bands of rows from top to bottom: {from, to, y, h, rowH}. `rowPx` is a readable row.
 *
 * While all rows fit they stand one below the other. When they do not, the first few and the newest stay readable and
 * those between share the space that is left: the whole cache at one glance. A free view is one evenly spaced band. */
export function rowBands(rows, height, rowPx, view) {
  if (rows <= 0) return [];
  if (view && view.mode === "free") {
    const top = Math.max(0, view.top);
    const to = Math.min(rows, top + height / view.rowH);
    return [{ from: top, to, y: 0, h: (to - top) * view.rowH, rowH: view.rowH, kind: "free" }];
  }
  const capacity = Math.max(3, Math.floor(height / rowPx));
  if (rows <= capacity) return [{ from: 0, to: rows, y: 0, h: rows * rowPx, rowH: rowPx, kind: "all" }];
  const head = Math.max(1, Math.min(5, Math.floor(capacity * 0.16)));
  const tail = Math.max(1, Math.floor(capacity * 0.42));
  const seam = Math.max(2, Math.round(rowPx * 0.22));
  const middle = rows - head - tail;
  const h = height - (head + tail) * rowPx - 2 * seam;
  const y = head * rowPx + seam;
  return [
    { from: 0, to: head, y: 0, h: head * rowPx, rowH: rowPx, kind: "head" },
    { from: head, to: head + middle, y, h, rowH: h / middle, kind: "middle" },
    { from: rows - tail, to: rows, y: y + h + seam, h: tail * rowPx, rowH: rowPx, kind: "tail" },
  ];
}

/** The rows under y as a half-open range (more than one where rows are under a pixel), or null. */
export function rowsUnder(bands, y) {
  for (const band of bands) {
    if (y < band.y || y >= band.y + band.h) continue;
    const place = band.from + (y - band.y) / band.rowH;
    if (band.rowH >= 1) {
      const row = Math.min(Math.ceil(band.to) - 1, Math.floor(place));
      return [row, row + 1];
    }
    const first = Math.floor(place);
    return [first, Math.max(first + 1, Math.min(Math.ceil(band.to), Math.ceil(place + 1 / band.rowH)))];
  }
  return null;
}

/** The y of a row's top edge, or null where it is not on screen. */
export function rowTop(bands, row) {
  for (const band of bands) {
    if (row >= Math.floor(band.from) && row < band.to) return band.y + (row - band.from) * band.rowH;
  }
  return null;
}

/** Level of the pyramid for rows of this height: its texels are at least one pixel high. */
export function levelFor(rowH) {
  return rowH >= 1 ? 0 : Math.ceil(Math.log2(1 / rowH) - 1e-9);
}

/** Keep a free view within the rows. Zoomed out to all of them it is no longer free: null. */
export function clampView(view, rows, height, rowPx) {
  if (!view || view.mode !== "free") return null;
  const least = Math.min(rowPx, height / Math.max(1, rows));
  if (view.rowH <= least * 1.0001) return null;
  const rowH = Math.min(view.rowH, rowPx * 3);
  const top = Math.max(0, Math.min(view.top, rows - height / rowH));
  return { mode: "free", rowH, top };
}

/** Zoom by a factor around a y of the present bands. */
export function zoomView(view, bands, rows, height, rowPx, y, factor) {
  const range = rowsUnder(bands, Math.max(0, Math.min(y, height - 1)));
  if (!range) return clampView(view, rows, height, rowPx);
  const free = view && view.mode === "free";
  if (!free && factor <= 1) return null;
  const rowH = (free ? view.rowH : Math.max(height / rows, Math.min(rowPx * 0.5, height / rows * 4))) * (free ? factor : 1);
  const place = free ? view.top + y / view.rowH : range[0] + 0.5;
  return clampView({ mode: "free", rowH, top: place - y / rowH }, rows, height, rowPx);
}

/** A round number of at least `value`: 1, 1.5, 2, 3, 5, 7 times a power of ten. */
export function niceCeil(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 1.5, 2, 3, 5, 7, 10]) if (value <= step * power * 1.0000001) return step * power;
  return 10 * power;
}

/** Time to x on the ribbon. The axis is true to scale; only where prefill would leave less than a quarter for decode is
 * its block drawn shorter, with a break mark that says so. */
export function timeScale(prefillEnd, extent, width, breakIt) {
  const share = extent > 0 ? prefillEnd / extent : 0;
  if (!breakIt || share <= 0.75 || share >= 1) {
    return { broken: false, extent, x: (t) => (t / extent) * width, t: (x) => (x / width) * extent };
  }
  const knee = width * 0.6;
  return {
    broken: true,
    extent,
    knee,
    x: (t) => (t <= prefillEnd ? (t / prefillEnd) * knee
      : knee + ((t - prefillEnd) / (extent - prefillEnd)) * (width - knee)),
    t: (x) => (x <= knee ? (x / knee) * prefillEnd
      : prefillEnd + ((x - knee) / (width - knee)) * (extent - prefillEnd)),
  };
}

/** How many neighbours share one bar, a power of two, so that a bar takes at least `least` pixels. */
export function groupSize(count, width, least) {
  let size = 1;
  while (count / size > width / least) size *= 2;
  return size;
}

/** Round ticks of an axis from 0 to extent, about one for each `every` pixels. */
export function axisTicks(extent, width, every) {
  const least = extent / Math.max(1, Math.floor(width / every));
  const power = 10 ** Math.floor(Math.log10(least));
  const step = power * [1, 2, 5, 10].find((n) => n * power >= least * 0.9999);
  const ticks = [];
  for (let i = 0; i * step <= extent * 1.0001; i++) ticks.push(i * step);
  return ticks;
}
