// Words and numbers of the live view: sentence, figures, legend, chips, labels of the phases, and the text card.
import { refreshPop } from "./controls.mjs";
import { el, put } from "./elements.mjs";
import { figuresOf } from "./figures.mjs";
import { stepEnd } from "./player.mjs";
import { decodeBlocks, firstDecode } from "./ribbon.mjs";
import { isOver, layersOf, piecesAt } from "./run.mjs";
import { fontOf, tagOf, writeInfo, writeStory } from "./shell.mjs";
import { probe } from "./theme.mjs";
import {
  countOf, dateOf, kindsOf, machineOf, modelOf, sentenceOf, summaryText, timeOf, tokensRead, tokensToRead, turnsText,
} from "./words.mjs";

const WINDOW_TOKENS = 110; // token marks kept in the text card; older ones are plain text
const PROMPT_CHARS = 420; // characters of the prompt's end that stand before them
const SPEAK_MS = 900; // a sentence that is read aloud is followed by another no sooner

/** What is written: the figures, and the marks of the text card from token `start` on. */
export function newWriting() {
  return { figures: {}, start: 0, marks: [], ready: false, current: null };
}

/** All texts that stay: once a language. */
export function labelLive(view) {
  const { n, words } = view.shell;
  const { t } = words;
  put(n.title, t("title"));
  put(n.textTitle, t("text"));
  put(n.chartTitle, t("chart"));
  put(n.chartNote, t("chart.bytes"));
  put(n.follow, t("follow"));
  labelWhole(view);
  put(n.empty.firstChild, t("empty.head"));
  n.ribbon.setAttribute("aria-label", t("aria.ribbon"));
  n.chart.setAttribute("aria-label", t("aria.chart"));
  for (const [name, f] of Object.entries(n.figures)) put(f.label, t(`fig.${name}`));
  clearText(view);
}

/** The button that shows all of the answer, wherever the playhead is. */
export function labelWhole(view) {
  const { n, words } = view.shell;
  put(n.whole, words.t(view.whole ? "text.follow" : "text.whole"));
  n.whole.setAttribute("aria-pressed", String(Boolean(view.whole)));
  n.textCard.classList.toggle("whole", Boolean(view.whole));
}

/** The marks of the matrix; those of what a run may lack only where it has them. */
function writeLegend(view) {
  const { shell, facts, b } = view;
  const { n, words, store: run } = shell;
  const { tensor } = view.matrix;
  const { t } = words;
  const there = {
    found: run?.started?.found_len?.[b], evicted: facts?.evicted[b] || run?.rows[b]?.numCells,
    rejected: run?.drafts,
  };
  const more = Object.keys(there).filter((name) => there[name]);
  const stamp = [words.language, tensor, ...more].join("|");
  if (n.legend.dataset.stamp === stamp) return;
  n.legend.dataset.stamp = stamp;
  const key = (kind, text, more) => el("span", { class: `key ${kind}`, ...more }, text);
  const scale = `${t("legend.strong")} · ${t("legend.scale", { tensor: tensor.toUpperCase() })}`;
  n.legend.replaceChildren(
    key("weak", t("legend.weak")), el("i", { class: `ramp ${tensor}` }),
    key("term", scale, { "data-term": "magnitude", tabindex: "0" }),
    key("mark prompt", t("legend.prefill")), key("mark decode", t("legend.decode")),
    ...more.map((name) => key(`mark ${name}`, t(`legend.${name}`))),
  );
  for (const name of ["k", "v"]) n[name].setAttribute("aria-pressed", String(tensor === name));
}

function sayOf(view, cursor) {
  const { store: run, words, state, lost, player } = view.shell;
  if (state === "broken") return { text: words.t("say.broken"), tone: "bad" };
  if (state === "gone") return { text: words.t("info.gone"), tone: "bad" };
  if (lost && run && !isOver(run) && player.live) return { text: words.t("say.lost"), tone: "bad" };
  return sentenceOf(run, cursor, words);
}

/** All that is said of a prefix, but for the text and the labels of the phases. */
export function writeWords(view, cursor, now) {
  const { shell, writing, facts, sum, b } = view;
  const { n, store: run, words } = shell;
  const { t } = words;
  writeStory(shell, sayOf(view, cursor), now, SPEAK_MS);
  writeRunInfo(shell);
  writeLegend(view);
  writeChips(view);
  const started = Boolean(run?.started);
  const none = started && run.started.settings.cache === "none";
  const kinds = started ? kindsOf(layersOf(run.started), words) : "";
  put(n.subtitle, t(none ? "subtitle.none" : "subtitle") + (kinds ? ` · ${kinds}` : ""));
  n.matrixCard.classList.toggle("none", none);
  n.matrix.setAttribute("aria-label", summaryText(run, cursor, b, words));
  writing.figures = started ? figuresOf(run, facts, sum, b, cursor, words) : {};
  put(n.chartTag, t(`tag.${tagOf(shell, "measured")}`));
  for (const [name, f] of Object.entries(n.figures)) {
    put(f.tag, t(`tag.${tagOf(shell, f.tagName)}`));
    writeFigure(f, writing.figures[name]);
  }
  const count = started ? countOf(piecesAt(run, b, cursor.k)) : "";
  const of = started ? countOf(run.started.settings.new_tokens) : "";
  n.whole.hidden = !started;
  put(n.textCount, !started ? "" : cursor.ended ? t("text.done", { n: count }) : t("text.count", { n: count, of }));
  refreshPop(shell);
}

