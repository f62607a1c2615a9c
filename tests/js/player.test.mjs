import assert from "node:assert/strict";
import test from "node:test";
import { advance, cursorOf, newPlayer, pause, play, runEnd, seek, stepBy, stepsAt, toEnd } from "../../assets/player.mjs";

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
