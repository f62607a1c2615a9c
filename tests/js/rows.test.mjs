import assert from "node:assert/strict";
import test from "node:test";
import { columnLayout, rowBands } from "../../assets/js/layout.mjs";
import { drawKept, drawRejected } from "../../assets/js/gone.mjs";
import { fillRows, newPyramid, paletteOf } from "../../assets/js/matrix.mjs";
import { evictedRanges, goneShare, isCellGone } from "../../assets/js/rows.mjs";
import {
  copiedAt, factsAt, keptAt, newRun, reservedRowsOf, rowsAt, summaryAt, takeEvent,
} from "../../assets/js/run.mjs";

const LAYER = { num_kv_heads: 2, key_dim: 4, value_dim: 4 };
const ROW = 64; // bytes: 2 layers x 2 heads x (4 + 4) x 2
const PROMPT = ["a", "b", "c", "d"];

/** A run of one sequence (or of those whose prompts are given) that has begun. */
function begun({ prompts = [PROMPT], cache = "full", ...more } = {}) {
  const run = newRun();
  takeEvent(run, {
    kind: "run_started", accepted_ns: 0, prompt_token_ids: prompts.map((texts) => texts.map((_, i) => 10 + i)),
    prompt_texts: prompts, spec: { layers: [LAYER, LAYER] },
    settings: { batch: prompts.length, cache, dtype: "bfloat16", new_tokens: 9 }, ...more,
  }, { sizes: { row_bytes: ROW, element_bytes: 2 } });
  return run;
}

/** A step of one sequence: rows [first, stop), what it gave, what it dropped. Its bytes are those of its rows. */
function step(run, first, stop, { phase = "decode", texts = ["x"], dropped = [], ids, columns = stop, ...more } = {}) {
  ids ??= texts.map((_, i) => 50 + i);
  const i = run.steps.length;
  takeEvent(run, {
    kind: "step_finished", step: i, phase, start_ns: i * 100, end_ns: i * 100 + 50, num_new_tokens: [stop - first],
    context_len: [stop], appended: [[first, stop]], dropped: [dropped], token_ids: [ids], token_texts: [texts],
    kv_live_bytes: stop * ROW, kv_reserved_bytes: 256 * ROW, weight_bytes_read: 100, kv_bytes_read: stop * ROW,
    kv_bytes_written: (stop - first) * ROW, ...more,
  }, { columns, predicted: {} });
}

const prefix = (run, of) => run.steps.map((_, k) => of(run, k + 1));
const bitsOf = (cells) => {
  const bytes = Buffer.alloc(Math.ceil(cells.length / 8));
  cells.forEach((kept, i) => { bytes[i >> 3] |= kept << (i & 7); });
  return bytes.toString("base64");
};

// ---- rows that were found -----------------------------------------------------------------------

test("rows that were found are held before the first step, and appended begins after them", () => {
  const run = begun({ found_len: [3] });
  step(run, 3, 4, { phase: "prefill" });
  step(run, 4, 5);
  assert.deepEqual([0, 1, 2].map((k) => rowsAt(run, k)[0]), [3, 4, 5]);
  assert.equal(keptAt(run, 0, 2).found, 3);
});

test("a run without found rows, drops or drafts has nothing to mark", () => {
  const run = begun();
  step(run, 0, 4, { phase: "prefill" });
  step(run, 4, 5);
  assert.deepEqual([0, 1, 2].map((k) => keptAt(run, 0, k)), [null, null, null]);
});

// ---- drafts -------------------------------------------------------------------------------------

/** Two steps that draft three tokens: of the first one is accepted, of the second all. */
function drafting() {
  const run = begun();
  step(run, 0, 4, { phase: "prefill", texts: ["x"], ids: [50] });
  step(run, 4, 8, { texts: ["y", "z"], ids: [51, 52], drafted: [[51, 12, 99]], dropped: [[6, 8]], columns: 6 });
  step(run, 6, 10, { texts: ["p", "q", "r", "s"], ids: [53, 54, 55, 56], drafted: [[53, 54, 55]], columns: 10 });
  return run;
}

