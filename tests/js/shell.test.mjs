import assert from "node:assert/strict";
import test, { mock } from "node:test";
import { isOver, newRun, takeFrame } from "../../assets/js/run.mjs";

// A page without a browser: nodes that remember, frames that are drawn when the test says so.
class Node {
  constructor(tagName) {
    Object.assign(this, { tagName, children: [], dataset: {}, style: {}, heard: {}, textContent: "" });
    this.isConnected = true;
    const on = new Set();
    this.classList = {
      add: (name) => on.add(name), remove: (name) => on.delete(name), contains: (name) => on.has(name),
      toggle: (name, wanted) => (wanted ? on.add(name) : on.delete(name)),
    };
  }
  get firstChild() { return this.children[0]; }
  append(...children) { this.children.push(...children); }
  add(child) { this.children.push(child); }
  after() {}
  replaceChildren(...children) { this.children = children; }
  remove() { this.isConnected = false; }
  cloneNode() { return new Node(this.tagName); }
  setAttribute(name, value) { this[name] = value; }
  addEventListener(kind, call) { (this.heard[kind] ??= []).push(call); }
  removeEventListener(kind, call) { this.heard[kind] = this.heard[kind].filter((one) => one !== call); }
  fire(kind, event = {}) { for (const call of this.heard[kind] ?? []) call(event); }
  getContext() { return { fillRect() {}, getImageData: (x, y, w) => ({ data: new Uint8Array(4 * w) }) }; }
}

const page = new Node("document");
const frames = new Map();
Object.assign(page, { documentElement: new Node("html"), createElement: (tag) => new Node(tag.toUpperCase()) });
page.createElementNS = (space, tag) => new Node(tag);
Object.assign(globalThis, {
  document: page,
  window: { devicePixelRatio: 1 },
  Option: class extends Node {},
  matchMedia: () => ({ matches: false }),
  getComputedStyle: () => ({ fontSize: "13px", fontFamily: "test", backgroundColor: "#000" }),
  ResizeObserver: class { observe() {} disconnect() {} },
  requestAnimationFrame: (call) => { frames.set(frames.size + 1, call); return frames.size; },
  cancelAnimationFrame: (id) => frames.delete(id),
});
const { mountShell, newShell, writeStory } = await import("../../assets/js/shell.mjs");

function draw(now = 0) {
  const due = [...frames.values()];
  frames.clear();
  for (const call of due) call(now);
}

const frame = (lines, head = {}) => [
  JSON.stringify({ first: 0, count: lines.length, status: { state: "running" }, error: null, sizes: [], columns: [], predicted: [], ...head }),
  ...lines.map((line) => JSON.stringify(line)),
].join("\n");
const STARTED = {
  kind: "run_started", accepted_ns: 0, prompt_token_ids: [[1]], prompt_texts: [["a"]],
  settings: { batch: 1, cache: "full", dtype: "float32" }, spec: { layers: [] },
};
const FINISHED = { kind: "run_finished", end_ns: 5, finish_reason: "length", sequence_reasons: ["length"] };

/** A view of runs that draws nothing: `drawn` is what each draw was told, `said` what it told the page. */
function visit(more = {}) {
  const view = { drawn: [], said: [], resets: 0, begun: 0 };
  let shell;
  const parts = {
    skeleton: (n) => Object.assign(n, { root: new Node("DIV"), bar: new Node("CANVAS") }),
    canvases: () => [], newStore: newRun, take: takeFrame, isOver,
    isReady: (run) => Boolean(run.started), track: () => (shell.store?.started ? shell.store : null),
    reset: () => view.resets++, first: () => view.begun++, label() {}, measured() {},
    draw: (now, dirty) => { view.drawn.push(Object.keys(dirty).sort()); return { animating: false, wait: 0 }; },
    step: (run, by, event) => view.said.push(["step", by, Boolean(event.shiftKey)]),
    scrub: (n) => ({ canvas: n.bar, shareAt: () => 0.5, seek: (share) => view.said.push(["seek", share]) }),
    pop: { key: "figure" }, terms: "term.", ...more,
  };
  const parent = new Node("DIV");
  const render = mountShell(() => (shell = newShell(parent, parts)));
  view.rerun = (data) => render({
    parentElement: parent, data: { strings: {}, transport: "poll", over: true, ...data },
    setStateValue: (...said) => view.said.push(said), setTriggerValue: (...said) => view.said.push(said),
  });
  view.key = (key, more = {}) => {
    let prevented = false;
    page.fire("keydown", { key, composedPath: () => [page], preventDefault: () => { prevented = true; }, ...more });
    return prevented;
  };
  view.leave = () => { shell.n.root.isConnected = false; page.heard.keydown = []; frames.clear(); };
  Object.defineProperty(view, "shell", { get: () => shell });
  return view;
}

test("what has changed is drawn once, however often it is said", () => {
  const view = visit();
  view.rerun({ run_id: "a", frames: [frame([STARTED])] });
  view.shell.invalidate("time");
  draw();
  draw();
  assert.deepEqual(view.drawn, [["all", "run", "time", "words"]]);
  view.leave();
});

