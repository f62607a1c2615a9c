// One run in the browser: frames in, an append-only store, and what is true after its first k steps.
//
// It knows nothing of the DOM, of clocks or of drawing. The Python tests decode the same frames and
// compare every prefix, so that the two cannot drift.
// Try it: node -e 'import("./assets/js/run.mjs").then(m => console.log(m.newRun()))'
import {
  evictedRanges, goneShare, hasEvicted, newRows, rejectedAt, takeKept, takeRows,
} from "./rows.mjs";

/** An empty store. Steps keep the field names of the run file. */
export function newRun() {
  return {
    numEvents: 0,
    status: null,
    error: null,
    started: null,
    finished: null,
    steps: [],
    rowBytes: null, // bytes of one position of one sequence in all layers; null: not known
    elementBytes: null, // of one number of K or V
    predicted: [], // one a step: its StepCost by name, flops and flops_without_cache; null: no basis
    columns: [], // columns that each step attended, pads included
    moved: [], // bytes read and written up to and with each step; null where a source does not say
    tokenSteps: [], // indices of the steps that gave a token
    pieces: [], // a sequence: [{text, step}]
    rows: [], // a sequence: which rows it holds after any step, of rows.mjs
    sequences: [], // a sequence: {k, v, first, sampled, redone}: magnitudes [rows, columns] of rows [first, sampled)
    drafts: false, // whether any step has drafted tokens
    texts: new Map(), // token id -> text, of all that the run has told: drafts have ids only
    telemetry: [],
    summaryCache: null,
  };
}

/** Add a frame. Events that are here already are skipped. Returns {gap, added}: with a gap nothing is taken. `takeOne`
 * adds an event to a store of another kind. Beside the lines the header says what Python's log makes of them. */
export function takeFrame(run, text, takeOne = takeEvent) {
  const cut = text.indexOf("\n");
  const header = JSON.parse(cut < 0 ? text : text.slice(0, cut));
  if (header.first > run.numEvents) return { gap: true, added: 0 };
  run.status = header.status;
  run.error = header.error;
  const lines = cut < 0 ? [] : text.slice(cut + 1).split("\n");
  let starts = 0;
  let steps = 0;
  let added = 0;
  for (let i = 0; i < header.count; i++) {
    const isNew = header.first + i >= run.numEvents;
    const event = isNew ? JSON.parse(lines[i]) : null;
    const kind = isNew ? event.kind : kindOf(lines[i]);
    const beside = { sizes: header.sizes[starts], columns: header.columns[steps], predicted: header.predicted[steps] };
    if (kind === "run_started") starts++;
    if (kind === "step_finished") steps++;
    if (!isNew) continue;
    takeOne(run, event, beside);
    added++;
  }
  return { gap: false, added };
}