test("rejected drafts are taken back and their positions come again", () => {
  const run = drafting();
  assert.deepEqual(prefix(run, (r, k) => factsAt(r, k).rows[0]), [4, 6, 10]);
  assert.deepEqual(prefix(run, (r, k) => factsAt(r, k).ends[0]), [4, 6, 10]);
  assert.deepEqual(prefix(run, (r, k) => factsAt(r, k).evicted[0]), [0, 0, 0]);
});

test("rejected drafts are seen at their step only, with the texts that the run knows", () => {
  const run = drafting();
  assert.deepEqual(prefix(run, (r, k) => factsAt(r, k).rejected[0]), [null, [6, 8], null]);
  assert.deepEqual(keptAt(run, 0, 2).drafts, ["c", "#99"], "12 stands in the prompt, 99 nowhere");
  assert.equal(keptAt(run, 0, 3), null);
});

test("a step that gives several tokens counts each, and time per token is over all", () => {
  const run = drafting();
  assert.deepEqual(run.pieces[0].map((piece) => piece.text), ["x", "y", "z", "p", "q", "r", "s"]);
  const { numTokens, numGaps, tpotNs, decodeTokens } = summaryAt(run, 3);
  assert.deepEqual([numTokens, decodeTokens, numGaps, tpotNs], [7, 6, 2, 200 / 6]);
  assert.equal(factsAt(run, 3).token.given, 4);
});

test("a range that begins with the step's own rows is no rollback: they are evicted", () => {
  const run = begun({ cache: "window:2" });
  step(run, 0, 4, { phase: "prefill", dropped: [[0, 3]] });
  assert.deepEqual([factsAt(run, 1).ends[0], rowsAt(run, 1)[0], factsAt(run, 1).rejected[0]], [4, 1, null]);
});

test("a step may evict and roll back at once", () => {
  const run = begun({ cache: "window:4" });
  step(run, 0, 4, { phase: "prefill" });
  step(run, 4, 7, { dropped: [[0, 2], [5, 7]] });
  const { rows, ends, evicted, rejected } = factsAt(run, 2);
  assert.deepEqual([rows[0], ends[0], evicted[0], rejected[0]], [3, 5, 2, [5, 7]]);
});

test("a row that is sampled anew after it was taken back is drawn anew", () => {
  const columns = columnLayout([2, 2], 100);
  const run = drafting();
  const sample = (first, values) => takeEvent(run, {
    kind: "kv_sample", step: 1, sequence: 0, first, stop: first + values.length / 4,
    k: Buffer.from(values).toString("base64"), v: Buffer.from(values).toString("base64"),
  });
  sample(0, [...Array(32).keys()].map((n) => 100 + n));
  const pyramid = newPyramid(columns, paletteOf([[0, 0, 0], [255, 255, 255]], [1, 1, 1]), 0);
  fillRows(pyramid, run.sequences[0].k, run.sequences[0]);
  sample(6, Array(8).fill(200));
  fillRows(pyramid, run.sequences[0].k, run.sequences[0]);
  assert.deepEqual([...pyramid.levels[0].slice(24, 28)], [255, 255, 255, 255]);
  assert.equal(pyramid.rows, 8);
});

test("rows before the first sample have none, and set no contrast", () => {
  const columns = columnLayout([2, 2], 100);
  const run = begun({ found_len: [2] });
  step(run, 2, 4, { phase: "prefill" });
  const values = Buffer.from([100, 120, 140, 160, 101, 121, 141, 161]).toString("base64");
  takeEvent(run, { kind: "kv_sample", step: 0, sequence: 0, first: 2, stop: 4, k: values, v: values });
  const pyramid = newPyramid(columns, paletteOf([[0, 0, 0], [255, 255, 255]], [1, 1, 1]), 0);
  fillRows(pyramid, run.sequences[0].k, run.sequences[0]);
  assert.deepEqual([...pyramid.levels[0].slice(0, 8)], Array(8).fill(0));
  const plain = newPyramid(columns, pyramid.palette, 0);
  fillRows(plain, run.sequences[0].k.slice(8), { first: 0, sampled: 2, redone: [] });
  assert.deepEqual(pyramid.levels[0].slice(8, 16), plain.levels[0].slice(0, 8));
});

