// The numbers beside the matrix: for each its value, its notes, and the formula with this run's numbers put in.
//
// Pure functions of facts and words; the DOM is elsewhere.
import { layersOf } from "./run.mjs";
import { countOf, flopParts, ratioOf, sizeOf, sizeParts, timeOf, timeParts } from "./words.mjs";

const BLOCK_LEN = 256;

/** Content of every figure at a prefix. `facts` and `sum` are of run.mjs, `b` is the sequence shown. */
export function figuresOf(run, facts, sum, b, cursor, words) {
  const { t } = words;
  if (!run?.started || !facts.k) return {};
  const batch = run.started.settings.batch;
  const cached = run.started.settings.cache !== "none";
  return {
    rows: rowsFigure(run, facts, b, batch, cached, t),
    held: heldFigure(run, facts, batch, cached, t),
    read: readFigure(facts, t),
    work: workFigure(run, facts, cached, t),
    ...timeFigures(sum, t),
  };
}

function rowsFigure(run, facts, b, batch, cached, t) {
  const [first, stop] = facts.step.appended[b];
  const taken = facts.rejected[b];
  const rejected = taken ? taken[1] - taken[0] : 0;
  const params = {
    new: countOf(stop - first - rejected), row: countOf(run.rowBytes), rows: countOf(facts.rows[b]),
    layers: layersOf(run.started).length, batch, b: b + 1, again: countOf(facts.step.num_new_tokens[b]),
    terms: spellRow(run),
  };
  if (cached && !run.numColumns) {
    return { value: "0", unit: "", notes: [t("fig.rows.states")], numbers: t("fig.rows.states") };
  }
  const apart = { found: run.started.found_len?.[b] ?? 0, evicted: facts.evicted[b], rejected };
  const told = Object.entries(apart).filter(([, n]) => n).map(([name, n]) => t(`fig.rows.${name}`, { n: countOf(n) }));
  const note = !cached ? "fig.rows.none" : run.rowBytes ? "fig.rows.note" : "fig.rows.note_unknown";
  return {
    value: countOf(facts.rows[b]),
    unit: [...(batch > 1 ? [t("fig.rows.of", params)] : []), ...told].join(" · "),
    notes: [t(note, params)],
    numbers: run.rowBytes
      ? `${t("fig.rows.numbers", params)}\n${reservedNote(run, facts, t)}`.trim()
      : t("fig.unknown"),
  };
}

function reservedNote(run, facts, t) {
  const rows = facts.reservedRows;
  if (rows === null) return "";
  return t("fig.rows.room", { rows: countOf(rows), blocks: countOf(Math.ceil(rows / BLOCK_LEN)) });
}

/** 30 x 3 x (64 + 64) x 2, as text; layers that differ are added up. */
function spellRow(run) {
  const kinds = new Map();
  for (const layer of layersOf(run.started)) {
    if (!layer.num_kv_heads) continue;
    const kind = `${layer.num_kv_heads} × (${layer.key_dim} + ${layer.value_dim})`;
    kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
  }
  const terms = [...kinds].map(([kind, n]) => `${n} × ${kind}`);
  return `${terms.length > 1 ? `(${terms.join(" + ")})` : terms[0] ?? 0} × ${run.elementBytes ?? "?"}`;
}

function heldFigure(run, facts, batch, cached, t) {
  if (facts.liveBytes === null) return { value: "–", unit: "", notes: [t("fig.unknown")], numbers: "" };
  const [value, unit] = sizeParts(facts.liveBytes);
  const params = {
    live: countOf(facts.liveBytes), reserved: countOf(facts.reservedBytes ?? 0),
    predicted: countOf(facts.predictedLive ?? 0), predicted_reserved: countOf(facts.predictedReserved ?? 0),
    columns: countOf(facts.columns), batch, row: countOf(run.rowBytes),
    reserved_size: reservedSize(facts.reservedBytes, unit),
    blocks: countOf(Math.ceil(Math.max(facts.columns, run.promptColumns) / BLOCK_LEN)),
    pads: sizeOf(facts.padBytes ?? 0), ended: sizeOf(facts.endedBytes ?? 0), terms: spellRow(run),
  };
  const known = facts.predictedLive !== null;
  const plain = facts.plain && run.rowBytes > 0;
  const check = t(!known ? "fig.held.nobasis" : facts.agrees ? "fig.held.agrees" : "fig.held.differs", params);
  return {
    value,
    unit: cached && facts.reservedBytes !== null ? `${unit} ${t("fig.held.reserved", params)}` : unit,
    notes: [
      cached ? check : t("fig.held.none"),
      batch > 1 && cached && facts.padBytes !== null ? t("fig.held.apart", params) : "",
    ],
    tone: !known || !cached ? "" : facts.agrees ? "good" : "bad",
    // where positions do not tell rows the formula's terms would not give what was counted
    numbers: t(!cached ? "fig.held.numbers_none" : known && plain ? "fig.held.numbers" : "fig.held.counted", params),
  };
}

