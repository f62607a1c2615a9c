// What a policy has left of the matrix: evicted rows and cells as empty places, rejected drafts, and rows that were
// found, marked at their edge. Positions stay where they are, so that a gap is seen as one.
//
// Like stage.mjs it draws what it is given. `s.kept` tells of the rows: evicted(from, to) -> ranges, goneShare(cells,
// from, to); `cells`: whether heads differ, `found`: rows from before, `drafts`: texts of the rejected rows, which
// stand at the end.

/** Rows of a band that were evicted, and cells that only some heads have given up. `yOf` is the y of a row's top. */
export function drawKept(context, s, band, from, yOf) {
  if (!s.kept) return;
  const to = Math.min(band.to, s.rows);
  if (s.kept.cells) maskCells(context, s, band, from, to, yOf);
  const readable = band.rowH >= 5 * s.box.u;
  for (const [first, stop] of s.kept.evicted(Math.floor(from), Math.ceil(to))) {
    const top = yOf(Math.max(first, from));
    const bottom = yOf(Math.min(stop, to));
    context.fillStyle = s.theme.card;
    context.fillRect(s.box.x0, top, s.columns.used, bottom - top);
    // the outline of a thin one would hide its neighbours
    if (!readable && bottom - top >= 6 * s.box.u) outline(context, s, top, bottom);
    for (let row = first; readable && row < stop; row++) outline(context, s, yOf(row), yOf(row + 1));
  }
}

/** The faint outline of an empty place. */
function outline(context, s, top, bottom) {
  const { box, columns, theme } = s;
  const line = Math.max(1, Math.round(box.u));
  context.strokeStyle = theme.line;
  context.lineWidth = line;
  const h = Math.max(1, Math.round(bottom - top) - 2 * line);
  context.strokeRect(box.x0 + line / 2, Math.round(top) + line / 2, columns.used - line, h);
}

let pen = null;

/** Wipe out cells that are gone, each pixel by the share of its rows: one image of the band, stretched to its
 * height. */
function maskCells(context, s, band, from, to, yOf) {
  const { columns, theme, box, kept } = s;
  const first = Math.floor(from);
  const per = Math.max(1, Math.floor(1 / band.rowH)); // rows in a line of the image
  const lines = Math.ceil((Math.ceil(to) - first) / per);
  if (lines <= 0) return;
  const image = new ImageData(columns.used, lines);
  const words = new Uint32Array(image.data.buffer);
  const [r, g, b] = theme.cardRgb;
  const colour = (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r);
  const texels = texelCells(columns);
  for (let line = 0; line < lines; line++) {
    const stop = Math.min(Math.ceil(to), first + (line + 1) * per);
    texels.forEach((cells, texel) => {
      const share = kept.goneShare(cells, first + line * per, stop);
      if (!share) return;
      const at = line * columns.used + columns.x[texel];
      words.fill((Math.round(share * 235) << 24) | colour, at, at + columns.cell - columns.separator);
    });
  }
  pen ??= document.createElement("canvas");
  Object.assign(pen, { width: columns.used, height: lines });
  pen.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(pen, box.x0, yOf(first), columns.used, lines * per * band.rowH);
}

/** The cells of each texture column. */
function texelCells(columns) {
  const texels = Array.from({ length: columns.count }, () => []);
  columns.group.forEach((texel, cell) => texels[texel].push(cell));
  return texels;
}

/** Drafted tokens whose rows were taken back, at the step that did it: crossed out below the newest row. */
export function drawRejected(context, s, band, from, yOf) {
  const { box, columns, theme, kept } = s;
  if (!kept || band.to <= s.rows || !kept.drafts.length) return;
  const line = Math.max(1, Math.round(box.u));
  const top = yOf(Math.max(from, s.rows));
  context.fillStyle = theme.card;
  context.fillRect(box.x0, top, columns.used, yOf(band.to) - top);
  context.strokeStyle = theme.pre;
  context.lineWidth = line;
  for (let row = Math.max(Math.floor(from), s.rows); row < band.to; row++) {
    const y = Math.round(yOf(row)) + line / 2;
    const h = Math.max(2, Math.round(band.rowH) - 2 * line);
    context.setLineDash([2 * box.u, 2 * box.u]);
    context.strokeRect(box.x0 + line / 2, y, columns.used - line, h);
    context.setLineDash([]);
    crossOut(context, box.x0 + 4 * box.u, y + h / 2, Math.min(h, 10 * box.u) * 0.32);
    if (h < 9 * box.u) continue;
    context.fillStyle = theme.mut;
    context.font = `${Math.round(11 * box.u * 10) / 10}px ${theme.font}`;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillText(s.words.rejected, box.x0 + 14 * box.u, y + h / 2 + 0.5);
  }
}

function crossOut(context, x, y, r) {
  context.beginPath();
  for (const side of [-1, 1]) {
    context.moveTo(x, y - side * r);
    context.lineTo(x + 2 * r, y + side * r);
  }
  context.stroke();
}

/** The edge beside rows that were found: stripes, where that of read rows is solid. */
export function drawFound(context, s, x, w, top, bottom) {
  const each = Math.max(3, Math.round(4 * s.box.u));
  for (let y = Math.ceil(top / each) * each; y < bottom; y += each) {
    context.fillRect(x, y, w, Math.min(Math.ceil(each / 2), bottom - y));
  }
}