// ---- eviction -----------------------------------------------------------------------------------

/** Sinks of one row and a window: a row goes with each step once there are four. */
function evicting() {
  const run = begun({ cache: "sinks:1+3" });
  step(run, 0, 4, { phase: "prefill" });
  step(run, 4, 5, { dropped: [[1, 2]] });
  step(run, 5, 6, { dropped: [[2, 3]] });
  step(run, 6, 7, { dropped: [[3, 4]] });
  return run;
}

test("evicted rows leave the count and keep their place, at every prefix", () => {
  const run = evicting();
  assert.deepEqual(prefix(run, (r, k) => rowsAt(r, k)[0]), [4, 4, 4, 4]);
  assert.deepEqual(prefix(run, (r, k) => factsAt(r, k).ends[0]), [4, 5, 6, 7]);
  assert.deepEqual(prefix(run, (r, k) => evictedRanges(r.rows[0], 0, 9, k)), [[], [[1, 2]], [[1, 3]], [[1, 4]]]);
  assert.deepEqual(prefix(run, (r, k) => evictedRanges(r.rows[0], 2, 3, k)), [[], [], [[2, 3]], [[2, 3]]]);
});

test("scattered evictions are separate places", () => {
  const run = begun({ cache: "heavy:0.5" });
  step(run, 0, 9, { phase: "prefill", dropped: [[1, 2], [3, 6]] });
  assert.deepEqual(evictedRanges(run.rows[0], 0, 9, 1), [[1, 2], [3, 6]]);
  assert.equal(goneShare(run.rows[0], [0, 1], 0, 4, 1), 0.5);
});

test("what positions no longer tell is not told: copies, pads, room for rows", () => {
  for (const run of [evicting(), drafting()]) {
    assert.equal(copiedAt(run, 0), 0);
    assert.equal(copiedAt(run, 1), null);
    assert.deepEqual([factsAt(run, 1).token.copied, factsAt(run, 2).token.copied], [0, null]);
    assert.deepEqual([1, 2].map((k) => factsAt(run, k).padBytes), [0, null]);
    assert.deepEqual([1, 2].map((k) => factsAt(run, k).endedBytes), [0, null]);
    assert.deepEqual([factsAt(run, 1).plain, factsAt(run, 2).plain], [true, false]);
  }
  assert.equal(reservedRowsOf(evicting(), 2), null, "room is not at the end of the positions");
  assert.equal(reservedRowsOf(drafting(), 2), 256, "a rollback leaves them in order");
  assert.equal(factsAt(drafting(), 3).token.copied, 0, "and its next step can be told again");
});

// ---- cells --------------------------------------------------------------------------------------

test("a cell that a head has given up is gone from that step on, the lowest bit of a byte first", () => {
  const run = begun({ cache: "heavy:0.5" });
  step(run, 0, 4, { phase: "prefill" });
  const kept = (at, first, cells) => takeEvent(run, {
    kind: "kept_cells", step: at, sequence: 0, first, stop: first + cells.length / 4, kept: bitsOf(cells),
  });
  kept(0, 1, [1, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1]); // rows 1 to 3: bytes end within a row
  step(run, 4, 5);
  kept(1, 1, [1, 0, 0, 1]);
  const mark = (row, cell, k) => Number(isCellGone(run.rows[0], row, cell, k));
  const gone = (k) => [0, 1, 2, 3, 4].map((row) => [0, 1, 2, 3].map((cell) => mark(row, cell, k)).join(""));
  assert.deepEqual(gone(0), ["0000", "0000", "0000", "0000", "0000"]);
  assert.deepEqual(gone(1), ["0000", "0100", "0000", "1110", "0000"]);
  assert.deepEqual(gone(2), ["0000", "0110", "0000", "1110", "0000"]);
  assert.equal(goneShare(run.rows[0], [0, 1, 2, 3], 1, 4, 2), 5 / 12);
  assert.equal(keptAt(run, 0, 2).cells, true);
  assert.equal(run.numEvents, 5);
});