function writeFigure(f, figure) {
  put(f.value, figure?.value ?? "–");
  put(f.unit, figure?.unit ?? "");
  put(f.extra, figure?.extra ?? "");
  f.notes.forEach((node, i) => {
    put(node, figure?.notes[i] ?? "");
    node.title = figure?.notes[i] ?? "";
  });
  f.card.dataset.tone = figure?.tone ?? "";
  if (f.bar) {
    const share = figure?.split ?? 1;
    f.bar.style.visibility = figure?.split == null ? "hidden" : "";
    const [weights, k, v] = f.bar.children;
    weights.style.flexGrow = share;
    k.style.flexGrow = (1 - share) / 2;
    v.style.flexGrow = (1 - share) / 2;
  }
}

function writeRunInfo(shell) {
  const { n, store: run, words, data, state } = shell;
  if (!run?.started) {
    put(n.info, "");
    return;
  }
  const { hardware, settings, started_at: startedAt } = run.started;
  const how = data.recorded ? "recorded" : isOver(run) ? "over" : "live";
  const date = how === "live" ? "" : ` · ${dateOf(startedAt, words.language)}`;
  const head = words.t(state === "retry" ? "info.retry" : `info.${how}`);
  const text = `${head}${date} · ${machineOf(hardware)} · ${modelOf(run.started, words)} · ${settings.dtype}`;
  writeInfo(shell, text, state === "retry" ? "retry" : how === "live" ? "live" : "over");
}

/** A button for each sequence of a batch. */
function writeChips(view) {
  const { shell, facts } = view;
  const { n, store: run, words } = shell;
  const batch = run?.started?.settings.batch ?? 1;
  const key = `${shell.runId}|${batch}|${words.language}`;
  if (n.chips.dataset.key !== key) {
    n.chips.dataset.key = key;
    n.chips.replaceChildren();
    for (let b = 0; batch > 1 && b < batch; b++) {
      const title = words.t("sequence", { n: b + 1 });
      const attributes = { type: "button", class: "chip", "aria-label": title, title, onclick: () => view.choose(b) };
      n.chips.append(el("button", attributes, String(b + 1)));
    }
  }
  n.root.classList.toggle("batch", batch > 1);
  const fed = facts?.phase === "decode" ? facts.step.num_new_tokens : null;
  [...n.chips.children].forEach((chip, b) => {
    chip.setAttribute("aria-pressed", String(b === view.b));
    chip.classList.toggle("over", Boolean(fed && !fed[b]));
  });
}

/** The labels above the ribbon. Their widths are measured on a canvas: to ask the page would make it lay out at
 * once. */
export function writePhases(view, cursor) {
  const { shell, sum, times } = view;
  const { n, store: run } = shell;
  const { scale } = times;
  const first = firstDecode(run, cursor.k);
  const decoding = cursor.k > first;
  const unit = shell.unit / shell.dpr;
  const total = n.ribbon.width / shell.dpr;
  const decodeX = first ? scale.x(stepEnd(run, first - 1)) / shell.dpr : 0;
  const text = prefillText(view, cursor, first);
  put(n.pre, text);
  put(n.dec, decoding ? decodeText(shell, sum, scale, first, cursor.k) : "");
  const room = decoding ? Math.max(decodeX - 10, Math.min(total * 0.46, 330 * unit)) : total;
  n.pre.style.maxWidth = `${Math.max(120, room)}px`;
  probe.font = fontOf(shell, 0.96);
  const width = Math.min(probe.measureText(text).width, room);
  const left = Math.max(Math.min(decodeX, total * 0.62), Math.min(width + 14, total * 0.5));
  n.dec.style.left = `${left}px`;
  n.dec.style.maxWidth = `${Math.max(60, total - left)}px`;
}

