// Time of each step, and the bytes of the cache that it read, below one another on one axis of steps.
//
// It draws the first k steps and nothing after them. Where a bar is too thin for one step it stands for a group: light
// up to the slowest, solid up to the fastest. Lengths are device pixels.
import { groupSize, niceCeil } from "./layout.mjs";
import { firstDecode } from "./ribbon.mjs";

const HEAD = 15; // units above the bars, where the first token's time stands

/** Bars of the decode steps: {size, slot, bars: [{first, last, least, most, read}]}, times in ns. */
export function chartBars(run, from, to, slots, width, least) {
  const size = groupSize(Math.max(1, slots), width, least);
  const bars = [];
  for (let i = from; i < to; i += size) {
    const last = Math.min(to, i + size) - 1;
    let low = Infinity;
    let high = 0;
    let read = 0;
    for (let j = i; j <= last; j++) {
      const ns = run.steps[j].end_ns - run.steps[j].start_ns;
      if (ns < low) low = ns;
      if (ns > high) high = ns;
      if ((run.steps[j].kv_bytes_read ?? 0) > read) read = run.steps[j].kv_bytes_read;
    }
    bars.push({ first: i, last, least: low, most: high, read });
  }
  return { size, slot: width / Math.ceil(Math.max(1, slots) / size), bars };
}

/** Top of the time axis: round, above most bars; a rare bar far above it is cut and marked. */
export function chartTop(bars) {
  if (!bars.length) return 1;
  const sorted = bars.map((bar) => bar.most).sort((a, b) => a - b);
  const typical = sorted[Math.floor((sorted.length - 1) / 2)];
  return niceCeil(Math.min(sorted[sorted.length - 1], typical * 3) * 1.05);
}

/** Where everything stands: used to draw and to find what is under the pointer. */
export function chartLayout(s) {
  const { run, k, w, h, u } = s;
  const first = firstDecode(run, k);
  const left = Math.round(38 * u);
  const bytesH = Math.round(Math.max(20 * u, h * 0.24));
  const axisH = Math.round(14 * u);
  const timeH = h - bytesH - axisH - Math.round(7 * u);
  const preW = Math.round(14 * u);
  const x0 = left + preW + Math.round(8 * u);
  const width = w - x0 - Math.round(2 * u);
  const decode = k - first;
  const slots = s.ended ? decode : Math.max(decode, (run.started?.settings.new_tokens ?? 1) - 1);
  const data = chartBars(run, first, k, slots, width, 2.6 * u);
  data.slot = Math.min(data.slot, 22 * u);
  const bytesY = timeH + Math.round(7 * u);
  return { ...data, first, left, preW, x0, width, timeH, bytesH, axisH, bytesY, top: chartTop(data.bars) };
}

/** Draw it. `s`: {w, h, u, run, k, ended, theme, hover, ms(ns), seconds(ns), mib(bytes), words, ttftNs, kShare} */
export function drawChart(context, s) {
  const { w, h, u, theme } = s;
  context.clearRect(0, 0, w, h);
  context.font = `${Math.round(10.5 * u * 10) / 10}px ${theme.font}`;
  if (!s.run.started) return;
  const g = chartLayout(s);
  drawGrid(context, s, g);
  drawFirst(context, s, g);
  drawBars(context, s, g);
  drawBytes(context, s, g);
  context.fillStyle = theme.mut;
  context.textBaseline = "bottom";
  context.textAlign = "left";
  context.fillText(s.words.steps(g), g.left, h);
}

function drawGrid(context, s, g) {
  const { u, theme, w } = s;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const share of g.timeH > 58 * u ? [0.5, 1] : [1]) {
    const y = Math.round(g.timeH - share * (g.timeH - HEAD * u)) + 0.5;
    context.strokeStyle = theme.line;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(g.x0, y);
    context.lineTo(w, y);
    context.stroke();
    context.fillStyle = theme.mut;
    if (g.bars.length) context.fillText(s.ms(g.top * share), g.left - 4 * u, y);
  }
}

