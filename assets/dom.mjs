// The skeleton of the view: elements, icons, tool tips and pop-overs. Text enters by textContent only.

/** An element. `attributes`: on* are listeners, the rest are attributes; children are nodes or text. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const ICONS = {
  start: "M4 4h2v12H4zM16 4v12L7 10z",
  back: "M13 4v12L4.5 10zM15 4h2v12h-2z",
  play: "M5 3.5v13L17 10z",
  pause: "M5 4h3.6v12H5zM11.4 4H15v12h-3.6z",
  next: "M7 4v12l8.500-6zM3 4h2v12H3z",
  end: "M14 4h2v12h-2zM4 4v12l9-6z",
  replay: "M10 4V1L5.500 5 10 9V6a4.500 4.500 0 1 1-4.500 4.500h-2A6.500 6.500 0 1 0 10 4z",
  project: "M3 3h6v2H5v4H3zM17 17h-6v-2h4v-4h2zM11 3h6v6h-2V5h-4zM3 11h2v4h4v2H3z",
};

/** A small picture, hidden from screen readers. */
export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** A round button of the transport. */
export function iconButton(name, onclick) {
  return el("button", { type: "button", class: "icon", "data-icon": name, onclick }, icon(name));
}

/** Give a button another picture. */
export function setIcon(button, name) {
  if (button.dataset.icon === name) return;
  button.dataset.icon = name;
  button.replaceChildren(icon(name));
}

/** Set text only where it differs: an unchanged node costs no layout. */
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Put a floating element by a box of the viewport, where there is room: below, above, or at its left. */
export function place(floating, box, atLeft = false) {
  const { innerWidth, innerHeight } = window;
  const w = floating.offsetWidth;
  const h = floating.offsetHeight;
  if (atLeft && box.left - w - 12 > 6) {
    floating.style.left = `${Math.round(box.left - w - 12)}px`;
    floating.style.top = `${Math.round(Math.max(6, Math.min(box.top, innerHeight - h - 6)))}px`;
    return;
  }
  const x = Math.max(6, Math.min(box.left + box.width / 2 - w / 2, innerWidth - w - 6));
  const below = box.bottom + 8 + h < innerHeight - 4;
  const y = below ? box.bottom + 8 : Math.max(6, box.top - h - 8);
  floating.style.left = `${Math.round(x)}px`;
  floating.style.top = `${Math.round(y)}px`;
}

/** Show or hide a floating element, in the top layer where the browser has one. */
export function float(node, on) {
  if (node.showPopover) {
    const open = node.matches(":popover-open");
    if (on && !open && node.isConnected) node.showPopover();
    if (!on && open) node.hidePopover();
  } else node.classList.toggle("open", on);
}

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
  n.where = el("span", { class: "where" });
  n.transport = el("div", { class: "transport", role: "group" }, n.where, n.start, n.back, n.play, n.next, n.end, n.speed, n.project);
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

/** What Streamlit calls at every rerun, with `views` parent -> view. A call that is superseded is cleaned up while the
 * view is still mounted: only a view that has left the page is taken down. */
export function mounting(views, newView, update, destroy) {
  return (component) => {
    const parent = component.parentElement;
    let view = views.get(parent);
    if (!view) {
      view = newView(parent);
      views.set(parent, view);
    }
    update(view, component);
    return () => setTimeout(() => {
      if (!view.n.root.isConnected && views.get(parent) === view) destroy(view);
    }, 0);
  };
}
