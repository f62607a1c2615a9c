import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { figuresOf } from "../../assets/js/figures.mjs";
import { wordsOf } from "../../assets/js/words.mjs";

const strings = JSON.parse(readFileSync(new URL("../../assets/locales/en/view.json", import.meta.url)));
const words = wordsOf(strings, "en");
const plain = (text) => text.replace(/[\u00a0\u202f]/g, " ");
const MIB = 2 ** 20;
const RUN = {
  started: { settings: { batch: 1, cache: "full", dtype: "bfloat16" }, spec: { layers: [{ num_kv_heads: 1, key_dim: 4, value_dim: 4 }] } },
  rowBytes: 16, elementBytes: 2, promptColumns: 3, numColumns: 1,
};
const SUM = { ttftNs: 2e9, numTokens: 96, decodeTokens: 95, decodeNs: 19e9, numGaps: 95, itlMedianNs: 2e8, itlP95Ns: 3e8, tokensPerS: 5 };
const facts = (token, more) => ({
  k: 2, step: { appended: [[3, 4]], num_new_tokens: [1] }, phase: "decode", rows: [4], columns: 4, liveBytes: 46 * MIB, reservedBytes: 51 * MIB,
  predictedLive: 46 * MIB, predictedReserved: 51 * MIB, agrees: true, readAgrees: true, movedBytes: 900 * MIB, flopsWithoutCache: 10, flopsKnown: true,
  padBytes: 0, endedBytes: 0, reservedRows: null, plain: true, evicted: [0], rejected: [null],
  token: { weights: 256 * MIB, read: 46 * MIB, written: 16, copied: 0, needed: null, flops: 1, newRows: 1, given: 1, ...token }, ...more,
});
const figures = (f, run = RUN) => figuresOf(run, f, SUM, 0, { ended: true }, words);

test("what has moved is read + written, and is called so", () => {
  const { read } = figures(facts());
  assert.deepEqual(read.notes.map(plain), ["weights 256.0 MiB · KV 46.0 MiB", "900.0 MiB moved so far"]);
  assert.match(read.numbers, /moved so far \(read \+ written\)/);
});

test("a copy into more memory is a term of its own", () => {
  const { read } = figures(facts({ read: 91 * MIB, copied: 45 * MIB }));
  assert.equal(plain(read.unit), "MiB · copy 45.0 MiB");
  assert.match(plain(read.notes[0]), /KV 46\.0 MiB/);
  assert.match(plain(read.numbers), /47 185 920 copied/);
});

test("bytes that are not known are not 0", () => {
  const none = figures(facts({ weights: null, read: null, written: null }, { movedBytes: null, liveBytes: null, reservedBytes: null }));
  for (const name of ["read", "held"]) {
    assert.equal(none[name].value, "–");
    assert.deepEqual(none[name].notes, ["not known for this source"]);
  }
  const half = figures(facts({ weights: null }, { movedBytes: null })).read;
  assert.deepEqual(half.notes.map(plain), ["weights not known · KV 46.0 MiB", ""]);
  assert.doesNotMatch(figures(facts(), { ...RUN, rowBytes: 0 }).rows.notes[0], / 0 B/);
});

test("a model that a server does not tell has figures with the reason, not numbers", () => {
  const unknown = { started: { ...RUN.started, spec: null }, rowBytes: null, elementBytes: null, numColumns: 0, promptColumns: 3 };
  for (const cache of ["full", "none"]) {
    unknown.started.settings = { ...RUN.started.settings, cache };
    const all = figures(facts({ weights: null, read: null, written: null, flops: null }, {
      liveBytes: null, reservedBytes: null, predictedLive: null, predictedReserved: null, flopsWithoutCache: null, flopsKnown: false, padBytes: null, endedBytes: null,
    }), unknown);
    assert.equal(all.held.value, "–");
    assert.doesNotMatch(JSON.stringify(all), /NaN|undefined|null B/);
  }
});

test("decode speed names the tokens that it is made of, and their time", () => {
  const { rate } = figures(facts());
  assert.equal(plain(rate.extra), "95 in 19.0 s");
  assert.match(plain(rate.numbers), /^95 tokens after the first, in 19\.0 s/);
});

test("rows that were reused, evicted or rejected are told apart from those of the step", () => {
  const more = { step: { appended: [[3, 7]], num_new_tokens: [4] }, rejected: [[5, 7]], evicted: [2] };
  const started = { ...RUN.started, found_len: [3] };
  const { rows } = figures(facts({}, more), { ...RUN, started });
  assert.match(rows.notes[0], /^\+2 this step/);
  assert.equal(rows.unit, "3 reused · 2 evicted · 2 drafted, rejected");
  assert.equal(figures(facts()).rows.unit, "");
});

test("where positions no longer tell rows the formula is not spelled with them", () => {
  assert.match(figures(facts()).held.numbers, /^live: 1 × 4 × 16 = /);
  for (const figure of [figures(facts({}, { plain: false })), figures(facts(), { ...RUN, rowBytes: 0 })]) {
    assert.match(plain(figure.held.numbers), /^48 234 496 counted/);
  }
});

test("a path that moves more than it needs says both", () => {
  const { read } = figures(facts({ read: 92 * MIB, copied: null, needed: 46 * MIB }));
  assert.equal(plain(read.notes[1]), "KV moved 92.0 MiB, needed 46.0 MiB");
  assert.match(plain(read.numbers), /KV: moved 96 468 992 bytes, of which 48 234 496 needed/);
  assert.equal(read.unit, "MiB", "what was a copy is not known");
});

test("a step that gave several tokens says for how many it worked", () => {
  const { read, work } = figures(facts({ given: 3 }));
  assert.deepEqual([read.unit, work.unit], ["MiB for 3 tokens", "FLOP for 3 tokens"]);
  assert.equal(figures(facts()).read.unit, "MiB");
});
