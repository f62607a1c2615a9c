// The table of a race: a row a quantity; its name chooses the chart, its numbers open to the formula.
import { refreshPop } from "./controls.mjs";
import { el, put } from "./elements.mjs";
import { LANES, QUANTITIES, hasMeter, ratioSpread, valuesAt } from "./race.mjs";
import { tagOf } from "./shell.mjs";
import { countOf, flopParts, promptTokens, ratioOf, sizeParts, timeParts } from "./words.mjs";

const TAG_OF_ROW = {
  rows: "counted", flops: "predicted", moved_bytes: "counted", ns: "measured", energy_j: "measured",
};
const SPANS = ["token", "soFar"];
const PARTS = [...LANES, "ratio"];

/** Add the table and its nodes to those of the shell. */
export function tableNodes(n) {
  Object.assign(n, { rows: {}, cells: {}, subheads: [] });
  n.heads = {
    token: el("th", { colspan: "3", scope: "colgroup" }), soFar: el("th", { colspan: "3", scope: "colgroup" }),
  };
  const sub = el("tr", {}, el("td"));
  for (let i = 0; i < 6; i++) {
    n.subheads.push(el("th", { scope: "col", class: i % 3 === 2 ? "ratio" : "" }));
    sub.append(n.subheads[i]);
  }
  const body = el("tbody", {}, ...QUANTITIES.map((name) => rowNodes(n, name)));
  const head = el("thead", {}, el("tr", {}, el("td"), n.heads.token, n.heads.soFar), sub);
  n.table = el("section", { class: "card table" }, el("table", {}, head, body));
}

function rowNodes(n, name) {
  const label = el("button", { type: "button", class: "row-name", "data-quantity": name });
  const tag = el("span", { class: "tag" });
  const row = el("tr", { "data-row": name }, el("th", { scope: "row" }, label, tag));
  n.rows[name] = { row, label, tag };
  for (const span of SPANS) {
    for (const part of PARTS) {
      const cell = `${name}.${span}.${part}`;
      n.cells[cell] = el("button", { type: "button", "data-cell": cell, "aria-haspopup": "dialog" });
      row.append(el("td", { class: part }, n.cells[cell]));
    }
  }
  return row;
}

export function labelTable({ n, words }) {
  const { t } = words;
  const heads = [t("lanes.bar.none"), t("lanes.bar.full"), t("lanes.table.ratio")];
  n.subheads.forEach((node, i) => put(node, heads[i % 3]));
  for (const name of QUANTITIES) {
    put(n.rows[name].label, t(`lanes.q.${name}`));
    n.rows[name].label.title = t("lanes.table.choose");
  }
}

/** A value of a quantity as [number, unit]. */
function partsOf(name, value) {
  if (value === null) return ["–", ""];
  if (name === "rows") return [countOf(value), ""];
  if (name === "flops") return flopParts(value);
  if (name === "moved_bytes") return sizeParts(value);
  if (name === "ns") return timeParts(value);
  return [value >= 100 ? countOf(value) : value.toPrecision(3), "J"];
}

/** The same short, for an axis. */
export function shortOf(name, value) {
  const [number, unit] = partsOf(name, value);
  return `${number.includes(".") ? String(Number(number)) : number} ${unit}`.trim();
}

/** How a quantity came about: counted, predicted, measured, recorded. */
export function tagOfRow(shell, name) {
  return tagOf(shell, TAG_OF_ROW[name]);
}

export function writeTable(view, moment) {
  const { shell, quantity } = view;
  const { n, store: race, words } = shell;
  const { t } = words;
  const token = moment?.token ?? 0;
  put(n.heads.token, t(token ? "lanes.table.token" : "lanes.table.token_none", { n: token }));
  put(n.heads.soFar, t(token ? "lanes.table.so_far" : "lanes.table.so_far_none", { n: token }));
  n.rows.energy_j.row.hidden = !hasMeter(race);
  for (const name of QUANTITIES) {
    n.rows[name].row.setAttribute("aria-selected", String(name === quantity));
    put(n.rows[name].tag, t(`tag.${tagOfRow(shell, name)}`));
    for (const span of SPANS) {
      const found = foundAt(race, name, token, span);
      for (const part of PARTS) writeCell(n.cells[`${name}.${span}.${part}`], name, part, found?.[part] ?? null);
    }
  }
  refreshPop(shell);
}

function writeCell(cell, name, part, value) {
  const text = partsOf(name, value).join("\u00a0").trim();
  put(cell, part === "ratio" && value !== null ? `${ratioOf(value)} ×` : text);
  cell.dataset.value = value ?? "";
}

/** Both lanes and their ratio at a token, null before the first. */
function foundAt(race, name, token, span) {
  return token ? valuesAt(race, name, { none: token, full: token }, span === "soFar") : null;
}

/** What the pop-over of a cell tells. */
export function popOfCell(shell, cell) {
  const { n, words, store: race } = shell;
  const { t } = words;
  const [name, span] = cell.split(".");
  const token = Number(n.root.dataset.token);
  const found = foundAt(race, name, token, span);
  const params = {
    n: token, none: exact(name, found?.none), full: exact(name, found?.full),
    ratio: found?.ratio == null ? "–" : found.ratio.toPrecision(4),
    prompt: race?.shown.full ? promptTokens(race.shown.full) : 0,
  };
  const lines = [t(span === "soFar" ? "lanes.pop.so_far" : "lanes.pop.token", params), t("lanes.pop.ratio", params)];
  const spread = name === "ns" && span === "soFar" && token ? ratioSpread(race, token) : null;
  if (spread) {
    const [low, high] = [spread.low, spread.high].map((value) => value.toPrecision(3));
    lines.push(t("lanes.pop.spread", { low, high, n: spread.num }));
  }
  return {
    title: t(`lanes.q.${name}`), tag: tagOfRow(shell, name), meaning: t(`lanes.q.${name}.meaning`),
    formula: t(`lanes.q.${name}.formula`), here: [t("lanes.pop.here"), lines.join("\n")],
    source: t(`lanes.q.${name}.source`),
  };
}

function exact(name, value) {
  if (value === null || value === undefined) return "–";
  if (name === "energy_j") return `${value.toPrecision(4)} J`;
  return `${countOf(value)}${{ ns: " ns", moved_bytes: " B" }[name] ?? ""}`;
}
