import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { labelOf } from "../../assets/js/stage.mjs";
import { axisWords, countOf, flopParts, modelOf, ratioOf, secondsOf, sentenceOf, sizeOf, timeOf, turnsText, wordsOf } from "../../assets/js/words.mjs";

const strings = (language) => JSON.parse(readFileSync(new URL(`../../assets/locales/${language}/view.json`, import.meta.url)));
const plain = (text) => text.replace(/[\u00a0\u202f]/g, " ");

test("numbers keep the digits that count", () => {
  assert.equal(plain(countOf(1234567)), "1 234 567");
  assert.equal(plain(sizeOf(23040)), "23 040 B");
  assert.equal(plain(sizeOf(14722560)), "14.0 MiB");
  assert.equal(plain(secondsOf(2.1e9)), "2.1 s");
  assert.equal(plain(secondsOf(0.0214e9)), "0.021 s");
  assert.equal(plain(timeOf(2.1e9)), "2.10 s");
  assert.equal(plain(timeOf(21.44e6)), "21.4 ms");
  assert.deepEqual(flopParts(164e9), ["164", "GFLOP"]);
  assert.deepEqual(flopParts(0.31e9), ["0.310", "GFLOP"]);
  assert.equal(ratioOf(564.3), "564");
  assert.equal(axisWords(8e9)(2e9), "2 s");
});

test("white space shows as a label, control characters do not", () => {
  assert.equal(labelOf("\n"), "⏎");
  assert.equal(labelOf("  "), "␣␣");
  assert.equal(labelOf(" blue"), "blue");
  assert.equal(labelOf("\u202e<b>\u0000"), "<b>");
  assert.equal(labelOf(""), "·");
});

function runWith(over) {
  const step = (end, n) => ({ end_ns: end, start_ns: end - 1, phase: "decode", num_new_tokens: [n], token_ids: [[1]], appended: [[0, 0]], dropped: [[]], context_len: [n] });
  return {
    started: { accepted_ns: 0, settings: { batch: 1, cache: "full" }, prompt_token_ids: [new Array(1900).fill(1)] },
    steps: [step(2.1e9, 1900), step(2.12e9, 1)], tokenSteps: [0, 1], pieces: [[{ text: "a", step: 0 }, { text: "b", step: 1 }]],
    columns: [1900, 1901], promptColumns: 1900, finished: null, status: { state: "running" }, summaryCache: null, ...over,
  };
}

test("the sentence tells this run's own story", () => {
  const words = wordsOf(strings("en"), "en");
  const say = (run, cursor) => plain(sentenceOf(run, cursor, words).text);
  assert.match(say(null, { k: 0 }), /Press Generate/);
  assert.equal(say(runWith(), { k: 2, ended: false }), "The first token took 2.1 s: the model had to work through 1 900 prompt tokens. The second took 0.020 s: one new token, the rest was in the KV cache.");
  assert.equal(say(runWith(), { k: 1, ended: false }), "The first token took 2.1 s: the model had to work through 1 900 prompt tokens before it.");
  assert.match(say(runWith({ steps: [], tokenSteps: [] }), { k: 0, ended: false }), /working through all 1 900/);
  const over = (reason, more) => runWith({ finished: { finish_reason: reason }, status: { state: "finished" }, ...more });
  assert.match(say(over("cancelled"), { k: 2, ended: true }), /Stopped after 2 tokens/);
  assert.match(say(over("error", { error: "The engine died." }), { k: 2, ended: true }), /The engine died/);
  assert.match(say({ started: null, status: { state: "finished" }, error: "Too long." }, { k: 0 }), /Too long/);
  assert.match(say({ started: null, status: { state: "queued", position: 2, text: null }, error: null }, { k: 0 }), /place 2/);
});

test("a short prompt is not sold as a long one", () => {
  const words = wordsOf(strings("en"), "en");
  const run = runWith();
  run.steps[0].end_ns = 25e6;
  run.steps[1].end_ns = 45e6;
  assert.match(sentenceOf(run, { k: 2 }, words).text, /hardly a difference/);
});

test("no text of either language has a place that is never filled", () => {
  const zh = strings("zh");
  for (const [key, text] of Object.entries(strings("en"))) {
    const places = (s) => [...s.matchAll(/\{(\w+)\}/g)].map((m) => m[1]).sort().join();
    assert.equal(places(text), places(zh[key] ?? ""), key);
  }
});

