// Where in the run the picture stands: following it live, or replaying it on the run's own clock.
//
// Times are nanoseconds since the run was accepted. No timer here: whoever draws passes the time that
// has gone by. Try it: node --test tests/js

import { isOver } from "./run.mjs";

export const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4, 10];

/** A player that follows the newest event. `until`: where a quick run through the prompt's pieces stops, `rush`: its speed. */
export function newPlayer() {
  return { live: true, playing: false, speed: 1, t: 0, until: null, rush: 1 };
}

/** End of step i, since the run was accepted. */
export function stepEnd(run, i) {
  return run.steps[i].end_ns - run.started.accepted_ns;
}

/** The last moment of what is known of the run. */
export function runEnd(run) {
  if (!run.started) return 0;
  const last = run.steps.length ? stepEnd(run, run.steps.length - 1) : 0;
  return run.finished ? Math.max(last, run.finished.end_ns - run.started.accepted_ns) : last;
}

/** How many steps have ended at time t. */
export function stepsAt(run, t) {
  let low = 0;
  let high = run.steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (stepEnd(run, middle) <= t) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The prefix that is on screen: k steps, and whether the end of the run is shown. */
export function cursorOf(player, run) {
  if (!run.started) return { k: 0, ended: isOver(run) }; // over before it began: refused, or stopped in the queue
  if (player.live) return { k: run.steps.length, ended: isOver(run) };
  const k = stepsAt(run, player.t);
  return { k, ended: isOver(run) && k === run.steps.length };
}

/** Let `ms` of the viewer's time go by. Returns whether anything moved. */
export function advance(player, run, ms) {
  if (player.live || !player.playing || !run.started) return false;
  if (player.until !== null) {
    const { until } = player;
    const t = player.t + ms * 1e6 * player.rush;
    if (t >= until) seek(player, run, until);
    else player.t = t;
    return true;
  }
  const end = runEnd(run);
  player.t = Math.min(end, player.t + ms * 1e6 * player.speed);
  if (player.t >= end && isOver(run)) player.playing = false;
  else if (player.t >= end && run.steps.length) player.live = true; // caught up with a run that goes on
  return true;
}

/** Play from here, or from the start where the end has been reached. */
export function play(player, run) {
  if (player.live && !isOver(run)) return;
  if (player.live || player.t >= runEnd(run)) player.t = 0;
  player.live = false;
  player.playing = true;
  player.until = null;
}

/** Stop the picture; the run itself goes on. */
export function pause(player, run) {
  if (player.live) player.t = runEnd(run);
  player.live = false;
  player.playing = false;
  player.until = null;
}

/** Go to time t and stay there. */
export function seek(player, run, t) {
  player.live = false;
  player.playing = false;
  player.until = null;
  player.t = Math.max(0, Math.min(t, runEnd(run)));
}

/** Exactly one step on (+1) or back (-1), then stop. Returns whether there was one. */
export function stepBy(player, run, by) {
  const { k } = cursorOf(player, run);
  const to = k + by;
  if (!run.started || to < 0 || to > run.steps.length || to === k) return false;
  seek(player, run, to ? stepEnd(run, to - 1) : 0);
  return true;
}

const RUSH_MS = 700; // the pieces of a prompt pass in this time when they count as one step

/** One token on or back: all pieces of the prompt count as one step, as they make one token. On, its pieces pass quickly,
 * or at once with `quick` false. Returns whether there was one. */
export function tokenBy(player, run, by, quick) {
  if (!run.started) return false;
  if (player.until !== null) seek(player, run, player.until); // pressed again before the pieces have passed
  const { k } = cursorOf(player, run);
  let first = 0; // steps that read the prompt
  while (first < run.steps.length && run.steps[first].phase === "prefill") first++;
  if (by > 0 ? k >= first : k > first) return stepBy(player, run, by);
  if (by < 0) return stepBy(player, run, -k);
  if (!quick || first - k === 1) return stepBy(player, run, first - k);
  const t = k ? stepEnd(run, k - 1) : 0;
  const until = stepEnd(run, first - 1);
  Object.assign(player, { live: false, playing: true, t: player.live ? t : Math.max(player.t, t), until });
  player.rush = Math.max(1, (until - player.t) / (RUSH_MS * 1e6));
  return true;
}

/** To the newest: follow a run that goes on, or show the end of one that is over. */
export function toEnd(player, run) {
  if (isOver(run)) seek(player, run, runEnd(run));
  else {
    player.live = true;
    player.playing = false;
    player.until = null;
  }
}
