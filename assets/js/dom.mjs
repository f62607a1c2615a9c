// The elements of the live view. Text enters by textContent only.
import { el } from "./elements.mjs";

/** Add the elements of the live view to those of the shell, by name. */
export function liveNodes(n) {
  n.pre = el("span", { class: "phase pre term", "data-term": "prefill", tabindex: "0" });
  n.dec = el("span", { class: "phase dec term", "data-term": "decode", tabindex: "0" });
  n.ribbon = el("canvas", { class: "ribbon-canvas", role: "img" });
  n.ribbonBox = el("div", { class: "ribbon" },
    el("div", { class: "phases" }, n.pre, n.dec), el("div", { class: "ribbon-stage" }, n.ribbon), n.slider);
  matrixNodes(n);

  n.textTitle = el("button", { type: "button", class: "h term", "data-term": "text" });
  n.textCount = el("span", { class: "sub" });
  n.words = el("div", { class: "words", tabindex: "0" }, el("div"));
  n.whole = el("button", { type: "button", class: "whole" });
  n.textCard = el("section", { class: "card text" }, el("header", {}, n.textTitle, n.textCount, n.whole), n.words);

  n.figures = {};
  n.nums = el("div", { class: "nums" });
  for (const name of ["rows", "held", "read", "work"]) n.nums.append(figureCard(n, name, "card num"));
  n.stats = el("div", { class: "stats" });
  for (const name of ["ttft", "itl", "itl_p95", "rate"]) n.stats.append(figureCard(n, name, "stat"));
  n.chartTitle = el("button", { type: "button", class: "h term", "data-term": "step" });
  n.chartNote = el("span", { class: "sub" });
  n.chartTag = el("span", { class: "tag" });
  n.chart = el("canvas", { class: "chart-canvas", role: "img" });
  n.chartStage = el("div", { class: "chart-stage" }, n.chart);
  n.chartCard = el("section", { class: "card chart" },
    n.stats, el("header", {}, n.chartTitle, n.chartNote, n.chartTag), n.chartStage);

  n.root = el("div", { class: "kv" }, n.top, n.ribbonBox,
    el("div", { class: "main-grid" }, n.matrixCard, el("div", { class: "col" }, n.textCard, n.nums, n.chartCard)),
    n.live, n.tip, n.pop);
}

function matrixNodes(n) {
  n.title = el("button", { type: "button", class: "h term", "data-term": "kv_cache" });
  n.subtitle = el("span", { class: "sub term", "data-term": "kv_head", tabindex: "0" });
  n.chips = el("div", { class: "chips", role: "group" });
  n.k = el("button", { type: "button", class: "seg k" }, "K");
  n.v = el("button", { type: "button", class: "seg v" }, "V");
  n.matrix = el("canvas", { class: "matrix-canvas", role: "img", tabindex: "0" });
  n.sweepLabel = el("span", { class: "sweep-label" });
  n.sweep = el("div", { class: "sweep", "aria-hidden": "true" }, n.sweepLabel, el("i", { class: "sweep-band" }));
  n.cross = el("div", { class: "cross", "aria-hidden": "true" });
  n.follow = el("button", { type: "button", class: "follow" });
  n.empty = el("div", { class: "empty" }, el("b"), el("span"));
  n.stage = el("div", { class: "stage" }, n.matrix, n.sweep, n.cross, n.follow, n.empty);
  n.legend = el("div", { class: "legend" });
  n.matrixCard = el("section", { class: "card matrix" },
    el("header", {}, n.title, n.subtitle, n.chips, el("div", { class: "segs", role: "group" }, n.k, n.v)),
    n.stage, n.legend);
}

const TAGS = {
  rows: "counted", held: "counted", read: "counted", work: "predicted",
  ttft: "measured", itl: "measured", itl_p95: "measured", rate: "measured",
};

function figureCard(n, name, kind) {
  const f = {
    tagName: TAGS[name], label: el("span", { class: "label" }), tag: el("span", { class: "tag" }),
    value: el("b"), unit: el("u"), extra: el("em"), notes: [el("i"), el("i")],
    bar: name === "read" ? el("span", { class: "split" }, el("s"), el("s"), el("s")) : null,
  };
  f.card = el("button", { type: "button", class: kind, "data-figure": name, "aria-haspopup": "dialog" },
    el("span", { class: "top-line" }, f.label, f.extra, f.tag), el("span", { class: "value" }, f.value, f.unit),
    f.bar, ...f.notes);
  n.figures[name] = f;
  return f.card;
}
