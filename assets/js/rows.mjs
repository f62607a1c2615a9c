// Which rows a sequence holds after any number of steps: found, appended, taken back, evicted.
//
// Positions are absolute: a row keeps its place when others go. `appended` begins at the end of the kept history. A
// range of `dropped` that ends where the step's own rows end, and begins above where they begin, is a rollback: drafts
// that were rejected, whose positions come again. Every other range is an eviction: those rows never come back.
// Try it: node --test tests/js/rows.test.mjs

const NEVER = 2 ** 31 - 1;

/** The rows of one sequence. By number of steps: `ends` of the kept history, `stops` of what the last step appended,
 * numbers of rows `held` and `evicted`. `goneAt`: the step that evicted a position; `cells`: the same by row and
 * column, for what only some heads have given up. `found` rows were there before the run. */
export function newRows(found) {
  return {
    found, ends: [found], stops: [found], held: [found], evicted: [0],
    goneAt: new Int32Array(0), cells: new Int32Array(0), numCells: 0,
  };
}

/** Take a step: its `appended` range and its `dropped` ranges, half-open. */
export function takeRows(rows, [first, stop], dropped) {
  const step = rows.ends.length - 1;
  let end = stop > first ? stop : rows.ends[step]; // one that has ended appends nothing, wherever it says so
  let held = rows.held[step] + stop - first;
  let evicted = rows.evicted[step];
  for (const [from, to] of dropped) {
    held -= to - from;
    if (to === stop && from > first) end = from;
    else {
      rows.goneAt = roomy(rows.goneAt, to).fill(step, from, to);
      evicted += to - from;
    }
  }
  rows.cells.fill(NEVER, first * rows.numCells, stop * rows.numCells); // a place that was taken back begins anew
  rows.ends.push(end);
  rows.stops.push(Math.max(stop, end));
  rows.held.push(held);
  rows.evicted.push(evicted);
}

/** Take what a policy has left where heads differ: bits [stop - first, numCells] of rows [first, stop), the lowest bit
 * of a byte first; 1 is still held. What is gone stays gone. */
export function takeKept(rows, { step, first, stop }, bits, numCells) {
  rows.numCells = numCells;
  rows.cells = roomy(rows.cells, stop * numCells);
  const base = first * numCells;
  for (let i = 0; i < (stop - first) * numCells; i++) {
    if (!((bits[i >> 3] >> (i & 7)) & 1) && rows.cells[base + i] === NEVER) rows.cells[base + i] = step;
  }
}

function roomy(array, length) {
  if (array.length >= length) return array;
  const larger = new Int32Array(Math.max(length, array.length * 2, 64)).fill(NEVER);
  larger.set(array);
  return larger;
}

/** Whether a row has been evicted within the first k steps. */
export function isEvicted(rows, row, k) {
  return rows.goneAt[row] < k; // beyond the array: undefined, which is not less
}

/** Whether a cell has gone within the first k steps: its row is evicted, or its head has given it up. */
export function isCellGone(rows, row, cell, k) {
  return isEvicted(rows, row, k) || (cell < rows.numCells && rows.cells[row * rows.numCells + cell] < k);
}

/** The share of `cells` in rows [from, to) that has gone within the first k steps. */
export function goneShare(rows, cells, from, to, k) {
  let gone = 0;
  for (let row = from; row < to; row++) {
    if (rows.goneAt[row] < k) gone += cells.length;
    else for (const cell of cells) if (rows.cells[row * rows.numCells + cell] < k) gone++;
  }
  return gone / ((to - from) * cells.length);
}

/** Evicted rows of [from, to) after k steps, as ranges. */
export function evictedRanges(rows, from, to, k) {
  const ranges = [];
  if (!rows.evicted[k]) return ranges;
  for (let row = from; row < to; row++) {
    if (!isEvicted(rows, row, k)) continue;
    const last = ranges[ranges.length - 1];
    if (last?.[1] === row) last[1] = row + 1;
    else ranges.push([row, row + 1]);
  }
  return ranges;
}

/** The rows that step k - 1 appended and took back, as a range; null where it took back none. */
export function rejectedAt(rows, k) {
  return rows.stops[k] > rows.ends[k] ? [rows.ends[k], rows.stops[k]] : null;
}

/** Whether any step so far has taken rows out, so that positions no longer tell how many rows there are. */
export function hasEvicted(rows, k) {
  return rows.evicted[k] > 0;
}
