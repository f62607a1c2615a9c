import assert from "node:assert/strict";
import test from "node:test";
import { frameAt, isAnswered, newMoves, putAhead, shelfOf } from "../../assets/js/frames.mjs";

const DATA = {
  at: [4, 2], frame: "own", keys: { context: "a", sequences: "b" },
  sliders: [{ name: "context" }, { name: "sequences" }],
};

function shelf() {
  const made = shelfOf({});
  putAhead(made, { axis: "context", key: "a", frames: { 4: "own", 5: "context 5" } });
  putAhead(made, { axis: "sequences", key: "b", frames: { 1: "sequences 1" } });
  return made;
}

test("a slider that moves alone finds the frame of its stop", () => {
  assert.equal(frameAt(shelf(), DATA, [4, 2]), "own");
  assert.equal(frameAt(shelf(), DATA, [5, 2]), "context 5");
  assert.equal(frameAt(shelf(), DATA, [4, 1]), "sequences 1");
});

test("a stop that was not worked out has no frame, nor has a place at which both have moved", () => {
  assert.equal(frameAt(shelf(), DATA, [6, 2]), null);
  assert.equal(frameAt(shelf(), DATA, [5, 1]), null);
  assert.equal(frameAt(shelfOf({}), DATA, [5, 2]), null);
});

test("frames of another choice are not painted as if they were of this one", () => {
  assert.equal(frameAt(shelf(), { ...DATA, keys: { context: "z", sequences: "b" } }, [5, 2]), null);
  assert.equal(frameAt(shelf(), { ...DATA, keys: null }, [5, 2]), null, "what is chosen has failed: it has none");
});

test("modules that are run apart meet on one shelf, and newer frames are in place of older ones", () => {
  const page = {};
  putAhead(shelfOf(page), { axis: "context", key: "a", frames: { 5: "old" } });
  putAhead(shelfOf(page), { axis: "context", key: "a", frames: { 5: "new" } });
  assert.equal(frameAt(shelfOf(page), DATA, [5, 2]), "new");
});

test("an answer to an older move does not take the sliders back, one to the last does", () => {
  const moves = newMoves(0);
  moves.made = 2;
  assert.equal(isAnswered(moves, 0), false, "a rerun for another reason");
  assert.equal(isAnswered(moves, 1), false);
  assert.equal(isAnswered(moves, 2), true);
  assert.deepEqual(moves, newMoves(2));
});

test("where nothing waits every answer holds, one of a session begun anew too", () => {
  const moves = newMoves(7);
  assert.equal(isAnswered(moves, 7), true);
  assert.equal(isAnswered(moves, 0), true);
  assert.deepEqual(moves, newMoves(0));
});