/** The first token: its bar is cut, its true height stands beside it. */
function drawFirst(context, s, g) {
  const { u, theme } = s;
  if (s.ttftNs === null) return;
  const y = 2 * u;
  context.fillStyle = theme.pre;
  context.beginPath();
  context.roundRect(g.left, y, g.preW, g.timeH - y, [3 * u, 3 * u, 0, 0]);
  context.fill();
  if (g.bars.length && s.ttftNs > g.top) {
    context.fillStyle = theme.card;
    const cut = y + 14 * u;
    context.beginPath();
    context.moveTo(g.left - 2 * u, cut + 5 * u);
    context.lineTo(g.left + g.preW + 2 * u, cut);
    context.lineTo(g.left + g.preW + 2 * u, cut + 4 * u);
    context.lineTo(g.left - 2 * u, cut + 9 * u);
    context.fill();
  }
  context.fillStyle = theme.text;
  context.textAlign = "left";
  context.textBaseline = "top";
  context.fillText(s.seconds(s.ttftNs), g.left + g.preW + 4 * u, y);
}

function drawBars(context, s, g) {
  const { u, theme, k } = s;
  const gap = Math.min(2 * u, g.slot * 0.28);
  const yOf = (ns) => g.timeH - Math.min(1, ns / g.top) * (g.timeH - HEAD * u);
  g.bars.forEach((bar, i) => {
    const x = g.x0 + i * g.slot;
    const newest = bar.last === k - 1;
    context.fillStyle = newest ? theme.new : theme.dec;
    if (g.size > 1) {
      context.globalAlpha = 0.45;
      context.fillRect(x, yOf(bar.most), g.slot - gap, g.timeH - yOf(bar.most));
      context.globalAlpha = 1;
    }
    const solid = g.size > 1 ? bar.least : bar.most;
    context.fillRect(x, yOf(solid), g.slot - gap, g.timeH - yOf(solid));
    if (bar.most > g.top * 1.001) {
      context.fillStyle = theme.card;
      context.fillRect(x - 0.5, yOf(g.top) + 4 * u, g.slot - gap + 1, 2 * u);
    }
    if (bar.first <= s.hover && s.hover <= bar.last) {
      context.strokeStyle = theme.text;
      context.lineWidth = Math.max(1, u);
      context.strokeRect(x - 0.5, yOf(bar.most), g.slot - gap + 1, g.timeH - yOf(bar.most));
    }
  });
}

function drawBytes(context, s, g) {
  const { u, theme, w } = s;
  const most = g.bars.reduce((m, bar) => Math.max(m, bar.read), 0);
  const base = g.bytesY + g.bytesH;
  context.strokeStyle = theme.line;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(g.left, base + 0.5);
  context.lineTo(w, base + 0.5);
  context.moveTo(g.left, g.timeH + 0.5);
  context.lineTo(w, g.timeH + 0.5);
  context.stroke();
  if (!most) return;
  const top = niceCeil(most * 1.02);
  const gap = Math.min(2 * u, g.slot * 0.28);
  g.bars.forEach((bar, i) => {
    const h = (bar.read / top) * (g.bytesH - 3 * u);
    const x = g.x0 + i * g.slot;
    context.fillStyle = theme.v;
    context.fillRect(x, base - h, g.slot - gap, h * (1 - s.kShare));
    context.fillStyle = theme.k;
    context.fillRect(x, base - h * s.kShare, g.slot - gap, h * s.kShare);
  });
  context.fillStyle = theme.mut;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillText("KV", g.left - 4 * u, base - g.bytesH / 2);
}

/** The steps under x as [first, last], or null. */
export function chartAt(g, x) {
  if (x >= g.left && x < g.left + g.preW) return [0, g.first - 1];
  const bar = g.bars[Math.floor((x - g.x0) / g.slot)];
  return x >= g.x0 && bar ? [bar.first, bar.last] : null;
}
