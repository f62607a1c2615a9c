// The pictures of a race's time: both lanes as bars, and what they have taken together up to each token.
import { put } from "./elements.mjs";
import { axisTicks, niceCeil } from "./layout.mjs";
import { LANES, blocksOf, ratioSpread, valuesAt } from "./race.mjs";
import { shortOf, tagOfRow } from "./race_table.mjs";
import { axisWords, countOf, ratioOf } from "./words.mjs";

/** Where the bars stand on their canvas: {x, w} in device pixels. */
function barsOf(shell) {
  const x = Math.round(84 * shell.unit);
  return { x, w: shell.n.tracks.width - x - 1 };
}

/** The share of the race's time under a pointer on the bars. */
export function shareOfBars(shell, event) {
  const box = shell.n.tracks.getBoundingClientRect();
  const { x, w } = barsOf(shell);
  return Math.max(0, Math.min(1, ((event.clientX - box.left) * shell.dpr - x) / w));
}

export function paintTracks(view, moment) {
  const { shell, track } = view;
  const { n, theme, unit: u, words, store: race } = shell;
  const context = n.tracks.getContext("2d");
  const { width, height } = n.tracks;
  context.clearRect(0, 0, width, height);
  const bars = barsOf(shell);
  const barH = Math.round((height - 20 * u) / 2);
  const extent = Math.max(1, track?.finished.end_ns ?? 1);
  const xOf = (ns) => bars.x + (ns / extent) * bars.w;
  context.font = `600 ${11.5 * u}px ${theme.font}`;
  LANES.forEach((cache, i) => {
    const y = i * (barH + 3 * u);
    context.fillStyle = theme.mut;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillText(words.t(`lanes.bar.${cache}`), 0, y + barH / 2 + 0.5);
    context.fillStyle = theme.track;
    context.beginPath();
    context.roundRect(bars.x, y, bars.w, barH, 4 * u);
    context.fill();
    if (moment) drawBlocks(context, shell, blocksOf(race, cache, track), moment.t, xOf, y, barH);
  });
  if (!moment || !track.finished.end_ns) return; // a race that was stopped at once has no time to show
  drawTimeAxis(context, shell, extent, bars, xOf, 2 * barH + 3 * u, width);
  context.fillStyle = theme.text;
  context.fillRect(xOf(moment.t) - u, 0, Math.max(2, 2 * u), 2 * barH + 4 * u);
}

/** The blocks of one bar up to the time t. */
function drawBlocks(context, { theme, unit: u }, blocks, t, xOf, y, barH) {
  for (const block of blocks) {
    if (t <= block.from) break;
    const from = xOf(block.from);
    const to = xOf(Math.min(block.to, Math.max(block.from, t)));
    const gap = Math.min(1.5 * u, (xOf(block.to) - from) * 0.3);
    context.fillStyle = block.token === 0 ? theme.pre : t < block.to ? theme.new : theme.dec;
    context.globalAlpha = t < block.to ? 0.5 : 1;
    context.fillRect(from + gap / 2, y, Math.max(1, to - from - gap), barH);
  }
  context.globalAlpha = 1;
}

function drawTimeAxis(context, { theme, unit: u }, extent, bars, xOf, y, width) {
  const text = axisWords(extent);
  context.font = `${10.5 * u}px ${theme.font}`;
  context.textBaseline = "top";
  context.textAlign = "center";
  context.fillStyle = theme.mut;
  for (const tick of axisTicks(extent, bars.w, 110 * u)) {
    const half = context.measureText(text(tick)).width / 2;
    context.fillText(text(tick), Math.min(width - half, Math.max(half, xOf(tick))), y + 4 * u);
  }
}

