// Words and numbers: the strings of one language, units, and the one sentence that says what has happened so far.
//
// Pure functions; the strings come from assets/locales. Sizes are in KiB, MiB, GiB; thousands have a thin space.
import { isOver, layersOf, piecesAt, rowsAt, summaryAt } from "./run.mjs";

/** Look-ups in one language. `t(key, params)` fills {name} places and takes "token" of [n|token|tokens] where n is 1; a
 * key without text shows itself. */
export function wordsOf(strings, language) {
  const t = (key, params) => {
    const text = strings[`view.${key}`] ?? key;
    if (!params) return text;
    const chosen = text.replace(/\[(\w+)\|([^|\]]*)\|([^\]]*)\]/g, (all, name, one, more) => {
      return String(params[name]) === "1" ? one : more;
    });
    return chosen.replace(/\{(\w+)\}/g, (all, name) => (name in params ? String(params[name]) : all));
  };
  return { t, language, has: (key) => `view.${key}` in strings };
}

/** A count with thin spaces: 23 040. */
export function countOf(n) {
  return Math.round(n).toString().replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

/** A size as [number, unit]. */
export function sizeParts(bytes) {
  if (bytes < 100 * 1024) return [countOf(bytes), "B"];
  if (bytes < 1000 * 1024) return [(bytes / 1024).toFixed(1), "KiB"];
  if (bytes < 1000 * 1024 ** 2) return [(bytes / 1024 ** 2).toFixed(1), "MiB"];
  if (bytes < 1000 * 1024 ** 3) return [(bytes / 1024 ** 3).toFixed(2), "GiB"];
  return [(bytes / 1024 ** 4).toFixed(2), "TiB"];
}

/** A size in words: 13.4 MiB. */
export function sizeOf(bytes) {
  return sizeParts(bytes).join("\u00a0");
}

function digits(value, least) {
  if (value >= 100) return countOf(value);
  if (value >= 10) return value.toFixed(least > 2 ? 1 : 0);
  return value >= 1 ? value.toFixed(least - 1) : value.toPrecision(least);
}

/** A time in seconds with two digits that count: 2.1 s, 0.021 s. */
export function secondsOf(ns) {
  const s = ns / 1e9;
  return `${s >= 0.0005 ? digits(s, 2) : s.toFixed(4)}\u00a0s`;
}

/** A time in the unit that keeps it short, three digits: 2.10 s, 21.4 ms. */
export function timeParts(ns) {
  if (ns >= 1e9) return [digits(ns / 1e9, 3), "s"];
  if (ns >= 1e6 || ns === 0) return [ns ? digits(ns / 1e6, 3) : "0", "ms"];
  return [digits(ns / 1e3, 3), "µs"];
}

/** The same in words. */
export function timeOf(ns) {
  return timeParts(ns).join("\u00a0");
}

/** Times of one axis: all in the unit of its end, with as few digits as tell them apart. */
export function axisWords(extent) {
  const [size, unit] = extent >= 1e9 ? [1e9, "s"] : [1e6, "ms"];
  return (ns) => (ns === 0 ? "0" : `${Number((ns / size).toPrecision(3))} ${unit}`);
}

/** Floating-point operations as [number, unit]. */
export function flopParts(flops) {
  for (const [unit, size] of [["PFLOP", 1e15], ["TFLOP", 1e12], ["GFLOP", 1e9], ["MFLOP", 1e6]]) {
    if (flops >= size * (unit === "GFLOP" ? 0.1 : 1)) return [digits(flops / size, 3), unit];
  }
  return [countOf(flops), "FLOP"];
}

/** How many times, with two or three digits: 564, 1.0. */
export function ratioOf(value) {
  return value >= 100 ? countOf(value) : value >= 10 ? value.toFixed(0) : value.toFixed(1);
}

/** What a layer keeps that is not all rows, in words; "" for one that keeps all. */
export function layerWords(layer, words) {
  const { t } = words;
  const parts = [];
  const kind = layer.kind ?? "full";
  const params = { window: layer.window, shares: layer.shares, key: layer.key_dim, value: layer.value_dim };
  if (kind !== "full" && kind !== "state") parts.push(t(`kind.${kind}`, params));
  if (layer.state_bytes) parts.push(t("kind.state", { size: sizeOf(layer.state_bytes) }));
  return parts.join(" · ");
}

/** The same short, for a layer without rows. */
export function rowlessWords(layer, words) {
  const { t } = words;
  if (layer.state_bytes) return t("rowless.state", { size: sizeOf(layer.state_bytes) });
  return t(`rowless.${layer.kind === "shared" ? "shared" : "none"}`, { shares: layer.shares });
}

/** The words on a stage; `none`: without a cache. */
export function stageWords(words, none) {
  const { t } = words;
  return {
    layer: t("layer"),
    reserved: t("reserved"),
    rowless: (layer) => rowlessWords(layer, words),
    position: (row) => countOf(row),
    rejected: t("rejected"),
    middle: (count, per, evicted) => [
      t(none ? "middle.positions" : "middle.rows", { n: countOf(count) }),
      ...(evicted ? [t("middle.evicted", { n: countOf(evicted) })] : []),
      ...(per > 1 && !none ? [t("middle.pooled", { n: per })] : []),
    ],
  };
}

/** Kinds of layers with their numbers, "" where all keep all rows. */
export function kindsOf(layers, words) {
  const nameOf = (layer) => ((layer.kind ?? "full") === "full" && layer.state_bytes ? "hybrid" : layer.kind ?? "full");
  const counts = new Map();
  for (const layer of layers) {
    const name = words.t(`kinds.${nameOf(layer)}`, { window: layer.window });
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  if (layers.every((layer) => nameOf(layer) === "full")) return "";
  return [...counts].map(([name, n]) => `${n} × ${name}`).join(", ");
}

const TINY = 1e9; // weights below which a model is called tiny: those that serve people have more

/** The model of a run, and that it is tiny where it is. */
export function modelOf({ spec, settings }, { t }) {
  const model = spec?.name ?? settings.model;
  const num = spec?.counted_parameters ?? (spec?.weights ?? []).reduce((sum, group) => sum + weightsOf(group), 0);
  return num && num < TINY ? t("info.tiny", { model }) : model;
}

const weightsOf = ({ shape, count }) => (shape ?? []).reduce((product, n) => product * n, count ?? 1);

/** Whether a text holds a character that turns the direction of what follows it. */
export function turnsText(text) {
  return /[\u202a-\u202e\u2066-\u2069]/.test(text);
}

/** Prompt tokens of all sequences. */
export function promptTokens(run) {
  return run.started.prompt_token_ids.reduce((sum, ids) => sum + ids.length, 0);
}

/** Rows of all sequences that were in the cache before the run. */
function foundRows(run) {
  return (run.started.found_len ?? []).reduce((sum, n) => sum + n, 0);
}

/** Prompt tokens that the model has to read: those whose rows are not there yet. */
export function tokensToRead(run) {
  return promptTokens(run) - foundRows(run);
}

/** The sentence for a prefix: {text, tone}. Tones: quiet, busy, plain, bad. An error, or why the run ended early, is
 * said in the frame's own words. */
export function sentenceOf(run, cursor, words) {
  const { t } = words;
  if (!run) return { text: t("say.empty"), tone: "quiet" };
  if (!run.started) return statusSentence(run, t);
  const { k } = cursor;
  const sum = summaryAt(run, k);
  const end = cursor.ended && run.finished ? run.finished.finish_reason : null;
  if (end === "refused") return { text: run.error ?? t("say.refused"), tone: "bad" };
  if (cursor.ended && (end === "error" || (!run.finished && run.error))) {
    const params = { error: run.error ?? "", tokens: countOf(sum.numTokens), steps: countOf(k) };
    return { text: t("say.error", params), tone: "bad" };
  }
  const reading = sum.ttftNs === null;
  const told = reading ? readingSentence(run, k, cursor.ended, t) : storySentence(run, k, sum, t);
  const found = foundRows(run);
  const story = found ? `${told} ${t("say.found", { n: countOf(found) })}` : told;
  if (!cursor.ended) return { text: story, tone: reading ? "busy" : "plain" };
  const why = run.status?.state === "finished" ? run.status.text : null;
  if (why && why !== t("say.stopped")) return { text: `${story} ${why}`, tone: "plain" };
  if (end !== "cancelled" || reading) return { text: story, tone: "plain" };
  return { text: `${story} ${t("say.cancelled", { tokens: countOf(sum.numTokens) })}`, tone: "plain" };
}

function statusSentence(run, t) {
  const status = run.status;
  if (run.error) return { text: run.error, tone: "bad" };
  if (status?.state === "finished") return { text: status.text ?? t("say.never"), tone: "plain" };
  if (status?.state === "queued" && status.position) {
    return { text: status.text ?? t("say.queued", { position: status.position }), tone: "busy" };
  }
  const share = typeof status?.fraction === "number" ? ` ${Math.round(status.fraction * 100)} %` : "";
  return { text: (status?.text ?? t("say.loading")) + share, tone: "busy" };
}

/** Prompt tokens that the first k steps have fed. */
export function tokensRead(run, k) {
  let done = 0;
  for (let i = 0; i < k; i++) done += run.steps[i].num_new_tokens.reduce((a, n) => a + n, 0);
  return Math.min(done, tokensToRead(run));
}

function readingSentence(run, k, ended, t) {
  const total = tokensToRead(run);
  const done = tokensRead(run, k);
  if (ended) return t("say.stopped_reading", { done: countOf(done), total: countOf(total) });
  const params = { done: countOf(done), total: countOf(total) };
  return t(k ? "say.reading" : "say.read_first", params);
}

function storySentence(run, k, sum, t) {
  const tokens = countOf(tokensToRead(run));
  const ttft = secondsOf(sum.ttftNs);
  const none = run.started.settings.cache === "none";
  if (sum.secondNs === null) return t(none ? "say.first_none" : "say.first", { ttft, tokens });
  const second = secondsOf(sum.secondNs);
  const last = run.steps[k - 1];
  const again = countOf(last.num_new_tokens.reduce((a, n) => a + n, 0));
  const batch = run.started.settings.batch;
  const params = { ttft, tokens, second, again, batch };
  if (none) return t("say.none", params);
  if (sum.ttftNs < 1.5 * sum.secondNs) return t("say.short", params);
  const drafted = run.steps[run.tokenSteps[1]].drafted?.some((ids) => ids.length);
  return t(drafted ? "say.both_drafted" : batch > 1 ? "say.both_batch" : "say.both", params);
}

/** One line for those who do not see the picture. */
export function summaryText(run, cursor, sequence, words) {
  const { t } = words;
  if (!run?.started) return t("aria.empty");
  return t("aria.matrix", {
    rows: countOf(rowsAt(run, cursor.k)[sequence]),
    columns: run.numColumns,
    layers: layersOf(run.started).length,
    tokens: countOf(piecesAt(run, sequence, cursor.k)),
    state: isOver(run) && cursor.ended ? t("aria.over") : t("aria.going"),
  });
}

/** A machine as it names itself. */
export function machineOf(hardware) {
  return hardware.name || hardware.device;
}

/** A day in words. */
export function dateOf(iso, language) {
  const date = new Date(iso);
  return Number.isNaN(date.getTime()) ? iso : (language === "zh" ? ZH_DATE : EN_DATE).format(date);
}

const DAY = { day: "numeric", month: "short", year: "numeric" };
const EN_DATE = new Intl.DateTimeFormat("en-GB", DAY); // made once: it takes longer than to write a date
const ZH_DATE = new Intl.DateTimeFormat("zh-CN", DAY);
