import assert from "node:assert/strict";
import test from "node:test";
import { copiedAt, factsAt, magnitudeOf, newRun, percentileOf, rowsAt, summaryAt, takeFrame } from "../../assets/js/run.mjs";

const LAYER = { num_kv_heads: 2, key_dim: 4, value_dim: 4 };
const STARTED = {
  kind: "run_started", accepted_ns: 1000, prompt_token_ids: [[1, 2, 3]], prompt_texts: [["a", "b", "c"]],
  settings: { batch: 1, cache: "full", dtype: "bfloat16", new_tokens: 3 }, spec: { layers: [LAYER, LAYER] },
};
const step = (i, phase, first, stop, text, start, end) => ({
  kind: "step_finished", step: i, phase, start_ns: start, end_ns: end, num_new_tokens: [stop - first], context_len: [stop],
  appended: [[first, stop]], dropped: [[]], token_ids: [text ? [5] : []], token_texts: [text ? [text] : []],
  kv_live_bytes: stop * 64, kv_reserved_bytes: 256 * 64, weight_bytes_read: 100, kv_bytes_read: stop * 64, kv_bytes_written: (stop - first) * 64,
});
const EVENTS = [
  STARTED, step(0, "prefill", 0, 2, "", 1000, 1100), step(1, "prefill", 2, 3, "x", 1100, 1200),
  { kind: "kv_sample", step: 1, sequence: 0, first: 0, stop: 3, k: Buffer.from([...Array(12).keys()]).toString("base64"), v: Buffer.alloc(12, 9).toString("base64") },
  step(2, "decode", 3, 4, "y", 1210, 1230), step(3, "decode", 4, 5, "z", 1240, 1290), { kind: "run_finished", end_ns: 1300, finish_reason: "length", sequence_reasons: ["length"] },
];

function frame(first, stop, extra = {}) {
  const events = EVENTS.slice(first, stop);
  const predicted = events.filter((e) => e.kind === "step_finished").map((e) => ({
    flops: 10, flops_without_cache: 100, kv_live_bytes: e.kv_live_bytes, kv_reserved_bytes: e.kv_reserved_bytes,
    kv_bytes_read: e.kv_bytes_read, kv_bytes_written: e.kv_bytes_written, weight_bytes_read: 100,
  }));
  const columns = events.filter((e) => e.kind === "step_finished").map((e) => e.appended[0][1]);
  const sizes = events.filter((e) => e.kind === "run_started").map(() => ({ row_bytes: 64, element_bytes: 2 }));
  const header = { first, count: events.length, status: { state: "running" }, error: null, sizes, columns, predicted, ...extra };
  return [header, ...events].map((e) => JSON.stringify(e)).join("\n");
}

/** A frame with something else in its events; the header stays. */
function counted(text, from, to) {
  const cut = text.indexOf("\n");
  return text.slice(0, cut) + text.slice(cut).replace(from, to);
}

test("frames that overlap are taken once", () => {
  const run = newRun();
  assert.deepEqual(takeFrame(run, frame(0, 3)), { gap: false, added: 3 });
  assert.deepEqual(takeFrame(run, frame(1, 6)), { gap: false, added: 3 });
  assert.equal(run.steps.length, 4);
  assert.deepEqual(run.predicted.map((p) => p.kv_live_bytes), run.steps.map((s) => s.kv_live_bytes));
});

test("a frame beyond a gap is not taken", () => {
  const run = newRun();
  takeFrame(run, frame(0, 2));
  assert.deepEqual(takeFrame(run, frame(4, 6)), { gap: true, added: 0 });
  assert.equal(run.numEvents, 2);
});

test("a frame without events carries only where the run stands", () => {
  const run = newRun();
  takeFrame(run, frame(0, 0, { status: { state: "queued", position: 2, text: "second" } }));
  assert.equal(run.status.position, 2);
  assert.equal(run.numEvents, 0);
});

test("every prefix shows its own rows, whatever has arrived", () => {
  const run = newRun();
  takeFrame(run, frame(0, EVENTS.length));
  assert.deepEqual([0, 1, 2, 3, 4].map((k) => rowsAt(run, k)[0]), [0, 2, 3, 4, 5]);
});

test("the first token is billed for all pieces of its prompt, any other for its own step", () => {
  const run = newRun();
  takeFrame(run, frame(0, EVENTS.length));
  assert.equal(factsAt(run, 2).token.weights, 200);
  assert.equal(factsAt(run, 2).token.newRows, 3);
  assert.equal(factsAt(run, 4).token.weights, 100);
  assert.equal(factsAt(run, 4).agrees, true);
});

test("a count that differs from the formula is seen", () => {
  const run = newRun();
  const text = counted(frame(0, EVENTS.length), '"kv_live_bytes":256', '"kv_live_bytes":255');
  takeFrame(run, text);
  assert.equal(factsAt(run, 3).agrees, false);
  assert.equal(factsAt(run, 4).agrees, true);
});

