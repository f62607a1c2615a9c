// The shell of a view that follows a run or a race: what the live view and the race do alike.
//
// It takes frames from a feed (or from the page) into a store, says when to draw, and holds the transport, keys,
// scrubbing, tips, pop-overs and projection. What is drawn it does not know: a view gives it `parts`, and nothing runs
// while nothing happens.
//
// Parts. Nodes: skeleton(n) adds its own and n.root, canvases(n) are those to size, `goKeys` names buttons otherwise,
// `terms` is the prefix of explained words. Data: newStore(), take(store, text), isOver(store), isReady(store),
// track() (what the player moves along, or null), reset(), took(added), first(), asked(data). Picture: label(),
// measured(), draw(now, dirty, moved) -> {animating, wait}. Hands: step(by, event), scrub {canvas, shareAt, seek,
// hover}, pop {key, atLeft, node, content}, tipHidden(), projected(on).
import { ownNodes, project, wireControls } from "./controls.mjs";
import { mounting, put } from "./elements.mjs";
import { openFeed } from "./feed.mjs";
import { advance, newPlayer } from "./player.mjs";
import { themeOf } from "./theme.mjs";
import { wordsOf } from "./words.mjs";

const views = new WeakMap();
const mounted = new Set(); // views on the page now: the last one to leave takes the projector's class along
const BASE_PX = 13;
const LOST_MS = 4000; // without a connection this long, the sentence says so

/** Make a view in `parent`. Its parts draw nothing before the first update. */
export function newShell(parent, parts) {
  const n = ownNodes();
  parts.skeleton(n);
  parent.append(n.root);
  const shell = {
    n, parent, parts, component: null, data: {}, words: wordsOf({}, "en"), theme: null, dpr: 0, unit: 0,
    reduced: matchMedia("(prefers-reduced-motion: reduce)"),
    runId: undefined, store: null, player: newPlayer(), feed: null, state: null, lost: false, lostTimer: 0,
    opened: false, sawLive: false, told: false, // of this run: begun to show, seen while it went on, its end told
    dirty: {}, frame: 0, timer: 0, lastTick: 0, dragging: false, popName: null, spoken: null, spokenAt: 0,
    invalidate: (what) => invalidate(shell, what),
  };
  mounted.add(shell);
  n.root.classList.toggle("projection", document.documentElement.classList.contains("st-projection"));
  shell.deafen = wireControls(shell);
  shell.resize = new ResizeObserver(() => shell.invalidate("size"));
  for (const node of [n.root, ...parts.canvases(n).map((canvas) => canvas.parentElement)]) shell.resize.observe(node);
  return shell;
}

/** What Streamlit calls at every rerun; `newView(parent)` gives the shell of a new view. */
export function mountShell(newView) {
  return mounting(views, newView, update, destroy);
}

function destroy(shell) {
  shell.feed?.close();
  shell.resize.disconnect();
  cancelAnimationFrame(shell.frame);
  clearTimeout(shell.timer);
  clearTimeout(shell.lostTimer);
  shell.deafen();
  shell.n.root.remove();
  views.delete(shell.parent);
  mounted.delete(shell);
  if (!mounted.size) document.documentElement.classList.remove("st-projection");
}

// ---- what comes from Python ---------------------------------------------------------------------

function update(shell, component) {
  shell.component = component;
  const data = component.data ?? {};
  const language = data.language ?? "en";
  const strange = shell.words.language !== language || !shell.data.strings;
  shell.data = data;
  if (data.strings && strange) {
    shell.words = wordsOf(data.strings, language);
    label(shell);
  }
  shell.theme = themeOf(shell.n.root);
  if (data.projection !== undefined && data.projection !== shell.projectionAsked) {
    shell.projectionAsked = data.projection;
    project(shell, Boolean(data.projection));
  }
  const runId = data.run_id ?? null;
  if (runId !== shell.runId) open(shell, runId);
  else if (runId && data.transport !== "poll" && shell.state !== "broken" && (strange || !shell.feed)) {
    connect(shell); // for the words of a status or an error; or the page is back after the connection was lost
  }
  shell.parts.asked?.(data);
  for (const text of data.frames ?? []) take(shell, text);
  invalidate(shell, "all");
}

/** Start with a run, or with none. */
function open(shell, runId) {
  shell.feed?.close();
  clearTimeout(shell.lostTimer);
  const store = runId ? shell.parts.newStore() : null;
  Object.assign(shell, { runId, feed: null, state: null, lost: false, lostTimer: 0 });
  Object.assign(shell, { opened: false, sawLive: false, told: false });
  forget(shell, store);
  if (runId && shell.data.transport !== "poll") connect(shell);
}

/** Go on with this store, at the speed that was chosen. */
function forget(shell, store) {
  shell.store = store;
  shell.player = Object.assign(newPlayer(), { speed: shell.player.speed });
  shell.parts.reset();
}

function connect(shell) {
  shell.feed?.close();
  shell.feed = openFeed({
    runId: shell.runId,
    language: shell.words.language,
    next: () => shell.store.numEvents,
    handle: (text) => take(shell, text),
    onState: (state) => connection(shell, state),
    onLost: () => {
      shell.feed = null;
      shell.component.setStateValue("transport", "poll");
    },
  });
}

/** What the feed says of the connection: open, retry or gone. After a while without one the sentence says it too. */
function connection(shell, state) {
  shell.state = state;
  if (state !== "retry") {
    clearTimeout(shell.lostTimer);
    shell.lostTimer = 0;
    shell.lost = false;
  } else if (!shell.lostTimer) {
    shell.lostTimer = setTimeout(() => {
      shell.lost = true;
      invalidate(shell, "words");
    }, LOST_MS);
  }
  invalidate(shell, "words");
}