/** What both lanes have taken together up to each token: the gap as it opens. */
export function paintRaceChart(view, moment) {
  const { shell, quantity } = view;
  const { n, theme, unit: u, store: race, words } = shell;
  const context = n.chart.getContext("2d");
  const { width: w, height: h } = n.chart;
  context.clearRect(0, 0, w, h);
  writeChartHead(view, moment);
  const count = moment ? Math.max(...LANES.map((cache) => race.costs[cache]?.length ?? 0)) : 0;
  if (!count) return;
  const lines = LANES.map((cache) => linesOf(race, quantity, cache));
  const most = Math.max(0, ...lines.flat().map((value) => value ?? 0));
  const left = 56 * u;
  const bottom = 17 * u;
  const top = niceCeil(most * 1.02);
  const xOf = (token) => left + ((token - 1) / Math.max(1, count - 1)) * (w - left - 8 * u);
  const yOf = (value) => h - bottom - (value / top) * (h - bottom - 10 * u);
  drawRaceGrid(context, shell, quantity, most ? top : 0, left, w, yOf);
  context.textBaseline = "bottom";
  context.textAlign = "left";
  context.fillText(words.t("lanes.chart.axis", { n: countOf(count) }), left, h);
  if (!most) {
    context.textAlign = "center";
    context.fillText(words.t("lanes.none.energy"), (left + w) / 2, h / 2);
    return;
  }
  lines.forEach((values, i) => {
    const none = LANES[i] === "none";
    drawLine(context, u, values, moment.token, xOf, yOf, none ? theme.pre : theme.new, none);
  });
  writeRatio(context, view, moment, xOf, yOf, w);
}

function linesOf(race, quantity, cache) {
  const count = race.costs[cache]?.length ?? 0;
  return Array.from({ length: count }, (_, i) => valuesAt(race, quantity, { [cache]: i + 1 }, true)[cache]);
}

function writeChartHead({ shell, quantity }, moment) {
  const { n, words, store: race } = shell;
  put(n.chartTitle, words.t(`lanes.chart.${quantity}`));
  put(n.chartTag, words.t(`tag.${tagOfRow(shell, quantity)}`));
  const spread = moment?.token && quantity === "ns" ? ratioSpread(race, moment.token) : null;
  const params = spread && { low: ratioOf(spread.low), high: ratioOf(spread.high), n: spread.num };
  put(n.chartNote, spread ? words.t("lanes.chart.spread", params) : "");
}

/** Lines at 0, a half and the whole of `top`; 0 where there is nothing to measure by. */
function drawRaceGrid(context, { theme, unit: u }, quantity, top, left, w, yOf) {
  context.font = `${10.5 * u}px ${theme.font}`;
  context.fillStyle = theme.mut;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.strokeStyle = theme.line;
  context.lineWidth = 1;
  for (const share of [0, 0.5, 1]) {
    const y = Math.round(yOf((top || 1) * share)) + 0.5;
    context.beginPath();
    context.moveTo(left, y);
    context.lineTo(w, y);
    context.stroke();
    if (share && top) context.fillText(shortOf(quantity, top * share), left - 5 * u, y);
  }
}

function drawLine(context, u, values, token, xOf, yOf, colour, dashed) {
  for (const [to, alpha] of [[values.length, 0.3], [token, 1]]) {
    context.beginPath();
    context.globalAlpha = alpha;
    context.strokeStyle = colour;
    context.lineWidth = 2 * u;
    context.setLineDash(dashed ? [6 * u, 3 * u] : []);
    values.slice(0, to).forEach((value, i) => context[i ? "lineTo" : "moveTo"](xOf(i + 1), yOf(value ?? 0)));
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

function writeRatio(context, { shell, quantity }, { token }, xOf, yOf, w) {
  const { store: race, theme, unit: u } = shell;
  if (!token) return;
  const found = valuesAt(race, quantity, { none: token, full: token }, true);
  if (found.ratio === null) return;
  const x = xOf(token);
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
  const y = Math.max(14 * u, (yOf(found.none) + yOf(found.full)) / 2);
  context.fillText(text, x + (x + room > w ? -8 : 8) * u, y);
}