test("times are the same step by step, at once, and after going back", () => {
  const whole = newRun();
  takeFrame(whole, frame(0, EVENTS.length));
  const grown = newRun();
  for (let i = 0; i < EVENTS.length; i++) {
    takeFrame(grown, frame(i, i + 1));
    assert.deepEqual(summaryAt(grown, grown.steps.length), summaryAt(whole, grown.steps.length));
  }
  assert.deepEqual(summaryAt(whole, 2), { ttftNs: 200, numTokens: 1, decodeTokens: 0, decodeNs: 0, numGaps: 0, secondNs: null, itlMedianNs: null, itlP95Ns: null, tpotNs: null, tokensPerS: null });
  assert.equal(summaryAt(whole, 4).itlMedianNs, 45);
  assert.equal(summaryAt(whole, 4).decodeTokens, 2, "the first token is not decode's");
  assert.equal(summaryAt(whole, 4).decodeNs, 90);
});

test("percentiles interpolate linearly", () => {
  assert.equal(percentileOf([], 0.5), null);
  assert.equal(percentileOf([3], 0.95), 3);
  assert.equal(percentileOf([1, 2, 3, 4], 0.5), 2.5);
});

test("a byte gives back its magnitude within 6 percent, zero is zero", () => {
  assert.equal(magnitudeOf(0), 0);
  assert.equal(magnitudeOf(128), 1);
  assert.ok(Math.abs(magnitudeOf(140) - 2) < 1e-12);
});

test("what is read beyond one pass over the rows was a copy into more memory", () => {
  const run = newRun();
  takeFrame(run, counted(frame(0, EVENTS.length), '"kv_bytes_read":256', '"kv_bytes_read":448'));
  assert.deepEqual([0, 1, 2, 3].map((i) => copiedAt(run, i)), [0, 0, 192, 0]);
  assert.equal(factsAt(run, 3).token.copied, 192);
});

test("bytes that a source does not know are null, not 0", () => {
  const run = newRun();
  takeFrame(run, counted(frame(0, EVENTS.length), /"weight_bytes_read":\d+/g, '"weight_bytes_read":null'));
  const facts = factsAt(run, 2);
  assert.equal(facts.token.weights, null);
  assert.equal(facts.token.read, 320);
  assert.equal(facts.movedBytes, null);
});

test("rows held are a running count: found ones, evictions and rejected drafts are in it", () => {
  const events = [
    { ...STARTED, found_len: [2] },
    { ...step(0, "prefill", 2, 3, "x", 1000, 1100), dropped: [[[0, 1]]] },
    { ...step(1, "decode", 3, 7, "y", 1100, 1200), dropped: [[[5, 7]]] },
    step(2, "decode", 5, 6, "z", 1200, 1300),
  ];
  const header = { first: 0, count: 4, status: null, error: null, sizes: [null], columns: [3, 6, 5], predicted: [null, null, null] };
  const run = newRun();
  takeFrame(run, [header, ...events].map((e) => JSON.stringify(e)).join("\n"));
  assert.deepEqual([0, 1, 2, 3].map((k) => rowsAt(run, k)[0]), [2, 2, 4, 5]);
  assert.deepEqual([1, 2, 3].map((k) => factsAt(run, k).columns), [3, 6, 5]);
});

test("a model that a server does not tell is a run without sizes", () => {
  const run = newRun();
  const header = { first: 0, count: 2, status: null, error: null, sizes: [null], columns: [3], predicted: [null] };
  takeFrame(run, [header, { ...STARTED, spec: null }, step(0, "prefill", 0, 3, "x", 1000, 1100)].map((e) => JSON.stringify(e)).join("\n"));
  const facts = factsAt(run, 1);
  assert.deepEqual([run.rowBytes, run.elementBytes, run.numColumns, facts.padBytes, facts.predictedLive, facts.flopsKnown], [null, null, 0, null, null, false]);
  assert.equal(copiedAt(run, 0), 0);
});

test("several tokens in a step are several in TPOT and one gap", () => {
  const run = newRun();
  const header = { first: 0, count: 3, status: null, error: null, sizes: [null], columns: [3, 6], predicted: [null, null] };
  const several = { ...step(1, "decode", 3, 6, "y", 1100, 1400), token_ids: [[5, 5, 5]], token_texts: [["y", "z", "w"]] };
  takeFrame(run, [header, STARTED, step(0, "prefill", 0, 3, "x", 1000, 1100), several].map((e) => JSON.stringify(e)).join("\n"));
  const { tpotNs, numGaps, itlMedianNs, decodeTokens } = summaryAt(run, 2);
  assert.deepEqual({ tpotNs, numGaps, itlMedianNs, decodeTokens }, { tpotNs: 100, numGaps: 1, itlMedianNs: 300, decodeTokens: 3 });
});
