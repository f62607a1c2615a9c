// The bars of the memory page: numbers of bytes -> places in pixels.
//
// Pure functions; the width of a text is measured by whoever calls. Every text and every number comes from Python.

export const FONT = { plain: 13, small: 12 };
const HEIGHTS = [56, 34]; // of a bar alone, and of one of several
const GAP = 10; // between a label and its bar, and around a text in a part
const TOP = 20; // over a bar: the name of its ceiling
const UNDER = 20; // under a bar: the range of its estimates
const AXIS = 26;
const LEGEND = 22;
const NARROW = 520; // under this width a label stands over its bar

/** Places of everything. `bars` are Python's, `axis` {most, ticks}, `parts` name -> [label, colour, mark]; `measure(text,
 * size, bold)` is the width of a text. */
export function barLayout(bars, axis, parts, width, measure) {
  const narrow = width < NARROW;
  const labels = Math.max(...bars.flatMap((bar) => [measure(bar.label, FONT.plain, true), measure(bar.size, FONT.small)]));
  const left = narrow ? 2 : Math.ceil(Math.min(labels, width * 0.3)) + GAP + 4;
  const right = width - 2;
  const xOf = (bytes) => left + (bytes / axis.most) * (right - left);
  const barHeight = bars.length > 1 ? HEIGHTS[1] : HEIGHTS[0];
  const rowHeight = TOP + barHeight + UNDER + (narrow ? 18 : 0);
  const rows = bars.map((bar, i) => rowOf(bar, i * rowHeight + (narrow ? 18 : 0) + TOP, xOf, right, measure));
  const foot = rowHeight * bars.length;
  const ticks = ticksOf(axis.ticks, xOf, right, measure);
  const shown = Object.keys(parts).filter((part) => bars.some((bar) => bar.parts.some(([name, bytes]) => name === part && bytes)));
  const legend = legendOf(shown, parts, left, right, foot + AXIS + 6, measure);
  return { left, right, narrow, barHeight, labelWidth: left - GAP, rows, foot, ticks, legend: legend.items, height: legend.bottom };
}

/** One bar: its parts end to end, then its total, clear of the ceiling that would cross it out. */
function rowOf(bar, y, xOf, right, measure) {
  let bytes = 0;
  const parts = bar.parts.map(([name, size, text]) => {
    const x = xOf(bytes);
    bytes += size;
    const width = xOf(bytes) - x;
    return { name, x, width, text, fits: measure(text, FONT.plain) + GAP <= width };
  });
  const [low, high] = bar.spread.map(xOf);
  const ceiling = bar.ceiling === null ? null : xOf(bar.ceiling);
  const totalWidth = measure(bar.total_text, FONT.plain, true);
  let total = Math.max(high, xOf(bar.total)) + GAP;
  if (ceiling !== null && ceiling > total - GAP && ceiling < total + totalWidth + 4) total = ceiling + GAP;
  total = Math.min(total, right - totalWidth);
  const named = measure(bar.ceiling_text, FONT.small);
  const before = ceiling !== null && ceiling + 4 + named > right; // its name stands before its line where it would be cut
  return { y, parts, low, high, total, ceiling, ceilingAnchor: before ? "end" : "start" };
}

/** Ticks whose texts do not run into each other or over the edge. */
function ticksOf(ticks, xOf, right, measure) {
  let free = -Infinity;
  return ticks.map(([bytes, text]) => {
    const x = xOf(bytes);
    const half = measure(text, FONT.small) / 2;
    const middle = Math.max(x, half);
    const named = middle - half >= free && middle + half <= right;
    if (named) free = middle + half + 8;
    return { x, middle, text: named ? text : "" };
  });
}

/** Names of the parts, in as many lines as they take. */
function legendOf(shown, parts, left, right, top, measure) {
  let x = left;
  let y = top;
  const items = shown.map((part) => {
    const width = 18 + measure(parts[part][0], FONT.plain) + 16;
    if (x + width > right && x > left) [x, y] = [left, y + LEGEND];
    const item = { part, x, y };
    x += width;
    return item;
  });
  return { items, bottom: y + LEGEND };
}

/** The strokes of a part's mark in a tile of 7 pixels, as an SVG path; "" for a plain one. */
export function markPath(mark) {
  return { "/": "M-1 8L8 -1", "\\": "M-1 -1L8 8", "-": "M0 3.5H7", x: "M-1 8L8 -1M-1 -1L8 8", ".": "M2.5 3.5h2" }[mark] ?? "";
}
