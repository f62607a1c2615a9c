// The phase ribbon: one wide block while the prompt is read, then a tick for each token, on one time axis.
//
// It draws the first k steps of a run and nothing that comes after them. Lengths are device pixels.
import { axisTicks, groupSize } from "./layout.mjs";
import { stepEnd } from "./player.mjs";

/** Index of the first decode step among the first k, or k. */
export function firstDecode(run, k) {
  let i = 0;
  while (i < k && run.steps[i].phase === "prefill") i++;
  return i;
}

/** Blocks of the decode steps [from, to): neighbours share one where a step is under `least` pixels. Groups are
 * aligned, so that a new step never moves the older ones. */
export function decodeBlocks(run, from, to, scale, least) {
  if (to <= from) return { size: 1, blocks: [] };
  const start = run.steps[from].start_ns - run.started.accepted_ns;
  const size = groupSize(to - from, scale.x(stepEnd(run, to - 1)) - scale.x(start), least);
  const blocks = [];
  for (let i = from; i < to; i += size) {
    const last = Math.min(to, i + size) - 1;
    blocks.push({
      first: i, last,
      x0: scale.x(run.steps[i].start_ns - run.started.accepted_ns),
      x1: scale.x(stepEnd(run, last)),
    });
  }
  return { size, blocks };
}

/** Draw the ribbon. `s`: {w, h, u, run, k, t, scale, theme, over, hover, axis(ns)} */
export function drawRibbon(context, s) {
  const { w, h, u, theme, run, k, scale } = s;
  const top = Math.round(1 * u);
  const barH = Math.round(h - 17 * u);
  context.clearRect(0, 0, w, h);
  context.fillStyle = theme.track;
  roundBar(context, 0, top, w, barH, 6 * u);
  if (run.started) {
    const first = firstDecode(run, k);
    drawPrefill(context, s, first, top, barH);
    drawDecode(context, s, first, top, barH);
    drawAxis(context, s, top + barH);
    if (scale.broken) drawBreak(context, s, top, barH);
    drawHead(context, s, top, barH);
  }
}

function roundBar(context, x, y, w, h, r) {
  if (w <= 0) return;
  context.beginPath();
  context.roundRect(x, y, w, h, Math.min(r, w / 2));
  context.fill();
}

function drawPrefill(context, s, first, top, barH) {
  const { run, scale, theme, u } = s;
  const begin = run.steps.length ? scale.x(Math.max(0, run.steps[0].start_ns - run.started.accepted_ns)) : 0;
  const done = first ? scale.x(stepEnd(run, first - 1)) : begin;
  context.fillStyle = theme.pre;
  roundBar(context, begin, top, Math.max(first ? 2 : 0, done - begin), barH, 6 * u);
  if (first === s.k && !gaveToken(run, s.k)) drawRunning(context, s, done, top, barH);
  context.fillStyle = theme.card;
  context.globalAlpha = first > 40 ? 0.3 : 0.55;
  for (let i = 1; i < first && first * 4 * u < done - begin; i++) {
    const x = scale.x(run.steps[i].start_ns - run.started.accepted_ns);
    context.fillRect(Math.round(x), top + 3 * u, Math.max(1, Math.round(u)), barH - 6 * u);
  }
  context.globalAlpha = 1;
}

function gaveToken(run, k) {
  return k > 0 && run.steps[k - 1].token_ids.some((ids) => ids.length > 0);
}

/** The step that is on at this moment: as far as time has come, paler, since nothing of it is known yet. */
function drawRunning(context, s, from, top, barH) {
  if (s.over) return;
  context.globalAlpha = 0.38;
  roundBar(context, from + s.u, top, s.scale.x(s.t) - from - s.u, barH, 3 * s.u);
  context.globalAlpha = 1;
}

function drawDecode(context, s, first, top, barH) {
  const { run, k, scale, theme, u } = s;
  const { blocks } = decodeBlocks(run, first, k, scale, 3.2 * u);
  for (const block of blocks) {
    const newest = block.last === k - 1;
    const width = block.x1 - block.x0;
    const gap = Math.min(1.5 * u, width * 0.3);
    context.fillStyle = newest ? theme.new : theme.dec;
    roundBar(context, block.x0 + gap / 2, top, Math.max(1, width - gap), barH, 3 * u);
    if (block.first <= s.hover && s.hover <= block.last) {
      context.strokeStyle = theme.text;
      context.lineWidth = Math.max(1, u);
      context.strokeRect(block.x0 + gap / 2, top + 0.5, Math.max(1, width - gap), barH - 1);
    }
  }
  context.fillStyle = theme.dec;
  if (gaveToken(run, k)) drawRunning(context, s, scale.x(stepEnd(run, k - 1)), top, barH);
}

function drawAxis(context, s, y) {
  const { w, u, scale, theme } = s;
  context.font = `${Math.round(10.5 * u * 10) / 10}px ${theme.font}`;
  context.textBaseline = "top";
  context.fillStyle = theme.mut;
  context.strokeStyle = theme.line;
  const ticks = scale.broken
    ? [0, scale.t(scale.knee), scale.extent]
    : axisTicks(scale.extent, w, 90 * u);
  let free = -Infinity;
  for (const tick of ticks) {
    const x = Math.min(w - 0.5, scale.x(tick));
    context.fillRect(Math.round(Math.min(x, w - 1)), y, Math.max(1, Math.round(u)), 3 * u);
    const text = s.axis(tick);
    const half = context.measureText(text).width / 2;
    const at = Math.max(half, Math.min(w - half, x));
    if (at - half < free) continue;
    context.textAlign = "center";
    context.fillText(text, at, y + 4 * u);
    free = at + half + 8 * u;
  }
}

function drawBreak(context, s, top, barH) {
  const { u, theme, scale } = s;
  const x = scale.knee * 0.93;
  context.fillStyle = theme.bg;
  context.beginPath();
  context.moveTo(x, top - 1);
  context.lineTo(x + 6 * u, top - 1);
  context.lineTo(x + 2 * u, top + barH + 1);
  context.lineTo(x - 4 * u, top + barH + 1);
  context.fill();
}

function drawHead(context, s, top, barH) {
  const { u, theme, scale, w } = s;
  const x = Math.max(u, Math.min(w - u, scale.x(s.t)));
  context.fillStyle = theme.text;
  context.fillRect(x - u, top - 1, Math.max(2, 2 * u), barH + 2);
}