function prefillText(view, cursor, first) {
  const { shell, sum, times } = view;
  const { store: run, words } = shell;
  const { t } = words;
  const tokens = countOf(tokensToRead(run));
  const done = countOf(tokensRead(run, first));
  const now = t(cursor.ended ? "phase.prefill.stopped" : "phase.prefill.now", { done, tokens });
  const ttft = sum?.ttftNs ?? null;
  const note = ttft === null ? now : t("phase.prefill.done", { tokens, time: timeOf(ttft) });
  return `${t("phase.prefill")}\u2002${note}${times.scale.broken ? ` · ${t("phase.broken")}` : ""}`;
}

function decodeText({ store: run, words, unit }, sum, scale, first, k) {
  const { t } = words;
  const { size } = decodeBlocks(run, first, k, scale, 3.2 * unit);
  const time = timeOf(sum.itlMedianNs ?? run.steps[first].end_ns - run.steps[first].start_ns);
  const again = countOf(run.steps[k - 1].num_new_tokens.reduce((a, n) => a + n, 0));
  const none = run.started.settings.cache === "none";
  const perPass = sum.decodeTokens / sum.numGaps / run.started.settings.batch;
  const several = perPass > 1 ? perPass.toFixed(2) : null; // where drafts were accepted
  const key = none ? "phase.decode.none" : several ? "phase.decode.several" : "phase.decode.note";
  const each = t(key, { time, n: several ?? again });
  return `${t("phase.decode")}\u2002${each}${size > 1 ? ` · ${t("phase.decode.group", { size })}` : ""}`;
}

/** What a figure's pop-over tells. */
export function popOf(view, name) {
  const { shell, writing } = view;
  const { n, words, store: run, data } = shell;
  const { t } = words;
  const numbers = writing.figures[name]?.numbers;
  let small = null;
  if (run?.started) {
    const machine = machineOf(run.started.hardware);
    const date = dateOf(run.started.started_at, words.language);
    small = data.recorded ? t("pop.recorded", { machine, date }) : t("pop.live", { machine });
  }
  return {
    title: t(`fig.${name}`), tag: tagOf(shell, n.figures[name].tagName), meaning: t(`fig.${name}.meaning`),
    formula: t(`fig.${name}.formula`), here: numbers ? [t("pop.here"), numbers] : null,
    source: t(`fig.${name}.source`), small,
  };
}

// ---- the text card ------------------------------------------------------------------------------

export function clearText({ shell, writing }) {
  shell.n.words.firstChild.replaceChildren();
  Object.assign(writing, { start: 0, marks: [], ready: false, current: null });
}

/** Show the end of the prompt and the first `count` tokens; what is on screen already is left alone. */
export function writeText(view, count) {
  const { shell, writing, b } = view;
  const { marks } = writing;
  if (!writing.ready || count < writing.start || count - writing.start > WINDOW_TOKENS) {
    clearText(view);
    beginText(view, Math.max(0, count - Math.floor(WINDOW_TOKENS / 2)));
    writeText(view, count);
    return;
  }
  const want = count - writing.start;
  while (marks.length > want) marks.pop().remove();
  writing.current?.classList.remove("cur");
  while (marks.length < want) {
    const i = writing.start + marks.length;
    const { text } = shell.store.pieces[b][i];
    const mark = el("span", { class: `${i % 2 ? "tok odd" : "tok"}${turnsText(text) ? " turns" : ""}` }, text);
    marks.push(mark);
    shell.n.words.firstChild.append(mark);
  }
  writing.current = marks[want - 1] ?? null;
  writing.current?.classList.add("cur");
}

function beginText(view, start) {
  const { shell, writing, b } = view;
  const { n, store: run, words } = shell;
  const prompt = run.started.prompt_texts[b];
  const tail = [];
  let length = 0;
  for (let i = prompt.length - 1; i >= 0 && length < PROMPT_CHARS; i--) {
    tail.unshift(prompt[i]);
    length += prompt[i].length;
  }
  const before = el("span", { class: "old", title: words.t("text.prompt") });
  while (tail.length && !tail[0].trim()) tail.shift();
  if (tail.length) tail[0] = tail[0].trimStart();
  joinPieces(before, tail.length < prompt.length ? ["… ", ...tail] : tail);
  n.words.firstChild.append(before);
  if (start) {
    const earlier = el("span", { class: "earlier" });
    joinPieces(earlier, run.pieces[b].slice(0, start).map((piece) => piece.text));
    n.words.firstChild.append(earlier);
  }
  Object.assign(writing, { start, ready: true });
}

/** Put pieces into a node as one text. A piece that turns the direction of what follows stands apart, so that it turns
 * itself only; to set every piece apart would break the order of words in Arabic or Hebrew. */
function joinPieces(node, texts) {
  let plain = "";
  for (const text of texts) {
    if (!turnsText(text)) {
      plain += text;
      continue;
    }
    node.append(plain, el("span", { class: "turns" }, text));
    plain = "";
  }
  node.append(plain);
}