test("one is singular, everything else plural", () => {
  const { t } = wordsOf(strings("en"), "en");
  assert.equal(t("text.done", { n: "1" }), "1 token");
  assert.equal(t("text.done", { n: "0" }), "0 tokens");
  assert.equal(t("fig.gaps", { n: "1" }), "1 gap");
  assert.match(t("say.error", { steps: "1", error: "x" }), /after 1 step: x/);
  assert.match(t("say.first", { ttft: "2 s", tokens: "1" }), /work through 1 prompt token before it/);
  for (const language of ["en", "zh"]) {
    const all = strings(language);
    for (const key of Object.keys(all)) {
      const shown = wordsOf(all, language).t(key.slice(5), { n: "1", tokens: "1", total: "1", done: "1" });
      assert.doesNotMatch(shown, /\[\w+\|/, key);
    }
  }
});

test("a run that ended early says why, also after it has started", () => {
  const words = wordsOf(strings("en"), "en");
  const say = (run, cursor) => plain(sentenceOf(run, cursor, words).text);
  const status = (text) => ({ state: "finished", text });
  const end = { k: 2, ended: true };
  const reading = { steps: [], tokenSteps: [], pieces: [[]] };
  const read = { ...runWith().steps[0], num_new_tokens: [256], token_ids: [[]] };
  const cut = "The file ends before the run does.";
  assert.match(say(runWith({ status: status(cut) }), end), /KV cache\. The file ends/);
  assert.match(say(runWith({ status: status("Stopped: too long."), finished: { finish_reason: "cancelled" } }), end), /cache\. Stopped: too long\.$/);
  assert.match(say(runWith({ status: status("Stopped."), finished: { finish_reason: "cancelled" } }), end), /cache\. Stopped after 2 tokens\.$/);
  assert.equal(say(runWith({ ...reading, status: status(cut) }), { k: 0, ended: true }), `Stopped while reading: 0 of 1 900 prompt tokens were read, no token came. ${cut}`);
  const stopped = runWith({ ...reading, steps: [read], status: status("Stopped."), finished: { finish_reason: "cancelled" } });
  assert.equal(say(stopped, { k: 1, ended: true }), "Stopped while reading: 256 of 1 900 prompt tokens were read, no token came.");
  assert.equal(say({ started: null, status: status("Stopped: shutting down."), error: null }, { k: 0 }), "Stopped: shutting down.");
  assert.match(say({ started: null, status: status(null), error: null }, { k: 0 }), /stopped before its first step/);
});

test("the server's word for a plain stop is known, so that it is not said twice", () => {
  for (const language of ["en", "zh"]) {
    const service = JSON.parse(readFileSync(new URL(`../../assets/locales/${language}/service.json`, import.meta.url)));
    assert.equal(strings(language)["view.say.stopped"], service["service.cancelled"]);
  }
});

test("a text that turns the direction of what follows is seen; Arabic and emoji do not turn it", () => {
  assert.equal(turnsText("a\u202eb"), true);
  assert.equal(turnsText("\u2067"), true);
  assert.equal(turnsText("\u0645\u0631 🙂 abc"), false);
});

test("rows that were found were not read, and are not billed for", () => {
  const words = wordsOf(strings("en"), "en");
  const run = runWith();
  run.started.found_len = [1500];
  const story = plain(sentenceOf(run, { k: 2 }, words).text);
  assert.match(story, /^The first token took 2\.1 s: the model had to work through 400 prompt tokens\./);
  assert.match(story, /1 500 more prompt tokens were not read: their rows were in the cache before\.$/);
  const begun = runWith({ steps: [], tokenSteps: [], started: run.started });
  assert.match(plain(sentenceOf(begun, { k: 0 }, words).text), /working through all 400 .* 1 500 more/);
});

test("a second token that came with drafts is not said to be alone", () => {
  const words = wordsOf(strings("en"), "en");
  const run = runWith();
  run.steps[1].drafted = [[7, 8]];
  assert.match(plain(sentenceOf(run, { k: 2 }, words).text), /The second took 0\.020 s: the same pass also checked/);
});

test("a model of fewer than a thousand million weights is called tiny", () => {
  const settings = { model: "some/model" };
  const weights = [{ shape: [49152, 576], count: 1 }, { shape: [576], count: 61 }];
  assert.equal(modelOf({ settings, spec: { name: "Small", weights } }, wordsOf(strings("en"), "en")), "Small (tiny)");
  assert.equal(modelOf({ settings, spec: { name: "Big", counted_parameters: 8e9 } }, wordsOf({}, "en")), "Big");
  assert.equal(modelOf({ settings, spec: null }, wordsOf({}, "en")), "some/model");
});
