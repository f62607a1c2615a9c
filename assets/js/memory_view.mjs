// The memory page's sliders, bars, cards and notices: one component that paints frames made by Python.
//
// A slider that moves paints the frame that was made ahead for its stop, and Python hears of it when it rests; where
// there is none, Python is asked at once. What Python then says of an older move does not take the slider back.
import { drawn, el, float, iconButton, mounting, place, put } from "./elements.mjs";
import { frameAt, isAnswered, newMoves, shelfOf } from "./frames.mjs";
import { FONT, barLayout, markPath } from "./bars.mjs";

const views = new WeakMap();
const MARGIN = 32; // left and right in a saved picture: without the page's font its texts are wider
const REST_MS = 200; // a slider that has stood this long rests
const pen = typeof document === "undefined" ? null : document.createElement("canvas").getContext("2d");

/** Make the view in `parent`. */
function newView(parent) {
  const n = nodesOf();
  parent.append(n.root);
  const view = {
    n, parent, component: null, data: null, frame: null, place: [], moves: null, sliders: [],
    timer: 0, paint: 0, width: 0, held: false, stamps: {},
  };
  n.save.addEventListener("click", () => save(view));
  wireTips(view);
  view.resize = new ResizeObserver(([{ contentRect }]) => {
    view.width = contentRect.width; // to ask for it while painting would cost a layout
    invalidate(view);
  });
  view.resize.observe(n.figure);
  document.fonts?.ready.then(() => {
    view.stamps = {}; // texts have other widths now
    invalidate(view);
  });
  return view;
}

function nodesOf() {
  const n = {};
  n.sliders = el("div", { class: "sliders" });
  n.title = el("b");
  n.help = helpMark();
  n.save = iconButton("save");
  n.figure = el("div", { class: "figure" });
  n.notices = el("div", { class: "notices" });
  n.cards = el("div", { class: "numbers two" });
  n.main = el("div", { class: "main" },
    el("div", { class: "left" }, el("div", { class: "title" }, n.title, n.help, n.save), n.figure, n.notices), n.cards);
  n.warnings = el("div", { class: "warnings" });
  n.tip = el("div", { class: "tip", role: "tooltip", popover: "manual" });
  n.root = el("div", { class: "bill" }, n.sliders, n.main, n.warnings, n.tip);
  return n;
}

function helpMark() {
  return el("button", { type: "button", class: "help" }, "?");
}

function destroy(view) {
  view.resize.disconnect();
  cancelAnimationFrame(view.paint);
  clearTimeout(view.timer);
  view.n.root.remove();
  views.delete(view.parent);
}

// ---- what comes from Python ---------------------------------------------------------------------

function update(view, component) {
  const { data } = component;
  Object.assign(view, { component, data });
  view.moves ??= newMoves(data.moves);
  if (isAnswered(view.moves, data.moves)) Object.assign(view, { place: [...data.at], frame: data.frame });
  else view.frame = frameAt(shelfOf(), data, view.place) ?? view.frame;
  putWords(view);
  data.sliders.forEach((_, axis) => showPlace(view, axis));
  view.n.root.dataset.answered = data.moves;
  invalidate(view);
}

/** Words of the page's language. */
function putWords(view) {
  const { n, data } = view;
  if (!view.sliders.length) view.sliders = data.sliders.map((slider, axis) => newSlider(view, slider, axis));
  data.sliders.forEach(({ label, help, stops }, axis) => {
    const { input, label: text, mark } = view.sliders[axis];
    put(text, label);
    input.max = stops.length - 1;
    input.setAttribute("aria-label", label);
    tell(mark, help);
  });
  put(n.title, data.title);
  tell(n.help, data.help);
  tell(n.save, data.save);
}

/** Give a node without words a name, which it shows when it is pointed at. */
function tell(node, text) {
  node.setAttribute("aria-label", text);
  node.dataset.tip = text;
}

// ---- sliders ------------------------------------------------------------------------------------

