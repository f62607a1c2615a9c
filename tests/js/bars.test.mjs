import assert from "node:assert/strict";
import test from "node:test";
import { barLayout, markPath } from "../../assets/js/bars.mjs";

const GIB = 2 ** 30;
const PARTS = { weights: ["Weights", "#111", ""], k: ["K cache", "#222", ""], v: ["V cache", "#333", "\\"], latent: ["Latent", "#444", "-"] };
const measure = (text) => 7 * text.length;
const bar = (more) => ({
  label: "A", size: "8K × 16", parts: [["weights", 15 * GIB, "15 GiB"], ["k", 8 * GIB, "8 GiB"], ["v", 8 * GIB, "8 GiB"]],
  total: 31 * GIB, total_text: "31 GiB", spread: [30 * GIB, 34 * GIB], ceiling: 72 * GIB, ceiling_text: "usable 72 GiB", over: false, ...more,
});
const axis = (most) => ({ most, ticks: [0, 20, 40, 60, 80].map((n) => [n * GIB, `${n} GiB`]) });
const layout = (bars, width = 700, most = 82 * GIB) => barLayout(bars, axis(most), PARTS, width, measure);

test("a bar is its parts end to end, each as long as its bytes", () => {
  const g = layout([bar()]);
  const [weights, k, v] = g.rows[0].parts;
  assert.equal(weights.x, g.left);
  assert.ok(Math.abs(weights.x + weights.width - k.x) < 1e-9 && Math.abs(k.x + k.width - v.x) < 1e-9);
  assert.ok(Math.abs(weights.width / k.width - 15 / 8) < 1e-9);
  const end = (v.x + v.width - g.left) / (g.right - g.left);
  assert.ok(Math.abs(end - 31 / 82) < 1e-9);
});

test("a part names its size only where there is room for it", () => {
  const [row] = layout([bar({ parts: [["weights", 15 * GIB, "15 GiB"], ["k", GIB / 4, "256 MiB"]] })]).rows;
  assert.deepEqual(row.parts.map((part) => part.fits), [true, false]);
});

test("no ceiling crosses out a total, and no total leaves the picture", () => {
  const width = measure("31 GiB");
  for (let n = 20; n < 72; n++) {
    const g = layout([bar({ ceiling: n * GIB })]);
    const { total, ceiling } = g.rows[0];
    assert.ok(ceiling <= total || ceiling >= total + width, `${n}`);
    assert.ok(total + width <= g.right);
  }
  assert.ok(layout([bar()], 700, 32 * GIB).rows[0].total + width <= 700);
});

test("the name of a ceiling stands where it is not cut", () => {
  assert.equal(layout([bar()]).rows[0].ceilingAnchor, "end");
  assert.equal(layout([bar({ ceiling: 20 * GIB })]).rows[0].ceilingAnchor, "start");
});

test("the range of the estimates is around the total", () => {
  const g = layout([bar()]);
  const { low, high, parts } = g.rows[0];
  const end = parts[2].x + parts[2].width;
  assert.ok(low < end && end < high);
});

test("four bars have rows of their own, under each other, and one legend of what is in them", () => {
  const g = layout([bar(), bar(), bar(), bar({ parts: [["latent", GIB, "1 GiB"]] })]);
  const ys = g.rows.map((row) => row.y);
  assert.ok(ys.every((y, i) => i === 0 || y >= ys[i - 1] + g.barHeight));
  assert.ok(g.foot >= ys[3] + g.barHeight && g.height > g.foot);
  assert.deepEqual(g.legend.map((item) => item.part), ["weights", "k", "v", "latent"]);
  assert.deepEqual(layout([bar()]).legend.map((item) => item.part), ["weights", "k", "v"]);
});

test("ticks do not run into each other, in a narrow picture too", () => {
  for (const width of [300, 420, 700, 1200]) {
    const texts = layout([bar()], width).ticks.filter((tick) => tick.text);
    texts.forEach((tick, i) => {
      assert.ok(tick.middle - measure(tick.text) / 2 >= 0 && tick.middle + measure(tick.text) / 2 <= width);
      if (i) assert.ok(tick.middle - measure(tick.text) / 2 >= texts[i - 1].middle + measure(texts[i - 1].text) / 2);
    });
    assert.ok(texts.length >= 2);
  }
});

test("the picture does not move sideways while a slider moves", () => {
  const lefts = ["512 × 1", "8K × 16", "10 000 000 × 4 096"].map((size) => layout([bar({ label: "Llama 3.1 8B Instruct", size })]).left);
  assert.deepEqual(new Set(lefts).size, 1);
});

test("every mark is drawn in its own way", () => {
  const paths = ["/", "\\", "-", "x", "."].map(markPath);
  assert.equal(new Set(paths).size, 5);
  assert.ok(paths.every(Boolean) && markPath("") === "");
});
