import assert from "node:assert/strict";
import test from "node:test";
import { axisTicks, clampView, columnAt, columnLayout, groupSize, layerAt, levelFor, niceCeil, rowBands, rowTop, rowsGone, rowsUnder, timeScale, zoomView } from "../../assets/js/layout.mjs";

const HEADS = new Array(30).fill(3);

test("every column has its own place and is found there again", () => {
  for (const width of [300, 571, 1280]) {
    const columns = columnLayout(HEADS, width);
    assert.ok(columns.used <= width);
    for (let c = 0; c < columns.total; c++) assert.equal(columnAt(columns, columns.x[c]), c);
    assert.equal(columnAt(columns, -1), -1);
    assert.equal(columnAt(columns, columns.used), -1);
  }
});

test("a model without known layers has no column, and numbers all the same", () => {
  const columns = columnLayout([], 500);
  assert.deepEqual([columns.total, columns.used, columns.pooled, columnAt(columns, 10), layerAt(columns, 10)], [0, 0, false, -1, -1]);
});

test("layers stand apart where there is room", () => {
  const columns = columnLayout(HEADS, 700);
  assert.ok(columns.x[3] - columns.x[2] > columns.x[2] - columns.x[1]);
});

test("more columns than pixels share them in order, none left out", () => {
  const columns = columnLayout(new Array(80).fill(8), 200);
  assert.ok(columns.pooled);
  assert.ok(columns.count <= 200);
  assert.deepEqual([...columns.group], [...columns.group].sort((a, b) => a - b));
  assert.equal(columns.group[639], columns.count - 1);
});

test("a layer without rows has a place of its own, and no column", () => {
  const columns = columnLayout([0, 2, 0, 1, 0], 300);
  assert.equal(columns.total, 3);
  assert.ok(columns.left.every((left, layer) => layer === 0 || left >= columns.left[layer - 1] + columns.span[layer - 1]));
  assert.ok(columns.used <= 300);
  for (let layer = 0; layer < 5; layer++) assert.equal(layerAt(columns, columns.left[layer] + 1), layer);
  for (const layer of [0, 2, 4]) assert.equal(columnAt(columns, columns.left[layer] + 1), -1);
  for (let c = 0; c < 3; c++) assert.equal(columnAt(columns, columns.x[c]), c);
  assert.deepEqual([...columns.layerOf], [1, 1, 3]);
});

test("a model of states only has places and no columns", () => {
  const columns = columnLayout([0, 0, 0], 90);
  assert.equal(columns.total + columns.count, 0);
  assert.ok(columns.used > 60 && columns.used <= 90);
  assert.equal(columnAt(columns, 5), -1);
  assert.equal(layerAt(columns, 5), 0);
});

test("rows leave a window one by one, and never without one", () => {
  assert.equal(rowsGone(100, null), 0);
  assert.equal(rowsGone(15, 16), 0);
  assert.equal(rowsGone(16, 16), 1);
  assert.equal(rowsGone(100, 16), 85);
});

test("bands hold every row once, and none that is not there", () => {
  for (const rows of [1, 5, 24, 25, 26, 60, 900, 32000]) {
    const bands = rowBands(rows, 370, 15, null);
    let next = 0;
    for (const band of bands) {
      assert.equal(band.from, next);
      next = band.to;
    }
    assert.equal(next, rows);
    const last = bands[bands.length - 1];
    assert.ok(last.y + last.h <= 370.001);
  }
  assert.deepEqual(rowBands(0, 370, 15, null), []);
});

test("the newest rows are readable however many there are", () => {
  for (const rows of [30, 3000, 32000]) {
    const bands = rowBands(rows, 370, 15, null);
    assert.equal(bands[bands.length - 1].rowH, 15);
    assert.ok(bands[bands.length - 1].to - bands[bands.length - 1].from >= 8);
  }
});

test("a row more changes the layout by little: nothing jumps", () => {
  for (let rows = 1; rows < 400; rows++) {
    const before = rowBands(rows, 370, 15, null);
    const after = rowBands(rows + 1, 370, 15, null);
    const y = (bands, row) => rowTop(bands, row);
    assert.ok(Math.abs(y(before, 0) - y(after, 0)) < 1);
    const newest = rows - 1;
    assert.ok(Math.abs(y(before, newest) - y(after, newest)) <= 15.5 + 6, `at ${rows}`);
  }
});

test("what is under the pointer is what is drawn there", () => {
  const bands = rowBands(32000, 370, 15, null);
  for (const band of bands) {
    const range = rowsUnder(bands, band.y + band.h / 2);
    assert.ok(range[0] >= band.from && range[1] <= band.to && range[1] > range[0]);
  }
  assert.deepEqual(rowsUnder(bands, bands[0].y + 1), [0, 1]);
  assert.deepEqual(rowsUnder(bands, 370 - 1), [31999, 32000]);
  assert.equal(rowsUnder(bands, 371), null);
});

test("a level of the pyramid is chosen so that its texels are one to two pixels high", () => {
  for (const rowH of [15, 1, 0.99, 0.5, 0.3, 0.01]) {
    const size = rowH * 2 ** levelFor(rowH);
    assert.ok(size >= 0.999 && (rowH >= 1 || size < 2), `${rowH}`);
  }
});

test("zooming keeps the row under the pointer, and ends at the whole cache", () => {
  const rows = 5000;
  let view = clampView({ mode: "free", rowH: 6, top: 2000 }, rows, 370, 15);
  const bands = rowBands(rows, 370, 15, view);
  const at = rowsUnder(bands, 200)[0];
  const nearer = zoomView(view, bands, rows, 370, 15, 200, 1.5);
  assert.equal(rowsUnder(rowBands(rows, 370, 15, nearer), 200)[0], at);
  for (let i = 0; i < 40 && view; i++) view = zoomView(view, rowBands(rows, 370, 15, view), rows, 370, 15, 100, 0.7);
  assert.equal(view, null);
});

test("a free view cannot leave the rows", () => {
  assert.equal(clampView({ mode: "free", rowH: 10, top: 99999 }, 1000, 370, 15).top, 1000 - 37);
  assert.equal(clampView({ mode: "free", rowH: 10, top: -5 }, 1000, 370, 15).top, 0);
});

test("time and place on the ribbon are each other's inverse, with a break and without", () => {
  for (const scale of [timeScale(2e9, 3e9, 1000, true), timeScale(50e9, 52e9, 1000, true)]) {
    for (const t of [0, 1e9, 2.5e9]) assert.ok(Math.abs(scale.t(scale.x(t)) - t) < 1);
  }
  assert.equal(timeScale(2e9, 3e9, 1000, true).broken, false);
  assert.equal(timeScale(50e9, 52e9, 1000, true).broken, true);
  assert.equal(timeScale(50e9, 52e9, 1000, false).broken, false);
});

test("groups are powers of two, so that older bars never change hands", () => {
  assert.equal(groupSize(40, 400, 3), 1);
  assert.equal(groupSize(400, 400, 3), 4);
  assert.equal(groupSize(24000, 400, 3), 256);
});

test("axes are round", () => {
  assert.equal(niceCeil(0.021), 0.03);
  assert.deepEqual(axisTicks(8.1, 800, 90), [0, 2, 4, 6, 8]);
});