function newSlider(view, slider, axis) {
  const made = { label: el("span"), mark: helpMark(), value: el("output", { "aria-hidden": "true" }) };
  made.input = el("input", {
    type: "range", min: 0, max: slider.stops.length - 1, step: 1,
    oninput: () => move(view, axis, Number(made.input.value)),
    onpointerdown: () => { view.held = true; },
    onchange: () => view.held && release(view),
    onblur: () => release(view),
  });
  view.n.sliders.append(el("div", { class: "slider", "data-axis": slider.name },
    el("div", { class: "slider-head" }, made.label, made.mark, made.value), made.input));
  return made;
}

/** A slider's thumb and its number; a key in its place is heard at once, so it is not left to the next picture. */
function showPlace(view, axis) {
  const { input, value } = view.sliders[axis];
  const { sliders, at, shown } = view.data;
  const here = view.place[axis] === at[axis]; // a number that was typed may stand between two stops
  const text = here ? shown[axis] : sliders[axis].stops[view.place[axis]];
  const stop = String(view.place[axis]);
  if (input.value !== stop) input.value = stop;
  input.setAttribute("aria-valuetext", text);
  input.style.setProperty("--share", Number(input.value) / Number(input.max));
  put(value, text);
}

function move(view, axis, stop) {
  view.place[axis] = stop;
  view.moves.made += 1;
  showPlace(view, axis);
  const ahead = frameAt(shelfOf(), view.data, view.place);
  if (ahead) {
    view.frame = ahead;
    invalidate(view);
  }
  clearTimeout(view.timer);
  view.timer = setTimeout(() => send(view), ahead || view.held ? REST_MS : 0);
}

function release(view) {
  view.held = false;
  send(view);
}

/** Tell Python where the sliders are, once for each place at which they rest. */
function send(view) {
  clearTimeout(view.timer);
  const { moves } = view;
  if (!moves || moves.told === moves.made) return;
  moves.told = moves.made;
  view.component.setStateValue("place", { at: [...view.place], moves: moves.made });
}

// ---- painting -----------------------------------------------------------------------------------

/** Paint with the next picture of the screen, once however many moves there are before it. */
function invalidate(view) {
  view.paint ||= requestAnimationFrame(() => {
    view.paint = 0;
    paint(view);
  });
}

function paint(view) {
  const { n, frame } = view;
  n.main.hidden = n.warnings.hidden = !frame;
  if (!frame) return;
  frame.cards.forEach((card, i) => paintCard(n.cards, i, card));
  while (n.cards.children.length > frame.cards.length) n.cards.lastChild.remove();
  if (isNew(view, "notices", frame.notices)) n.notices.replaceChildren(...frame.notices.map(noticeOf));
  if (isNew(view, "warnings", frame.warnings)) {
    n.warnings.replaceChildren(...frame.warnings.map((text) => el("p", {}, text)));
  }
  const bars = [frame.bar, ...view.data.pinned];
  if (view.width && isNew(view, "bars", [view.width, bars, frame.axis, view.data.parts, view.data.colours])) {
    n.figure.replaceChildren(pictureOf(view.data, bars, frame.axis, view.width));
  }
}

/** Whether something is not what was painted last: what has the pointer or the focus is not made again for nothing. */
function isNew(view, what, content) {
  const stamp = JSON.stringify(content);
  const differs = view.stamps[what] !== stamp;
  view.stamps[what] = stamp;
  return differs;
}

/** A card as markup.py writes it: it opens to its formula, and stays open while its numbers change. */
function paintCard(cards, i, card) {
  const opens = card.formula.length > 0;
  let node = cards.children[i];
  if (!node || (node.tagName === "DETAILS") !== opens) {
    const made = newCard(opens);
    if (node) node.replaceWith(made);
    else cards.append(made);
    node = made;
  }
  const find = (selector) => node.querySelector(selector);
  node.className = `number ${card.tone}`.trim();
  put(find(".head > span"), card.label);
  find(".head > span").title = card.help;
  put(find(".tag"), card.tag);
  put(find("b"), card.value);
  put(find("u"), card.unit);
  put(find(".note"), card.note);
  find(".note").title = card.note; // a long one is cut
  if (!opens) return;
  const formula = find(".formula");
  while (formula.children.length > card.formula.length) formula.lastChild.remove();
  card.formula.forEach((line, at) => put(formula.children[at] ?? formula.appendChild(el("p")), line));
}

