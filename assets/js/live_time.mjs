// Time in the live view: the ribbon, the chart of the steps below it, and what a pointer on either tells.
import { chartAt, chartLayout, drawChart } from "./chart.mjs";
import { hideTip, showTip } from "./controls.mjs";
import { put } from "./elements.mjs";
import { niceCeil, timeScale } from "./layout.mjs";
import { cursorOf, runEnd, seek, stepEnd, stepsAt } from "./player.mjs";
import { drawRibbon, firstDecode } from "./ribbon.mjs";
import { copiedAt, isOver, layersOf, newRun, readAt } from "./run.mjs";
import { rejectedAt } from "./rows.mjs";
import { labelOf } from "./stage.mjs";
import { axisWords, countOf, sizeOf, timeOf, timeParts } from "./words.mjs";

/** Both axes of time. `extent`: end of the ribbon's, in ns; `scale`: of timeScale; `chart`: what was drawn last;
 * `hover`: the step that is pointed at, or -1. */
export function newTimes() {
  return { extent: 1e9, scale: null, chart: null, hover: -1 };
}

/** The end of the ribbon's axis: the end of a run that is over; while it goes on a round time beyond the present. */
function ribbonExtent({ extent }, run, t) {
  if (isOver(run)) return Math.max(1, runEnd(run));
  return Math.max(niceCeil(t * 1.12), 1e9, extent > t * 1.02 && extent < t * 40 ? extent : 0);
}

export function paintRibbon(view, cursor, t) {
  const { shell, times } = view;
  const { n, store: run, theme, unit } = shell;
  const context = n.ribbon.getContext("2d");
  const s = {
    w: n.ribbon.width, h: n.ribbon.height, u: unit, theme, run: run ?? newRun(), k: cursor.k, t, over: cursor.ended,
    hover: times.hover, axis: axisWords(times.extent),
  };
  if (!run?.started) {
    drawRibbon(context, { ...s, scale: timeScale(0, 1e9, s.w, false) });
    put(n.pre, "");
    put(n.dec, "");
    return;
  }
  const first = firstDecode(run, cursor.k);
  times.extent = ribbonExtent(times, run, t);
  const all = isOver(run) ? firstDecode(run, run.steps.length) : 0;
  const knee = all || first ? stepEnd(run, (all || first) - 1) : 0;
  times.scale = timeScale(knee, times.extent, s.w, isOver(run) && run.steps.length - all > 3);
  drawRibbon(context, { ...s, scale: times.scale });
}

export function paintChart(view, cursor) {
  const { shell, times, sum } = view;
  const { n, store: run, theme, unit, words } = shell;
  const layers = run?.started ? layersOf(run.started) : [];
  const key = layers.reduce((total, l) => total + l.num_kv_heads * l.key_dim, 0);
  const all = layers.reduce((total, l) => total + l.num_kv_heads * (l.key_dim + l.value_dim), 0);
  const steps = (g) => {
    const decode = cursor.k - g.first;
    if (decode <= 0) return words.t("chart.waiting");
    const group = g.size > 1 ? ` · ${words.t("chart.group", { size: g.size })}` : "";
    return words.t("chart.steps", { n: countOf(decode) }) + group;
  };
  times.chart = {
    w: n.chart.width, h: n.chart.height, u: unit, run: run ?? newRun(), k: cursor.k, ended: cursor.ended, theme,
    hover: times.hover, ttftNs: sum?.ttftNs ?? null, kShare: all ? key / all : 0.5,
    ms: (ns) => axisWords(ns)(ns), seconds: (ns) => timeParts(ns).join(" "), words: { steps },
  };
  drawChart(n.chart.getContext("2d"), times.chart);
}

// ---- pointer ------------------------------------------------------------------------------------

/** The ribbon and the slider go to a place of the run. */
export function scrubOf(view, n) {
  const { times } = view;
  return {
    canvas: n.ribbon,
    shareAt: (event) => {
      const box = n.ribbon.getBoundingClientRect();
      return Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
    },
    seek: (share) => times.scale && seek(view.shell.player, view.shell.store, times.scale.t(share * n.ribbon.width)),
    hover: (share, event) => hoverRibbon(view, share, event),
  };
}

export function wireTimes(view) {
  const { n } = view.shell;
  n.chart.addEventListener("pointermove", (event) => hoverChart(view, event));
  for (const canvas of [n.ribbon, n.chart]) canvas.addEventListener("pointerleave", () => leaveSteps(view));
}

function hoverRibbon(view, share, event) {
  const { shell, times } = view;
  const { store: run, player, n } = shell;
  if (!run?.started || !times.scale) return;
  const { k } = cursorOf(player, run);
  const i = stepsAt(run, times.scale.t(share * n.ribbon.width));
  const first = firstDecode(run, k);
  if (i >= k) leaveSteps(view);
  else hoverSteps(view, i < first ? [0, first - 1] : [i, i], event);
}

function hoverChart(view, event) {
  const { shell, times } = view;
  if (!shell.store?.started || !times.chart) return;
  const box = shell.n.chart.getBoundingClientRect();
  const g = chartLayout(times.chart);
  const range = g.first ? chartAt(g, (event.clientX - box.left) * shell.dpr) : null;
  if (range) hoverSteps(view, range, event);
  else leaveSteps(view);
}

function leaveSteps(view) {
  view.times.hover = -1;
  hideTip(view.shell);
  view.shell.invalidate("hover");
}

/** Point at steps [first, last]: both canvases mark them, a tip tells of them. */
function hoverSteps(view, [first, last], event) {
  const { shell, times } = view;
  times.hover = shell.store.steps[first].phase === "prefill" ? -1 : first;
  const box = { left: event.clientX, width: 0, top: event.clientY - 12, bottom: event.clientY + 12 };
  showTip(shell, stepLines(view, first, last), box);
  shell.invalidate("hover");
}

function stepLines(view, first, last) {
  const { store: run, words } = view.shell;
  const { t } = words;
  const one = run.steps[first];
  if (one.phase === "prefill") {
    const time = timeOf(view.sum?.ttftNs ?? stepEnd(run, last));
    return [t("chart.tip.first", { time, pieces: last + 1 })];
  }
  const took = (step) => step.end_ns - step.start_ns;
  const size = (bytes) => (bytes === null ? t("fig.unknown_part") : sizeOf(bytes));
  const kv = size(readAt(run, last));
  const lines = [];
  if (first === last) {
    const params = { step: countOf(first), time: timeOf(took(one)), weights: size(one.weight_bytes_read), kv };
    lines.push(`“${one.token_texts[view.b].map(labelOf).join("")}”`, t("chart.tip", params));
    const drafted = one.drafted?.[view.b]?.length ?? 0;
    const [from, to] = rejectedAt(run.rows[view.b], first + 1) ?? [0, 0];
    if (drafted) lines.push(t("chart.tip.drafted", { n: drafted, accepted: drafted - (to - from) }));
  } else {
    const times = run.steps.slice(first, last + 1).map(took);
    const params = { first, last, least: timeOf(Math.min(...times)), most: timeOf(Math.max(...times)), kv };
    lines.push(t("chart.tip.group", params));
  }
  for (let i = first; i <= last; i++) {
    const copied = copiedAt(run, i);
    if (copied) lines.push(t("chart.tip.copy", { step: countOf(i), copied: sizeOf(copied) }));
  }
  return lines;
}
