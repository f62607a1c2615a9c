// The map at the right of the matrix. Like stage.mjs it draws what it is given.
import { drawRows } from "./matrix.mjs";

/** The map at the right: the whole cache in its true proportions, and the blocks reserved beyond it. */
export function drawMinimap(context, s) {
  const { box, theme, columns } = s;
  const total = Math.max(s.rows, s.reservedRows, 1);
  context.strokeStyle = theme.line;
  context.lineWidth = 1;
  context.strokeRect(box.miniX - 0.5, box.top - 0.5, box.miniW + 1, box.height + 1);
  if (!s.rows) return;
  const rowH = box.height / total;
  context.save();
  context.beginPath();
  context.rect(box.miniX, box.top, box.miniW, s.rows * rowH);
  context.clip();
  context.fillStyle = theme.emptyCell;
  context.fillRect(box.miniX, box.top, box.miniW, box.height);
  if (s.pyramid && rowH < 8) {
    context.translate(box.miniX, 0);
    context.scale(box.miniW / columns.used, 1);
    drawRows(context, s.pyramid, 0, s.rows, 0, box.top, rowH);
  }
  context.restore();
  context.fillStyle = theme.card;
  for (const [first, stop] of s.kept?.evicted(0, s.rows) ?? []) {
    context.fillRect(box.miniX, box.top + first * rowH, box.miniW, Math.max(0.5, (stop - first) * rowH));
  }
  const split = Math.min(s.promptLen, s.rows);
  context.fillStyle = theme.pre;
  const edge = Math.max(2, Math.round(2 * box.u));
  context.fillRect(box.miniX, box.top, edge, split * rowH);
  context.fillStyle = theme.dec;
  context.fillRect(box.miniX, box.top + split * rowH, edge, (s.rows - split) * rowH);
  context.strokeStyle = theme.text;
  context.lineWidth = Math.max(1, Math.round(1.5 * box.u));
  for (const band of s.bands) {
    if (band.kind !== "free" && band.kind !== "tail") continue;
    const y = box.top + band.from * rowH;
    const h = Math.max(3 * box.u, (band.to - band.from) * rowH);
    context.globalAlpha = band.kind === "free" ? 1 : 0.55;
    context.strokeRect(box.miniX - 0.5, Math.min(y, box.top + box.height - h), box.miniW + 1, h);
  }
  context.globalAlpha = 1;
}