function newCard(opens) {
  const inner = [
    el("div", { class: "head" }, el("span"), el("span", { class: "tag" })),
    el("div", { class: "value" }, el("b"), el("u")),
    el("div", { class: "note" }),
  ];
  if (!opens) return el("div", {}, ...inner);
  return el("details", { name: "number" }, el("summary", {}, ...inner), el("div", { class: "formula" }));
}

function noticeOf([tone, head, text]) {
  return el("div", { class: `notice ${tone}` }, el("i", {}, { good: "✓", bad: "!" }[tone] ?? "·"),
    el("div", {}, el("b", {}, head), el("span", {}, text)));
}

// ---- the picture --------------------------------------------------------------------------------

/** The bars as an SVG that needs nothing of the page: it is saved as it is. */
function pictureOf(data, bars, axis, width) {
  const { colours, parts } = data;
  let font = "";
  const measure = (text, size, bold) => {
    const asked = `${bold ? "600 " : ""}${size}px ${data.font}`;
    if (font !== asked) pen.font = font = asked; // to set it costs more than to measure
    return pen.measureText(text).width;
  };
  const g = barLayout(bars, axis, parts, width, measure);
  const text = (words, x, y, more) => {
    return drawn("text", { x, y, fill: colours.text, "font-size": FONT.plain, ...more }, words);
  };
  const small = (words, x, y, fill, anchor) => {
    return text(words, x, y, { fill, "font-size": FONT.small, "text-anchor": anchor });
  };
  const line = (x1, y1, x2, y2, stroke, thick) => {
    return drawn("path", { d: `M${x1} ${y1}L${x2} ${y2}`, stroke, "stroke-width": thick });
  };
  const fillOf = (part) => (parts[part][2] ? `url(#bill-mark-${part})` : parts[part][1]);
  const svg = drawn("svg", {
    class: "bars", role: "group", "aria-label": bars.map((bar) => bar.alt).join(" "), width, height: g.height,
    viewBox: `0 0 ${width} ${g.height}`, "font-family": data.font, fill: "none",
  }, drawn("defs", {}, ...Object.entries(parts).filter(([, part]) => part[2]).map((part) => patternOf(part, colours))));
  svg.append(drawn("rect", { width, height: g.height, fill: colours.page }));
  for (const { x, middle, text: words } of g.ticks) {
    svg.append(line(x, 4, x, g.foot + 4, colours.line, 1));
    svg.append(small(words, middle, g.foot + 19, colours.muted, "middle"));
  }
  bars.forEach((bar, i) => {
    const row = g.rows[i];
    const middle = row.y + g.barHeight / 2;
    const at = g.narrow ? [g.left, row.y - 24] : [g.labelWidth, middle - 3];
    const anchor = g.narrow ? "start" : "end";
    const label = text(bar.label, ...at, { "font-weight": 600, "text-anchor": anchor });
    const size = g.narrow ? [width - 2, at[1]] : [at[0], middle + 14];
    svg.append(clipped(label, bar.label, g.narrow ? width : g.labelWidth, measure));
    svg.append(small(bar.size, ...size, colours.muted, "end"));
    for (const part of row.parts) {
      const told = `${parts[part.name][0]}: ${part.text}`;
      svg.append(drawn("g", { class: "part", tabindex: 0, role: "img", "aria-label": told, "data-tip": told },
        drawn("rect", {
          x: part.x, y: row.y, width: part.width, height: g.barHeight, fill: fillOf(part.name), stroke: colours.page,
        }),
        part.fits ? text(part.text, part.x + 6, middle + 5, { fill: colours.page }) : null));
    }
    svg.append(drawn("path", {
      d: `M${row.low} ${row.y + g.barHeight + 5}v6m0 -3H${row.high}m0 -3v6`,
      stroke: colours.text, "stroke-width": 1.4, class: "spread",
    }));
    if (row.ceiling !== null) {
      const colour = bar.over ? colours.over : colours.fits;
      svg.append(line(row.ceiling, row.y - 4, row.ceiling, row.y + g.barHeight + 4, colour, 3));
      const x = row.ceiling + (row.ceilingAnchor === "end" ? 1 : -1);
      svg.append(small(bar.ceiling_text, x, row.y - 7, colour, row.ceilingAnchor));
    }
    svg.append(text(bar.total_text, row.total, middle + 5, {
      "font-weight": 600, stroke: colours.page, "stroke-width": 4, "paint-order": "stroke",
    }));
  });
  for (const { part, x, y } of g.legend) {
    svg.append(drawn("rect", { x, y, width: 12, height: 12, fill: fillOf(part) }));
    svg.append(text(parts[part][0], x + 18, y + 11, {}));
  }
  return svg;
}

