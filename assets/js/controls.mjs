// What a visitor works a view with: the transport, keys, scrubbing, projection, tips and pop-overs.
//
// All work on the shell that newShell of shell.mjs makes, and on its parts; what is shown they do not know.
import { el, float, iconButton, place, put, setIcon } from "./elements.mjs";
import { SPEEDS, pause, play, runEnd, seek, toEnd } from "./player.mjs";
import { isOver } from "./run.mjs";

const TRANSPORT = ["start", "back", "play", "next", "end"];

/** The nodes that every view has, by name. */
export function ownNodes() {
  const n = { say: el("p", { class: "say" }), live: el("p", { class: "sr", "aria-live": "polite" }) };
  n.info = el("p", { class: "info" });
  for (const name of [...TRANSPORT, "project"]) n[name] = iconButton(name);
  n.play.classList.add("main");
  n.speed = el("select", { class: "speed" });
  for (const speed of SPEEDS) n.speed.add(new Option(`${speed}×`, String(speed), speed === 1, speed === 1));
  n.where = el("span");
  n.transport = el("div", { class: "transport", role: "group" },
    el("span", { class: "where" }, n.where), ...TRANSPORT.map((name) => n[name]), n.speed, n.project);
  n.top = el("div", { class: "top" },
    el("div", { class: "story" }, n.say), el("div", { class: "side" }, n.transport, n.info));
  n.slider = el("input", { type: "range", min: "0", max: "1000", step: "1", class: "scrub" });
  n.tip = el("div", { class: "tip", role: "tooltip", popover: "manual" });
  n.pop = el("div", { class: "pop", role: "dialog", popover: "auto" });
  return n;
}

/** Listen to buttons, slider, pointer and keys. Returns what stops listening to the page's keys. */
export function wireControls(shell) {
  wireTransport(shell);
  wireScrub(shell);
  wireTips(shell);
  const listen = (event) => onKey(shell, event);
  document.addEventListener("keydown", listen);
  return () => document.removeEventListener("keydown", listen);
}

/** The transport. `on`: there is a track; `where`, `told`: the place on it, short and read aloud; `share`: that of the
 * slider; `lit`: the newest is somewhere else. */
export function writeTransport(shell, { on, running, atEnd, where, share, told, lit = false }) {
  const { n, words } = shell;
  for (const node of [...TRANSPORT.map((name) => n[name]), n.slider]) node.disabled = !on;
  const what = running ? "pause" : atEnd ? "replay" : "play";
  setIcon(n.play, what);
  n.play.title = words.t(`go.${what}`);
  n.play.setAttribute("aria-label", words.t(`go.${what}`));
  n.slider.classList.toggle("off", !on);
  put(n.where, where);
  if (on && !shell.dragging) n.slider.value = String(Math.round(share * 1000));
  if (on) n.slider.setAttribute("aria-valuetext", told);
  n.end.classList.toggle("lit", lit);
}

// ---- tips and pop-overs -------------------------------------------------------------------------

/** Show a tip by a box of the viewport: its first line stands out, one alone may be long. */
export function showTip(shell, lines, box) {
  const { tip } = shell.n;
  tip.replaceChildren(...lines.filter(Boolean).map((line, i) => el(i ? "span" : "b", {}, line)));
  tip.classList.toggle("wide", lines.length === 1);
  float(tip, true);
  place(tip, box);
}

export function hideTip(shell) {
  float(shell.n.tip, false);
  shell.parts.tipHidden?.();
}

/** Bring an open pop-over up to date. */
export function refreshPop(shell) {
  if (shell.popName && shell.n.pop.matches?.(":popover-open")) fillPop(shell, shell.popName);
}

/** Content: {title, tag (a name), meaning, formula, here (a heading and numbers, or null), source, small}. */
function fillPop(shell, name) {
  const { n, words, parts } = shell;
  const { t } = words;
  const { title, tag, meaning, formula, here, source, small } = parts.pop.content(name);
  const nodes = [
    el("h4", {}, title, el("span", { class: "tag" }, t(`tag.${tag}`))), el("p", {}, meaning),
    el("h5", {}, t("pop.formula")), el("pre", {}, formula),
    ...(here ? [el("h5", {}, here[0]), el("pre", {}, here[1])] : []),
    el("h5", {}, t("pop.source")), el("p", {}, `${source} ${t(`tag.${tag}.why`)}`),
    ...(small ? [el("p", { class: "small" }, small)] : []),
  ];
  const text = nodes.map((node) => node.textContent).join("|");
  if (n.pop.dataset.text === text) return;
  n.pop.dataset.text = text;
  n.pop.replaceChildren(...nodes);
}

function openPop(shell, name) {
  const { n, parts } = shell;
  const again = shell.popName === name && n.pop.matches?.(":popover-open");
  hideTip(shell);
  float(n.pop, false);
  if (again) return;
  shell.popName = name;
  fillPop(shell, name);
  float(n.pop, true);
  place(n.pop, parts.pop.node(name).getBoundingClientRect(), parts.pop.atLeft);
}