function kindOf(line) {
  return /^{"kind":"(\w+)"/.exec(line)?.[1] ?? JSON.parse(line).kind;
}

/** Add one event of a run. `beside`: for a start its `sizes`, for a step its `columns` and its `predicted` cost. */
export function takeEvent(run, event, beside) {
  if (event.kind === "run_started") takeStarted(run, event, beside.sizes);
  else if (event.kind === "step_finished") takeStep(run, event, beside);
  else if (event.kind === "kv_sample") takeSample(run, event);
  else if (event.kind === "kept_cells") {
    takeKept(run.rows[event.sequence], event, bytesOf(event.kept), run.numColumns);
  }
  else if (event.kind === "telemetry") run.telemetry.push(event);
  else if (event.kind === "run_finished") run.finished = event;
  run.numEvents++;
}

function takeStarted(run, event, sizes) {
  run.started = event;
  run.numColumns = layersOf(event).reduce((sum, layer) => sum + layer.num_kv_heads, 0);
  run.rowBytes = sizes?.row_bytes ?? null;
  run.elementBytes = sizes?.element_bytes ?? null;
  run.promptColumns = Math.max(...event.prompt_token_ids.map((ids) => ids.length));
  for (let b = 0; b < event.settings.batch; b++) {
    run.pieces.push([]);
    run.rows.push(newRows(event.found_len?.[b] ?? 0));
    run.sequences.push({ k: new Uint8Array(0), v: new Uint8Array(0), first: null, sampled: 0, redone: [] });
    event.prompt_token_ids[b].forEach((id, i) => run.texts.set(id, event.prompt_texts[b][i]));
  }
}

function takeStep(run, step, { columns, predicted }) {
  const k = run.steps.length;
  run.steps.push(step);
  run.predicted.push(predicted);
  run.columns.push(columns);
  const moved = [step.weight_bytes_read, step.kv_bytes_read, step.kv_bytes_written];
  run.moved.push(moved.reduce(plus, k ? run.moved[k - 1] : 0));
  run.drafts ||= step.drafted?.some((ids) => ids.length) ?? false;
  let gave = false;
  step.token_texts.forEach((texts, b) => {
    takeRows(run.rows[b], step.appended[b], step.dropped[b]);
    texts.forEach((text, i) => {
      run.pieces[b].push({ text, step: k });
      run.texts.set(step.token_ids[b][i], text);
    });
    gave ||= texts.length > 0;
  });
  if (gave) run.tokenSteps.push(k);
}

function takeSample(run, sample) {
  const store = run.sequences[sample.sequence];
  const need = sample.stop * run.numColumns;
  if (store.k.length < need) {
    for (const name of ["k", "v"]) {
      const larger = new Uint8Array(Math.max(need, store[name].length * 2, 4096));
      larger.set(store[name]);
      store[name] = larger;
    }
  }
  if (sample.first < store.sampled) store.redone.push(sample.first); // of places that were taken back
  store.first = Math.min(store.first ?? sample.first, sample.first);
  store.k.set(bytesOf(sample.k), sample.first * run.numColumns);
  store.v.set(bytesOf(sample.v), sample.first * run.numColumns);
  store.sampled = Math.max(store.sampled, sample.stop);
}

/** Base64 text as bytes. */
export function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

/** The layers of a run's model; none where a server does not say what it runs. */
export function layersOf(started) {
  return started.spec?.layers ?? [];
}

/** Whether every layer keeps all rows and nothing else, so that bytes follow from rows. */
export function keepsAllRows(started) {
  const whole = (layer) => (layer.kind ?? "full") === "full" && !layer.state_bytes;
  return started.spec !== null && layersOf(started).every(whole);
}

/** Rows of one sequence that the reserved bytes have room for after k steps. Null where layers differ in what they
 * keep, and where rows were evicted: room is then no longer at the end of the positions. */
export function reservedRowsOf(run, k) {
  const bytes = k ? run.steps[k - 1].kv_reserved_bytes : null;
  if (!run.rowBytes || !bytes || !keepsAllRows(run.started) || !keepsOrder(run, k)) return null;
  return Math.round(bytes / run.rowBytes / run.started.settings.batch);
}

/** Rows that each sequence holds after k steps. */
export function rowsAt(run, k) {
  return run.rows.map((rows) => rows.held[k]);
}

/** Where the kept history of each sequence ends after k steps: rows that it holds lie below. */
export function endsAt(run, k) {
  return run.rows.map((rows) => rows.ends[k]);
}

/** Whether no row was evicted within the first k steps, so that positions tell rows. */
export function keepsOrder(run, k) {
  return !run.rows.some((rows) => hasEvicted(rows, k));
}

/** Whether `columns` tell what was read and held at the end of k steps: nothing evicted, and no drafts taken back. */
function columnsTell(run, k) {
  return keepsOrder(run, k) && !run.rows.some((rows) => rejectedAt(rows, k));
}

/** What of the rows of sequence b is not plain after k steps, for a picture: `found` rows from before the run, evicted
 * rows and cells, `drafts`: texts of the rows that the last step took back. Null where all is plain. */
export function keptAt(run, b, k) {
  const rows = run.rows[b];
  const cells = rows.numCells > 0;
  const rejected = rejectedAt(rows, k);
  if (!rows.found && !rows.evicted[k] && !cells && !rejected) return null;
  return {
    found: rows.found,
    cells,
    evicted: (from, to) => evictedRanges(rows, from, to, k),
    goneShare: (which, from, to) => goneShare(rows, which, from, to, k),
    drafts: rejected ? draftTexts(run, b, k, rejected) : [],
  };
}

/** Texts of rejected rows: what the run has told of an id, or the id. The first row of a step is its last token's. */
function draftTexts(run, b, k, [from, to]) {
  const { appended, drafted } = run.steps[k - 1];
  const ids = (drafted?.[b] ?? []).slice(from - appended[b][0] - 1, to - appended[b][0] - 1);
  return ids.map((id) => run.texts.get(id) ?? `#${id}`);
}

/** How many tokens sequence b has given after k steps. */
export function piecesAt(run, b, k) {
  const pieces = run.pieces[b];
  let low = 0;
  let high = pieces.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (pieces[middle].step < k) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The text of a position of sequence b: of the prompt, or of what was generated. */
export function textOf(run, b, position) {
  const prompt = run.started.prompt_texts[b];
  if (position < prompt.length) return prompt[position];
  return run.pieces[b][position - prompt.length]?.text ?? "";
}

/** Number of token-giving steps among the first k. */
export function tokenStepsAt(run, k) {
  let low = 0;
  let high = run.tokenSteps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (run.tokenSteps[middle] < k) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Sum of two counts; null as soon as one is not known. */
export function plus(a, b) {
  return a === null || b === null || b === undefined ? null : a + b;
}

/** Bytes of KV that step i read only to move its rows into a larger slab: what is beyond one read of each column. Null
 * where that cannot be told: rows were evicted or taken back, so that fewer or more were read than there are columns;
 * or the step's path moves more than it needs. */
export function copiedAt(run, i) {
  const { kv_bytes_read: read, kv_bytes_needed: needed } = run.steps[i];
  const { cache, batch } = run.started.settings;
  if (cache === "none" || !run.rowBytes || read === null || !keepsAllRows(run.started)) return 0;
  if ((needed ?? null) !== null || !columnsTell(run, i + 1)) return null;
  return Math.max(0, read - run.columns[i] * run.rowBytes * batch);
}

/** Bytes of KV that step i read, without what it only copied, as far as that is known. */
export function readAt(run, i) {
  const { kv_bytes_read: read } = run.steps[i];
  return read === null ? null : read - (copiedAt(run, i) ?? 0);
}

/** What is counted and predicted after k steps. `token` sums the steps that made the newest token: all pieces of
 * the prompt for the first one, one step for any other. */
export function factsAt(run, k) {
  const step = k ? run.steps[k - 1] : null;
  const predicted = k ? run.predicted[k - 1] : null;
  const from = !k ? 0 : step.phase === "prefill" ? 0 : k - 1;
  const token = { weights: 0, read: 0, written: 0, copied: 0, needed: null, flops: 0, ns: 0, newRows: 0, given: 0 };
  for (let i = from; i < k; i++) {
    const s = run.steps[i];
    token.weights = plus(token.weights, s.weight_bytes_read);
    token.read = plus(token.read, s.kv_bytes_read);
    token.written = plus(token.written, s.kv_bytes_written);
    token.copied = plus(token.copied, copiedAt(run, i));
    token.flops = plus(token.flops, run.predicted[i]?.flops);
    token.ns += s.end_ns - s.start_ns;
    token.newRows += s.num_new_tokens.reduce((a, n) => a + n, 0);
    token.given = Math.max(token.given, ...s.token_ids.map((ids) => ids.length));
  }
  const steps = run.steps.slice(from, k);
  if (steps.some((s) => (s.kv_bytes_needed ?? null) !== null)) {
    token.needed = steps.map((s) => s.kv_bytes_needed ?? s.kv_bytes_read).reduce(plus, 0);
  }
  const known = Boolean(predicted);
  return {
    k,
    step,
    phase: step ? step.phase : null,
    rows: rowsAt(run, k),
    ends: endsAt(run, k),
    evicted: run.rows.map((rows) => rows.evicted[k]),
    rejected: run.rows.map((rows) => rejectedAt(rows, k)),
    reservedRows: reservedRowsOf(run, k),
    plain: columnsTell(run, k),
    columns: k ? run.columns[k - 1] : 0,
    liveBytes: step?.kv_live_bytes ?? null,
    reservedBytes: step?.kv_reserved_bytes ?? null,
    predictedLive: known ? predicted.kv_live_bytes : null,
    predictedReserved: known ? predicted.kv_reserved_bytes : null,
    agrees: known && ["kv_live_bytes", "kv_reserved_bytes"].every((name) => step[name] === predicted[name]),
    readAgrees: known && ["kv_bytes_read", "weight_bytes_read"].every((name) => step[name] === predicted[name]),
    movedBytes: k ? run.moved[k - 1] : 0,
    flopsWithoutCache: known ? predicted.flops_without_cache : null,
    flopsKnown: known && token.flops !== null,
    token,
    ...apart(run, k),
  };
}

/** Bytes of the cache that are pads, and bytes of sequences that have ended, after k steps. Null where rows were
 * evicted or taken back: which of them were pads is not in the record. */
function apart(run, k) {
  if (!k || run.started.settings.cache === "none") return { padBytes: 0, endedBytes: 0, numEnded: 0 };
  if (!keepsAllRows(run.started) || !run.rowBytes || !columnsTell(run, k)) {
    return { padBytes: null, endedBytes: null, numEnded: 0 };
  }
  const columns = run.columns[k - 1];
  const step = run.steps[k - 1];
  let padRows = 0;
  let endedRows = 0;
  let numEnded = 0;
  run.started.prompt_token_ids.forEach((ids, b) => {
    const pads = Math.min(columns, run.promptColumns - ids.length);
    padRows += pads;
    if (step.phase === "decode" && step.num_new_tokens[b] === 0) {
      endedRows += columns - pads;
      numEnded++;
    }
  });
  return { padBytes: padRows * run.rowBytes, endedBytes: endedRows * run.rowBytes, numEnded };
}

/** Linear interpolation between the two nearest ranks of sorted values (numpy's default). */
export function percentileOf(sorted, share) {
  if (!sorted.length) return null;
  const place = (sorted.length - 1) * share;
  const low = Math.floor(place);
  const high = Math.min(low + 1, sorted.length - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (place - low);
}

/** Times after k steps, as viz_engine/metrics.py defines them; null where there is no basis. */
export function summaryAt(run, k) {
  const count = tokenStepsAt(run, k);
  const cached = run.summaryCache;
  if (cached && cached.count === count) return cached.value;
  const ends = run.tokenSteps.slice(0, count).map((i) => run.steps[i].end_ns);
  const gaps = sortedGaps(run, ends, cached);
  const span = count > 1 ? ends[count - 1] - ends[0] : 0;
  const tokens = run.pieces.map((_, b) => piecesAt(run, b, k));
  const numTokens = tokens.reduce((sum, n) => sum + n, 0);
  const longest = Math.max(0, ...tokens); // a step can give several
  let decodeTokens = 0;
  if (count) decodeTokens = numTokens - run.steps[run.tokenSteps[0]].token_ids.reduce((n, ids) => n + ids.length, 0);
  const value = {
    ttftNs: count ? ends[0] - run.started.accepted_ns : null,
    numTokens,
    decodeTokens,
    decodeNs: span,
    numGaps: gaps.length,
    secondNs: count > 1 ? ends[1] - ends[0] : null,
    itlMedianNs: percentileOf(gaps, 0.5),
    itlP95Ns: percentileOf(gaps, 0.95),
    tpotNs: gaps.length && longest > 1 ? span / (longest - 1) : null,
    tokensPerS: span ? (decodeTokens * 1e9) / span : null,
  };
  run.summaryCache = { count, gaps, value };
  return value;
}

/** Gaps between the ends, sorted: one more than the cached ones is put in its place, anything else is sorted anew. */
function sortedGaps(run, ends, cached) {
  if (cached && cached.count >= 1 && cached.count === ends.length - 1) {
    const gap = ends[ends.length - 1] - ends[ends.length - 2];
    const gaps = cached.gaps;
    let low = 0;
    let high = gaps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (gaps[middle] < gap) low = middle + 1;
      else high = middle;
    }
    gaps.splice(low, 0, gap);
    return gaps;
  }
  const gaps = new Array(Math.max(0, ends.length - 1));
  for (let i = 0; i < gaps.length; i++) gaps[i] = ends[i + 1] - ends[i];
  return gaps.sort((a, b) => a - b);
}

/** Whether nothing more will come: it has ended, or its file stops before its end. */
export function isOver(run) {
  return Boolean(run.finished) || run.status?.state === "finished";
}

/** The true magnitude of a stored byte. */
export function magnitudeOf(byte) {
  return byte ? 2 ** ((byte - 128) / 12) : 0;
}