/** A text cut to a width, with an ellipsis. */
function clipped(node, words, width, measure) {
  let shown = words;
  const isWide = () => measure(shown === words ? words : `${shown}…`, FONT.plain, true) > width;
  while (shown.length > 1 && isWide()) shown = shown.slice(0, -1);
  if (shown !== words) node.replaceChildren(`${shown}…`, drawn("title", {}, words));
  return node;
}

function patternOf([part, [, colour, mark]], colours) {
  return drawn("pattern", { id: `bill-mark-${part}`, width: 7, height: 7, patternUnits: "userSpaceOnUse" },
    drawn("rect", { width: 7, height: 7, fill: colour }),
    drawn("path", { d: markPath(mark), stroke: colours.page, "stroke-opacity": 0.4, "stroke-width": 1.4 }));
}

/** Save the picture: as it is, or as pixels at double size. */
async function save(view) {
  const svg = view.n.figure.querySelector("svg").cloneNode(true);
  const { image } = view.data;
  const [width, height] = ["width", "height"].map((name) => Number(svg.getAttribute(name)));
  const box = { x: -MARGIN, y: 0, width: width + 2 * MARGIN, height };
  for (const node of [svg, svg.querySelector("rect:not(defs *)")]) {
    for (const [name, value] of Object.entries(box)) node.setAttribute(name, value);
  }
  svg.setAttribute("viewBox", Object.values(box).join(" "));
  let blob = new Blob([new XMLSerializer().serializeToString(svg)], { type: "image/svg+xml" });
  if (image === "png") blob = await pixelsOf(blob, box);
  const href = URL.createObjectURL(blob);
  el("a", { href, download: `second-token-memory.${image}` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

async function pixelsOf(blob, { width, height }) {
  const picture = new Image();
  picture.src = URL.createObjectURL(blob);
  await picture.decode();
  const canvas = el("canvas", { width: 2 * width, height: 2 * height });
  canvas.getContext("2d").drawImage(picture, 0, 0, 2 * width, 2 * height);
  URL.revokeObjectURL(picture.src);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

// ---- what is told -------------------------------------------------------------------------------

/** Whatever has a `data-tip` shows it while it is pointed at, focused or touched. */
function wireTips(view) {
  const { root, tip } = view.n;
  const told = (event) => event.target.closest?.("[data-tip]");
  const show = (event) => {
    const node = told(event);
    if (!node) return;
    put(tip, node.dataset.tip);
    float(tip, true);
    place(tip, node.getBoundingClientRect());
  };
  const hide = (event) => told(event) && float(tip, false);
  for (const kind of ["pointerover", "focusin", "click"]) root.addEventListener(kind, show);
  for (const kind of ["pointerout", "focusout"]) root.addEventListener(kind, hide);
  root.addEventListener("keydown", (event) => event.key === "Escape" && float(tip, false));
}

const render = mounting(views, newView, update, destroy);
export default render;