/** A `.term` tells its meaning while it is pointed at, focused or touched; a node with the pop-over's key opens it. */
function wireTips(shell) {
  const { n, parts } = shell;
  const termOf = (event) => event.target.closest?.(".term");
  const show = (event) => {
    const node = termOf(event);
    const key = node && `${parts.terms}${node.dataset.term}`;
    if (node && shell.words.has(key)) showTip(shell, [shell.words.t(key)], node.getBoundingClientRect());
  };
  for (const kind of ["pointerover", "focusin", "click"]) n.root.addEventListener(kind, show);
  for (const kind of ["pointerout", "focusout"]) {
    n.root.addEventListener(kind, (event) => termOf(event) && hideTip(shell));
  }
  n.root.addEventListener("click", (event) => {
    const card = event.target.closest?.(`[data-${parts.pop.key}]`);
    if (card) openPop(shell, card.dataset[parts.pop.key]);
  });
}

// ---- pointer and keys ---------------------------------------------------------------------------

function wireTransport(shell) {
  const { n, parts } = shell;
  const go = (act) => () => {
    const track = parts.track();
    if (track) act(shell.player, track);
    shell.invalidate("time");
  };
  n.start.addEventListener("click", go((player, track) => seek(player, track, 0)));
  n.end.addEventListener("click", go(toEnd));
  n.back.addEventListener("click", (event) => step(shell, -1, event));
  n.next.addEventListener("click", (event) => step(shell, 1, event));
  n.play.addEventListener("click", () => toggle(shell));
  n.project.addEventListener("click", () => projectOrNot(shell));
  n.speed.addEventListener("change", () => {
    shell.player.speed = Number(n.speed.value);
    shell.invalidate("time");
  });
}

function step(shell, by, event) {
  const track = shell.parts.track();
  if (track) shell.parts.step(track, by, event);
  shell.invalidate("time");
}

function toggle(shell) {
  const { player } = shell;
  const track = shell.parts.track();
  if (!track) return;
  if (player.playing || (player.live && !isOver(track))) pause(player, track);
  else if (!player.live && !isOver(track) && player.t >= runEnd(track)) toEnd(player, track);
  else play(player, track);
  shell.invalidate("time");
}

/** Large type for a projector. */
export function project(shell, on) {
  shell.n.root.classList.toggle("projection", on);
  document.documentElement.classList.toggle("st-projection", on);
  shell.invalidate("size");
}

/** At once here; then the view may tell the page. */
function projectOrNot(shell) {
  const on = !shell.n.root.classList.contains("projection");
  project(shell, on);
  shell.parts.projected?.(on);
}

/** The slider, and the canvas that shows the same axis: both go to a share of it. */
function wireScrub(shell) {
  const { n, parts } = shell;
  const { canvas, shareAt, seek: seekTo, hover } = parts.scrub(n);
  const to = (share) => {
    if (parts.track()) seekTo(share);
    shell.invalidate("time");
  };
  n.slider.addEventListener("input", () => {
    shell.dragging = true;
    to(Number(n.slider.value) / 1000);
  });
  n.slider.addEventListener("change", () => {
    shell.dragging = false;
    shell.invalidate("time");
  });
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    to(shareAt(event));
  });
  canvas.addEventListener("pointermove", (event) => {
    if (canvas.hasPointerCapture(event.pointerId)) to(shareAt(event));
    else hover?.(shareAt(event), event);
  });
}

/** Keys of the whole page, unless somebody is typing or moving another control. */
function onKey(shell, event) {
  const key = keyFor(event, shell.n);
  if (key === null) return;
  const { player } = shell;
  const track = shell.parts.track();
  if (key === "f" || key === "F") projectOrNot(shell);
  else if (!track) return;
  else if (key === " ") toggle(shell);
  else if (key === "ArrowRight") step(shell, 1, event);
  else if (key === "ArrowLeft") step(shell, -1, event);
  else if (key === "Home") seek(player, track, 0);
  else if (key === "End") toEnd(player, track);
  else return;
  hideTip(shell); // what it told stands elsewhere now, or is not there yet
  event.preventDefault();
  shell.invalidate("time");
}

/** The key of an event that is for a view with the nodes `n`; null while somebody types, moves another control, or
 * presses another button with space. */
function keyFor(event, n) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || !n.root.isConnected) return null;
  const target = event.composedPath()[0];
  const tag = target?.tagName ?? "";
  if (target !== n.slider && (/^(INPUT|TEXTAREA|SELECT)$/.test(tag) || target?.isContentEditable)) return null;
  const roles = ["slider", "tab", "radio", "option", "menuitem", "combobox"];
  if (target?.closest?.(roles.map((role) => `[role="${role}"]`).join(","))) return null;
  if (event.key === " " && /^(BUTTON|A|SUMMARY)$/.test(tag) && target !== n.play) return null;
  return event.key;
}