test("the cells of a place that comes again are held again", () => {
  const run = begun({ cache: "heavy:0.5" });
  step(run, 0, 4, { phase: "prefill" });
  step(run, 4, 6, { dropped: [[5, 6]] });
  const kept = bitsOf([1, 1, 1, 1, 0, 0, 0, 0]);
  takeEvent(run, { kind: "kept_cells", step: 1, sequence: 0, first: 4, stop: 6, kept });
  step(run, 5, 6);
  assert.equal(isCellGone(run.rows[0], 5, 0, 3), false);
});

// ---- a path that moves more than it needs --------------------------------------------------------

test("bytes needed are summed where a step says them, and are what was read where it does not", () => {
  const run = begun();
  step(run, 0, 2, { phase: "prefill", texts: [] });
  step(run, 2, 4, { phase: "prefill", kv_bytes_read: 1000, kv_bytes_needed: 256 });
  step(run, 4, 5);
  assert.equal(factsAt(run, 1).token.needed, null);
  assert.equal(factsAt(run, 2).token.needed, 2 * ROW + 256);
  assert.equal(factsAt(run, 3).token.needed, null);
  assert.equal(copiedAt(run, 1), null, "what is beyond one read of each column was no copy");
});

// ---- the picture --------------------------------------------------------------------------------

const THEME = { card: "card", line: "line", pre: "pre", mut: "mut", cardRgb: [0, 0, 0], font: "test" };

/** What is drawn of a run after k steps, as [what, y, h] in units of a row. */
function drawnOf(run, k, draw) {
  const drawn = [];
  const note = (what) => (x, y, w, h) => drawn.push([what, Math.round(y / 1.2) / 10, Math.round(h / 1.2) / 10]);
  const nothing = () => {};
  const context = {
    fillRect: note("fill"), strokeRect: note("outline"), fillText: (text) => drawn.push(["text", text]),
    setLineDash: nothing, beginPath: nothing, moveTo: nothing, lineTo: nothing, stroke: nothing,
  };
  const { ends, rejected } = factsAt(run, k);
  const columns = columnLayout([2, 2], 100);
  const bands = rowBands(rejected[0]?.[1] ?? ends[0], 240, 12, null);
  const box = { x0: 0, top: 0, u: 1, rowPx: 12 };
  const s = { box, columns, theme: THEME, rows: ends[0], kept: keptAt(run, 0, k), words: { rejected: "rejected" } };
  for (const band of bands) draw(context, s, band, band.from, (row) => (row - band.from) * 12 + band.y);
  return drawn;
}

test("an evicted row is an empty place with an outline, where it was", () => {
  assert.deepEqual(drawnOf(evicting(), 1, drawKept), []);
  assert.deepEqual(drawnOf(evicting(), 3, drawKept), [
    ["fill", 1, 2], ["outline", 1, 0.8], ["outline", 2, 0.8],
  ]);
});

test("rejected drafts stand below the rows, named, at their own step", () => {
  assert.deepEqual(drawnOf(drafting(), 2, drawRejected), [
    ["fill", 6, 2], ["outline", 6, 0.8], ["text", "rejected"], ["outline", 7, 0.8], ["text", "rejected"],
  ]);
  assert.deepEqual(drawnOf(drafting(), 3, drawRejected), []);
});