test("a frame that cannot be read is said; the run stays broken, and the next one is shown", () => {
  const warned = mock.method(console, "warn", () => {});
  const view = visit();
  view.rerun({ run_id: "a", frames: ["<html>", frame([STARTED])] });
  assert.deepEqual([view.shell.state, view.shell.store.numEvents], ["broken", 0]);
  view.rerun({ run_id: "b", frames: [frame([STARTED])] });
  assert.deepEqual([view.shell.state, view.shell.store.numEvents], [null, 1]);
  assert.equal(warned.mock.callCount(), 1);
  warned.mock.restore();
  view.leave();
});

test("a run that cannot be drawn is said like one that cannot be read", () => {
  const warned = mock.method(console, "warn", () => {});
  let fails = true;
  const view = visit({ draw: () => { if (fails) throw new Error("number"); return { animating: false, wait: 0 }; } });
  view.rerun({ run_id: "a", frames: [frame([STARTED])] });
  draw();
  fails = false;
  assert.deepEqual([view.shell.state, view.shell.store.started], ["broken", null]);
  draw();
  warned.mock.restore();
  view.leave();
});

test("a gap is told to the page that feeds, and nothing of that frame is taken", () => {
  const taken = [];
  const view = visit({ took: (added) => taken.push(added) });
  view.rerun({ run_id: "a", frames: [frame([STARTED]), frame([FINISHED], { first: 7 })] });
  assert.deepEqual([view.said, taken], [[["resume", 1]], [1]]);
  assert.equal(view.shell.store.finished, null);
  view.leave();
});

test("the end of a run is told once, and only where the page does not know it", () => {
  const whole = frame([STARTED, FINISHED]);
  for (const [data, told] of [[{ over: true }, []], [{ over: false }, [["finished", "a"]]]]) {
    const view = visit();
    view.rerun({ run_id: "a", frames: [whole], ...data });
    view.rerun({ run_id: "a", frames: [whole], ...data });
    assert.deepEqual(view.said, told);
    view.leave();
  }
  const seen = visit();
  seen.rerun({ run_id: "a", frames: [frame([STARTED]), whole] });
  assert.deepEqual(seen.said, [["finished", "a"]], "it was seen while it went on");
  seen.leave();
});

test("each run begins once, and another one forgets what was", () => {
  const view = visit();
  view.rerun({ run_id: "a", frames: [frame([STARTED]), frame([STARTED, FINISHED])] });
  assert.deepEqual([view.begun, view.resets], [1, 1]);
  view.shell.player.speed = 4;
  view.rerun({ run_id: "b", frames: [frame([STARTED])] });
  assert.deepEqual([view.begun, view.resets, view.shell.player.speed], [2, 2, 4], "the speed is the visitor's");
  view.leave();
});

test("keys are for the view only while there is a run, and not while somebody types", () => {
  const view = visit();
  view.rerun({ run_id: "a", frames: [] });
  assert.equal(view.key("ArrowRight"), false);
  view.rerun({ run_id: "a", frames: [frame([STARTED])] });
  assert.equal(view.key("ArrowRight", { shiftKey: true }), true);
  assert.equal(view.key("ArrowLeft", { composedPath: () => [{ tagName: "TEXTAREA" }] }), false);
  assert.equal(view.key("ArrowLeft", { ctrlKey: true }), false);
  assert.equal(view.key("x"), false);
  assert.deepEqual(view.said, [["step", 1, true]]);
  view.leave();
});

test("projection is told to the page when a key asks for it, and not when the page does", () => {
  const told = [];
  const view = visit({ projected: (on) => told.push(on) });
  view.rerun({ run_id: "a", projection: true });
  assert.ok(view.shell.n.root.classList.contains("projection"));
  assert.deepEqual(told, []);
  view.key("f");
  assert.deepEqual(told, [false]);
  assert.ok(!page.documentElement.classList.contains("st-projection"));
  view.leave();
});

test("slider and bar go to the same place, and a drag of the slider leaves its thumb alone", () => {
  const view = visit();
  view.rerun({ run_id: "a", frames: [frame([STARTED])] });
  const { n } = view.shell;
  n.slider.value = "250";
  n.slider.fire("input");
  assert.equal(view.shell.dragging, true);
  n.slider.fire("change");
  n.bar.setPointerCapture = () => {};
  n.bar.fire("pointerdown", {});
  assert.deepEqual(view.said, [["seek", 0.25], ["seek", 0.5]]);
  assert.equal(view.shell.dragging, false);
  view.leave();
});

test("a new tone is read aloud, one that follows too soon is not", () => {
  const view = visit();
  view.rerun({ run_id: "a" });
  const { n } = view.shell;
  writeStory(view.shell, { text: "busy", tone: "busy" }, 1000, 900);
  writeStory(view.shell, { text: "plain", tone: "plain" }, 1500, 900);
  assert.deepEqual([n.say.textContent, n.live.textContent], ["plain", "busy"]);
  writeStory(view.shell, { text: "plain", tone: "plain" }, 1900, 900);
  assert.equal(n.live.textContent, "plain");
  view.leave();
});
