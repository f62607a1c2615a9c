import assert from "node:assert/strict";
import test from "node:test";
import { columnLayout } from "../../assets/js/layout.mjs";
import { contrast, newPyramid, paletteOf, pooled, setRows } from "../../assets/js/matrix.mjs";

const columns = columnLayout([2, 2], 100);
const palette = paletteOf([[0, 0, 0], [255, 255, 255]], [1, 1, 1]);
const noise = (rows, seed = 1) => Uint8Array.from({ length: rows * 4 }, () => {
  seed = (seed * 16807) % 2147483647;
  return 100 + (seed % 60);
});

function filled(bytes, rows, by) {
  const pyramid = newPyramid(columns, palette, 0);
  for (let from = 0; from < rows; from += by) setRows(pyramid, bytes, from, Math.min(rows, from + by));
  return pyramid;
}

test("each level holds the greatest of its rows", () => {
  const rows = 1000;
  const pyramid = filled(noise(rows), rows, 1000);
  for (let level = 1; level < pyramid.levels.length; level++) {
    const size = 2 ** level;
    for (let row = 0; row * size < rows; row++) {
      const expected = pooled(pyramid, row * size, Math.min(rows, (row + 1) * size));
      assert.deepEqual([...pyramid.levels[level].slice(row * 4, row * 4 + 4)], [...expected]);
    }
  }
});

test("rows that come one at a time give the same pyramid as all at once", () => {
  const rows = 700;
  const bytes = noise(rows);
  const once = filled(bytes, rows, rows);
  const each = filled(bytes, rows, 1);
  const mixed = filled(bytes, rows, 256);
  for (const other of [each, mixed]) {
    assert.equal(other.levels.length, once.levels.length);
    once.levels.forEach((level, i) => {
      const length = Math.ceil(rows / 2 ** i) * 4;
      assert.deepEqual([...other.levels[i].slice(0, length)], [...level.slice(0, length)]);
    });
  }
});

test("a column's contrast comes from its first rows and does not move afterwards", () => {
  const bytes = noise(2000);
  const pyramid = filled(bytes, 256, 256);
  const before = pyramid.norm;
  setRows(pyramid, bytes, 256, 2000);
  assert.equal(pyramid.norm, before);
});

test("a larger magnitude is never darker", () => {
  const norm = contrast(noise(100), 100, 4);
  for (let u = 1; u < 256; u++) assert.ok(norm[u] >= norm[u - 1]);
  assert.ok(norm[0] >= 1, "0 is kept for rows without a sample");
});

test("columns that share a pixel show the greatest", () => {
  const shared = columnLayout([8, 8], 5);
  const pyramid = newPyramid(shared, palette, 0);
  const bytes = Uint8Array.from({ length: 16 * 40 }, (_, i) => 100 + ((i * 7) % 50));
  setRows(pyramid, bytes, 0, 40);
  assert.equal(shared.pooled, true);
  for (let c = 0; c < shared.count; c++) {
    const group = [...shared.group].flatMap((g, column) => (g === c ? [column] : []));
    const most = Math.max(...group.map((column) => pyramid.norm[column * 256 + bytes[column]]));
    assert.equal(pyramid.levels[0][c], most);
  }
});
