// Reads frames (JSON list of texts) from stdin and prints, for every prefix of the events, what the view would show:
// tests/view/test_components.py works the same out in Python and compares.
import { factsAt, newRun, piecesAt, rowsAt, summaryAt, takeFrame, textOf } from "../../assets/js/run.mjs";

let input = "";
for await (const part of process.stdin) input += part;
const { frames, prefixes } = JSON.parse(input);

function report(run) {
  const k = run.steps.length;
  const facts = factsAt(run, k);
  const sum = summaryAt(run, k);
  return {
    k,
    rows: rowsAt(run, k),
    columns: facts.columns,
    live: facts.liveBytes,
    reserved: facts.reservedBytes,
    agrees: facts.agrees,
    readAgrees: facts.readAgrees,
    moved: facts.movedBytes,
    pads: facts.padBytes,
    ended: facts.endedBytes,
    texts: run.pieces.map((pieces) => pieces.map((piece) => piece.text).join("")),
    last: run.pieces.map((pieces, b) => (facts.rows[b] ? textOf(run, b, facts.rows[b] - 1) : null)),
    tokens: run.pieces.map((_, b) => piecesAt(run, b, k)),
    ttft: sum.ttftNs,
    num_tokens: sum.numTokens,
    num_gaps: sum.numGaps,
    median: sum.itlMedianNs,
    p95: sum.itlP95Ns,
    tpot: sum.tpotNs,
    rate: sum.tokensPerS,
    sampled: run.sequences.map((s) => s.sampled),
    bytes: run.sequences.map((s) => [sumOf(s.k, s.sampled * run.numColumns), sumOf(s.v, s.sampled * run.numColumns)]),
    over: Boolean(run.finished),
  };
}

function sumOf(bytes, length) {
  let sum = 0;
  for (let i = 0; i < length; i++) sum = (sum * 31 + bytes[i]) % 1000003;
  return sum;
}

const run = newRun();
const grown = frames.map((text) => {
  takeFrame(run, text);
  return report(run);
});
// The same prefixes from the whole log, as scrubbing sees them.
const scrubbed = prefixes.map((k) => ({ k, rows: rowsAt(run, k), moved: factsAt(run, k).movedBytes, median: summaryAt(run, k).itlMedianNs }));
console.log(JSON.stringify({ grown, scrubbed }));