/** Take a frame, whatever is in it: what cannot be shown is said, and never thrown into the page. */
function take(shell, text) {
  if (!shell.store || shell.state === "broken") return { gap: false, over: true };
  try {
    return takeText(shell, text);
  } catch (error) {
    giveUp(shell, error);
    return { gap: false, over: true };
  }
}

/** This run's data cannot be shown: say so, and wait for another run. */
function giveUp(shell, error) {
  console.warn("second token: this run's data cannot be shown", error);
  shell.feed?.close();
  forget(shell, shell.parts.newStore());
  connection(shell, "broken");
}

/** Take a frame. Returns {gap, over}. */
function takeText(shell, text) {
  const { store, parts, data } = shell;
  const stamp = () => JSON.stringify([store.status, store.error]);
  const before = stamp();
  const { gap, added } = parts.take(store, text);
  if (shell.state === "retry" && data.transport === "poll") connection(shell, "open"); // the page has taken over
  if (stamp() !== before) invalidate(shell, "words");
  if (gap && data.transport === "poll") shell.component.setStateValue("resume", store.numEvents);
  if (gap) return { gap, over: false };
  const over = parts.isOver(store);
  shell.sawLive ||= !over;
  parts.took?.(added);
  if (!shell.opened && parts.isReady(store)) {
    shell.opened = true;
    parts.first();
  }
  if (over && !shell.told && (shell.sawLive || data.over === false)) {
    shell.told = true;
    shell.component.setTriggerValue("finished", shell.runId);
  }
  globalThis.kvProbe?.push(["frame", store.numEvents, performance.timeOrigin + performance.now()]);
  invalidate(shell, "run");
  return { gap: false, over };
}

// ---- when to draw -------------------------------------------------------------------------------

/** Draw with the next picture of the screen. `what` is new: all, size, words, run, time, view, hover or anim. */
function invalidate(shell, what) {
  shell.dirty[what] = true;
  if (!shell.frame) shell.frame = requestAnimationFrame((now) => tick(shell, now));
}

function tick(shell, now) {
  shell.frame = 0;
  clearTimeout(shell.timer);
  if (!shell.n.root.isConnected) return;
  const { player } = shell;
  const ms = shell.lastTick ? Math.min(250, now - shell.lastTick) : 16;
  shell.lastTick = now;
  const track = shell.parts.track();
  const moved = track ? advance(player, track, ms) : false;
  const { animating, wait } = drawSafely(shell, now, moved);
  if (shell.player.playing && !shell.player.live) invalidate(shell, "time");
  else if (animating) invalidate(shell, "anim");
  else {
    shell.lastTick = 0;
    if (wait) shell.timer = setTimeout(() => invalidate(shell, "time"), wait);
  }
  if (globalThis.kvProbe) {
    const shown = shell.store?.numEvents ?? 0;
    requestAnimationFrame((at) => globalThis.kvProbe.push(["drawn", shown, performance.timeOrigin + at]));
  }
}

/** A run that passes for one may still hold what cannot be drawn. */
function drawSafely(shell, now, moved) {
  const { dirty } = shell;
  shell.dirty = {};
  try {
    if (dirty.all || dirty.size || !shell.dpr) measure(shell);
    return shell.parts.draw(now, dirty, moved);
  } catch (error) {
    if (shell.state === "broken" || !shell.store) throw error; // not the run's fault
    giveUp(shell, error);
    return { animating: false, wait: 0 };
  }
}

/** Sizes in device pixels: styles and boxes are read here, and in no other frame. */
function measure(shell) {
  const { n, parts } = shell;
  shell.dpr = Math.min(3, window.devicePixelRatio || 1);
  shell.unit = (parseFloat(getComputedStyle(n.root).fontSize) / BASE_PX) * shell.dpr;
  for (const canvas of parts.canvases(n)) {
    const w = Math.max(1, Math.round(canvas.parentElement.clientWidth * shell.dpr));
    const h = Math.max(1, Math.round(canvas.parentElement.clientHeight * shell.dpr));
    if (canvas.width !== w) canvas.width = w;
    if (canvas.height !== h) canvas.height = h;
  }
  parts.measured();
}

/** The font of a text of `size` units of type, for a canvas that is not scaled. */
export function fontOf(shell, size) {
  return `${(shell.unit / shell.dpr) * BASE_PX * size}px ${shell.theme.font}`;
}

// ---- words --------------------------------------------------------------------------------------

/** All texts that stay: once a language. */
function label(shell) {
  const { n, words, parts } = shell;
  n.root.lang = words.language === "zh" ? "zh-Hans" : words.language;
  for (const name of ["start", "back", "next", "end", "project", "speed"]) {
    const text = words.t(parts.goKeys?.[name] ?? `go.${name}`);
    n[name].title = text;
    n[name].setAttribute("aria-label", text);
  }
  n.slider.setAttribute("aria-label", words.t("go.slider"));
  parts.label();
}

/** The sentence of the view, {text, tone}. A new tone is read aloud, with a pause after the one before. */
export function writeStory(shell, { text, tone }, now, pauseMs = 0) {
  const { n } = shell;
  put(n.say, text);
  n.say.dataset.tone = tone;
  if (tone === shell.spoken || now - shell.spokenAt < pauseMs) return;
  shell.spoken = tone;
  shell.spokenAt = now;
  put(n.live, text);
}

/** Where and when the run was made, and how it stands: live, over or retry. */
export function writeInfo(shell, text, state) {
  const { info } = shell.n;
  put(info, text);
  info.title = info.textContent;
  info.dataset.state = state;
}

/** What was measured is read back, in a run that was made earlier. */
export function tagOf(shell, name) {
  return name === "measured" && shell.data.recorded ? "recorded" : name;
}
