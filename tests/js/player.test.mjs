import assert from "node:assert/strict";
import test from "node:test";
import { advance, cursorOf, newPlayer, pause, play, runEnd, seek, stepBy, stepsAt, toEnd, tokenBy } from "../../assets/js/player.mjs";

const MS = 1e6;
const runOf = (ends, finished = true) => ({
  started: { accepted_ns: 500 }, steps: ends.map((ms) => ({ end_ns: 500 + ms * MS })), status: { state: finished ? "finished" : "running" },
  finished: finished ? { end_ns: 500 + (ends[ends.length - 1] + 1) * MS } : null,
});

test("a live run shows all that has come", () => {
  const run = runOf([400, 420, 440], false);
  assert.deepEqual(cursorOf(newPlayer(), run), { k: 3, ended: false });
});

test("a piece of prefill that took 0.4 s takes 0.4 s again, then its rows come together", () => {
  const run = runOf([400, 800, 820]);
  const player = newPlayer();
  play(player, run);
  advance(player, run, 399);
  assert.equal(cursorOf(player, run).k, 0);
  advance(player, run, 2);
  assert.equal(cursorOf(player, run).k, 1);
});

test("speed stretches the run's own clock", () => {
  const run = runOf([400, 800, 820]);
  for (const [speed, ms] of [[0.1, 4000], [1, 400], [10, 40]]) {
    const player = { ...newPlayer(), speed };
    play(player, run);
    advance(player, run, ms * 0.99);
    assert.equal(cursorOf(player, run).k, 0);
    advance(player, run, ms * 0.02);
    assert.equal(cursorOf(player, run).k, 1);
  }
});

test("one step on is exactly one step, and it stops there", () => {
  const run = runOf([400, 420, 440]);
  const player = newPlayer();
  seek(player, run, 0);
  for (const k of [1, 2, 3]) {
    assert.equal(stepBy(player, run, 1), true);
    assert.deepEqual(cursorOf(player, run).k, k);
    assert.equal(player.playing, false);
    advance(player, run, 1000);
    assert.deepEqual(cursorOf(player, run).k, k);
  }
  assert.equal(stepBy(player, run, 1), false);
  stepBy(player, run, -1);
  assert.equal(cursorOf(player, run).k, 2);
});

test("a replay rests at its end, and playing again starts over", () => {
  const run = runOf([400, 420]);
  const player = newPlayer();
  play(player, run);
  advance(player, run, 1e6);
  assert.deepEqual(cursorOf(player, run), { k: 2, ended: true });
  assert.equal(player.playing, false);
  play(player, run);
  assert.equal(cursorOf(player, run).k, 0);
});

test("a pause holds the picture while the run goes on, End follows it again", () => {
  const run = runOf([400, 420], false);
  const player = newPlayer();
  pause(player, run);
  run.steps.push({ end_ns: 500 + 440 * MS });
  assert.equal(cursorOf(player, run).k, 2);
  toEnd(player, run);
  assert.equal(cursorOf(player, run).k, 3);
});

test("a replay that has caught up with a live run follows it", () => {
  const run = runOf([400, 420], false);
  const player = newPlayer();
  seek(player, run, 0);
  player.playing = true;
  advance(player, run, 1000);
  assert.equal(player.live, true);
});

test("time cannot leave the run", () => {
  const run = runOf([400, 420]);
  const player = newPlayer();
  seek(player, run, -5);
  assert.equal(player.t, 0);
  seek(player, run, 1e15);
  assert.equal(player.t, runEnd(run));
  assert.equal(stepsAt(run, 399.9 * MS), 0);
});

const longRun = (pieces, finished = true) => {
  const run = runOf([...Array(pieces).keys()].map((i) => 400 * (i + 1)).concat([400 * pieces + 20, 400 * pieces + 40]), finished);
  run.steps.forEach((step, i) => { step.phase = i < pieces ? "prefill" : "decode"; });
  return run;
};
const at = (player, run) => cursorOf(player, run).k;

test("the pieces of a prompt are one step: from the first token to the second in two presses, and back", () => {
  const run = longRun(8);
  const player = newPlayer();
  seek(player, run, 0);
  const seen = [];
  for (const by of [1, 1, 1, 1, -1, -1, -1, -1]) {
    tokenBy(player, run, by, false);
    seen.push(at(player, run));
  }
  assert.deepEqual(seen, [8, 9, 10, 10, 9, 8, 0, 0]);
});

test("the pieces pass quickly, each is shown, and it stops at the first token", () => {
  const run = longRun(8);
  const player = newPlayer();
  seek(player, run, 0);
  tokenBy(player, run, 1, true);
  const seen = new Set();
  for (let ms = 0; ms < 1000; ms += 16) {
    advance(player, run, 16);
    seen.add(at(player, run));
  }
  assert.deepEqual([...seen], [0, 1, 2, 3, 4, 5, 6, 7, 8]);
  assert.equal(player.playing, false);
});

test("pressed again before the pieces have passed, it goes on to the second token", () => {
  const run = longRun(8);
  const player = newPlayer();
  seek(player, run, 0);
  tokenBy(player, run, 1, true);
  advance(player, run, 100);
  tokenBy(player, run, 1, true);
  assert.equal(at(player, run), 9);
});

test("a pause in the quick run holds it, a prompt of one piece is one step at once", () => {
  const run = longRun(8);
  const player = newPlayer();
  seek(player, run, 0);
  tokenBy(player, run, 1, true);
  advance(player, run, 300);
  pause(player, run);
  const held = at(player, run);
  advance(player, run, 1000);
  assert.equal(at(player, run), held);
  const short = longRun(1);
  seek(player, short, 0);
  tokenBy(player, short, 1, true);
  assert.equal(at(player, short), 1);
});
