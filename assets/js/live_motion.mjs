// Motion of the live view: what explains the change from one step to another, and the light of a read.
//
// Motion is a picture only: the numbers are there at once.
import { put } from "./elements.mjs";
import { cursorOf, stepEnd } from "./player.mjs";
import { keepsAllRows, keepsOrder } from "./run.mjs";
import { countOf } from "./words.mjs";

const SWEEP_MS = [380, 1100]; // a read is drawn no faster and no slower than this

/** What moves: `anim` by name {t0, ms, delay}; `slow`: a single step was asked for, and takes its time. */
export function newMotion() {
  return { anim: {}, slow: false, moving: false, sweepUntil: 0 };
}

/** Start what explains the change from k0 to k1 steps. */
export function animate(view, now, k0, k1) {
  const { motion, shell } = view;
  const { store: run, player } = shell;
  motion.anim = {};
  if (shell.reduced.matches || !run?.started || k1 <= k0 || k0 < 0) return;
  const step = run.steps[k1 - 1];
  const { slow } = motion;
  motion.slow = false;
  if (k1 - k0 > 3 && !slow) return;
  const none = run.started.settings.cache === "none";
  if (step.phase === "prefill") {
    motion.anim.reveal = { t0: now, ms: 320, from: step.appended[view.b][0] };
    if (none) motion.anim.flash = { t0: now, ms: 600 };
    return;
  }
  const gap = k1 > 1 ? (stepEnd(run, k1 - 1) - stepEnd(run, k1 - 2)) / 1e6 : 100;
  const shown = slow ? 2000 : gap / (player.live ? 1 : player.speed);
  if (none) {
    motion.anim.flash = { t0: now, ms: Math.max(300, Math.min(900, shown * 0.9)) };
    return;
  }
  const slide = slow ? 320 : Math.min(170, shown * 0.7);
  if (slide >= 34) motion.anim.slide = { t0: now, ms: slide };
  if (slow) motion.anim.pop = { t0: now, ms: 1150, delay: 900 };
  if (slow || player.live || player.speed <= 2) sweepRead(view, now, shown, slow ? 260 : 0);
}

/** How far something is, eased from 0 to 1; 1 where nothing moves. */
export function progress(anim, now) {
  if (!anim) return 1;
  const share = (now - anim.t0 - (anim.delay ?? 0)) / (anim.ms - (anim.delay ?? 0));
  const p = Math.max(0, Math.min(1, share));
  return 1 - (1 - p) ** 3;
}

export function isMoving(motion, now) {
  return Object.values(motion.anim).some((anim) => anim && now < anim.t0 + anim.ms);
}

/** The read of a step: a line of light that passes every row. It is never drawn faster than the eye can follow (and
 * never flickers): where steps are faster, one read in several is drawn. */
function sweepRead(view, now, shown, delay) {
  const { motion } = view;
  if (now < motion.sweepUntil && !delay) return;
  const { n, store: run, player, words } = view.shell;
  const { box, bands, columns } = view.matrix;
  const k = player.live ? run.steps.length : cursorOf(player, run).k;
  const rows = run.steps[k - 1]?.context_len[view.b] ?? 0;
  if (!rows || !box) return;
  const ms = Math.max(SWEEP_MS[0], Math.min(SWEEP_MS[1], shown * 0.85));
  motion.sweepUntil = now + delay + ms + (shown < 60 ? 700 : 120);
  const last = bands[bands.length - 1];
  const end = last ? Math.min(box.height, last.y + last.h) : box.height;
  const top = box.top / box.dpr;
  const bottom = (box.top + end) / box.dpr;
  const all = keepsAllRows(run.started) && keepsOrder(run, k);
  put(n.sweepLabel, words.t(all ? "read.label" : "read.kept", { n: countOf(rows) }));
  const line = n.sweep.lastElementChild;
  line.style.left = `${(box.x0 - 3) / box.dpr}px`;
  line.style.width = `${(columns.used + 6) / box.dpr}px`;
  n.sweepLabel.style.width = `${(box.labelW - 2) / box.dpr}px`;
  n.sweep.getAnimations().forEach((animation) => animation.cancel());
  n.sweep.animate(
    [
      { transform: `translateY(${top}px)`, opacity: 0 },
      { transform: `translateY(${top + (bottom - top) * 0.06}px)`, opacity: 1, offset: 0.06 },
      { transform: `translateY(${bottom}px)`, opacity: 1, offset: 0.97 },
      { transform: `translateY(${bottom}px)`, opacity: 0 },
    ],
    { duration: ms, delay, easing: "linear" },
  );
}