/** Beside a size in the same unit the number alone will do: cards are narrow. */
function reservedSize(bytes, unit) {
  if (bytes === null) return "–";
  const [number, own] = sizeParts(bytes);
  return own === unit ? number : sizeOf(bytes);
}

function readFigure(facts, t) {
  const { weights, read, written, copied, needed } = facts.token;
  if (weights === null && read === null) return { value: "–", unit: "", notes: [t("fig.unknown")], numbers: "" };
  const rows = read === null ? null : read - (copied ?? 0); // a copy that is not known is not set apart
  const known = weights !== null && read !== null;
  const total = (weights ?? 0) + (read ?? 0);
  const [value, unit] = known ? sizeParts(total) : ["–", ""];
  const size = (bytes) => (bytes === null ? t("fig.unknown_part") : sizeOf(bytes));
  const count = (bytes) => (bytes === null ? t("fig.unknown_part") : countOf(bytes));
  const moved = facts.movedBytes;
  const params = {
    weights: size(weights), kv: size(rows), total: size(moved), copied: sizeOf(copied ?? 0),
    moved_bytes: count(moved), weights_bytes: count(weights), kv_bytes: count(rows), copied_bytes: countOf(copied ?? 0),
    written: count(written), needed: size(needed), needed_bytes: count(needed),
    sum: known ? countOf(total) : "–",
    check: facts.flopsKnown ? t(facts.readAgrees ? "fig.read.agrees" : "fig.read.differs") : "",
  };
  const soFar = moved === null ? "" : t("fig.read.total", params);
  return {
    value,
    unit: withGiven(copied ? `${unit} · ${t("fig.read.copied", params)}` : unit, facts, t),
    split: known && total ? weights / total : null,
    notes: [t("fig.read.note", params), needed === null ? soFar : t("fig.read.note_needed", params)],
    numbers: [
      t(copied ? "fig.read.numbers_copied" : "fig.read.numbers", params),
      ...(needed === null ? [] : [t("fig.read.needed", params)]),
      t("fig.read.moved", params),
    ].join("\n"),
  };
}

/** A step that gave several tokens did its work for all of them. */
function withGiven(unit, facts, t) {
  return facts.token.given > 1 ? `${unit} ${t("fig.several", { n: facts.token.given })}` : unit;
}

function workFigure(run, facts, cached, t) {
  if (!facts.flopsKnown) return { value: "–", unit: "", notes: [t("fig.unknown")], numbers: "" };
  const [value, unit] = flopParts(facts.token.flops);
  const without = flopParts(facts.flopsWithoutCache).join("\u00a0");
  const ratio = facts.flopsWithoutCache / facts.token.flops;
  const params = {
    without, ratio: ratioOf(ratio), columns: countOf(facts.columns), flops: countOf(facts.token.flops),
    without_flops: countOf(facts.flopsWithoutCache), fed: countOf(facts.token.newRows),
    batch: run.started.settings.batch,
  };
  const note = !cached ? "fig.work.none" : facts.phase === "prefill" ? "fig.work.first" : "fig.work.note";
  return {
    value, unit: withGiven(unit, facts, t), notes: [t(note, params)],
    tone: cached && facts.phase === "decode" ? "contrast" : "",
    numbers: t("fig.work.numbers", params),
  };
}

function timeFigures(sum, t) {
  const samples = countOf(sum.numGaps);
  const gaps = { n: samples };
  const gapNote = t("fig.gaps", gaps);
  const figure = (ns, key, note) => ({
    value: ns === null ? "–" : timeParts(ns)[0],
    unit: ns === null ? "" : timeParts(ns)[1],
    extra: note,
    notes: [],
    numbers: ns === null ? t("fig.no_token") : t(`fig.${key}.numbers`, { value: timeOf(ns), ns: countOf(ns), ...gaps }),
  });
  return {
    ttft: figure(sum.ttftNs, "ttft", sum.ttftNs === null ? t("fig.wait") : t("fig.ttft.note")),
    itl: figure(sum.itlMedianNs, "itl", gapNote),
    itl_p95: figure(sum.itlP95Ns, "itl_p95", gapNote),
    rate: rateFigure(sum, t),
  };
}

function rateFigure({ tokensPerS, decodeTokens, decodeNs }, t) {
  if (tokensPerS === null) return { value: "–", unit: "", extra: "", notes: [], numbers: t("fig.no_token") };
  const span = { n: countOf(decodeTokens), time: timeOf(decodeNs) };
  return {
    value: tokensPerS.toFixed(tokensPerS < 10 ? 2 : 1),
    unit: t("fig.rate.unit"),
    extra: t("fig.rate.span", span),
    notes: [],
    numbers: t("fig.rate.numbers", { ...span, rate: tokensPerS.toFixed(3) }),
  };
}
