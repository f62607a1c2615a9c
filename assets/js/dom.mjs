// The skeleton of the live view, and the keys that are for it. Text enters by textContent only.
import { el, iconButton } from "./elements.mjs";

/** All elements of the view, by name. */
export function skeleton() {
  const n = {};
  n.say = el("p", { class: "say" });
  n.live = el("p", { class: "sr", "aria-live": "polite" });
  n.info = el("p", { class: "info" });
  n.start = iconButton("start");
  n.back = iconButton("back");
  n.play = iconButton("play");
  n.play.classList.add("main");
  n.next = iconButton("next");
  n.end = iconButton("end");
  n.project = iconButton("project");
  n.speed = el("select", { class: "speed" });
  n.where = el("span");
  n.transport = el("div", { class: "transport", role: "group" }, el("span", { class: "where" }, n.where), n.start, n.back, n.play, n.next, n.end, n.speed, n.project);
  n.top = el("div", { class: "top" }, el("div", { class: "story" }, n.say), el("div", { class: "side" }, n.transport, n.info));

  n.pre = el("span", { class: "phase pre" });
  n.dec = el("span", { class: "phase dec" });
  n.ribbon = el("canvas", { class: "ribbon-canvas", role: "img" });
  n.slider = el("input", { type: "range", min: "0", max: "1000", step: "1", class: "scrub" });
  n.ribbonBox = el("div", { class: "ribbon" }, el("div", { class: "phases" }, n.pre, n.dec), el("div", { class: "ribbon-stage" }, n.ribbon), n.slider);

  n.title = el("button", { type: "button", class: "h term", "data-term": "kv_cache" });
  n.subtitle = el("span", { class: "sub" });
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
    el("header", {}, n.title, n.subtitle, n.chips, el("div", { class: "segs", role: "group" }, n.k, n.v)), n.stage, n.legend);

  n.textTitle = el("button", { type: "button", class: "h term", "data-term": "text" });
  n.textCount = el("span", { class: "sub" });
  n.words = el("div", { class: "words", tabindex: "0" }, el("div"));
  n.textCard = el("section", { class: "card text" }, el("header", {}, n.textTitle, n.textCount), n.words);

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
  n.chartCard = el("section", { class: "card chart" }, n.stats, el("header", {}, n.chartTitle, n.chartNote, n.chartTag), n.chartStage);

  n.tip = el("div", { class: "tip", role: "tooltip", popover: "manual" });
  n.pop = el("div", { class: "pop", role: "dialog", popover: "auto" });
  n.root = el("div", { class: "kv" }, n.top, n.ribbonBox,
    el("div", { class: "main-grid" }, n.matrixCard, el("div", { class: "col" }, n.textCard, n.nums, n.chartCard)), n.live, n.tip, n.pop);
  return n;
}

const TAGS = { rows: "counted", held: "counted", read: "counted", work: "predicted", ttft: "measured", itl: "measured", itl_p95: "measured", rate: "measured" };

function figureCard(n, name, kind) {
  const f = {
    tagName: TAGS[name], label: el("span", { class: "label" }), tag: el("span", { class: "tag" }), value: el("b"), unit: el("u"), extra: el("em"),
    notes: [el("i"), el("i")], bar: name === "read" ? el("span", { class: "split" }, el("s"), el("s"), el("s")) : null,
  };
  f.card = el("button", { type: "button", class: kind, "data-figure": name, "aria-haspopup": "dialog" },
    el("span", { class: "top-line" }, f.label, f.extra, f.tag), el("span", { class: "value" }, f.value, f.unit), f.bar, f.notes[0], f.notes[1]);
  n.figures[name] = f;
  return f.card;
}

/** The key of an event that is for a view with the nodes `n`; null while somebody types, moves another control, or
 * presses another button with space. */
export function keyFor(event, n) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || !n.root.isConnected) return null;
  const target = event.composedPath()[0];
  const tag = target?.tagName ?? "";
  if (target !== n.slider && (/^(INPUT|TEXTAREA|SELECT)$/.test(tag) || target?.isContentEditable)) return null;
  if (target?.closest?.('[role="slider"],[role="tab"],[role="radio"],[role="option"],[role="menuitem"],[role="combobox"]')) return null;
  if (event.key === " " && /^(BUTTON|A|SUMMARY)$/.test(tag) && target !== n.play) return null;
  return event.key;
}
