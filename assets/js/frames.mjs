// Which frame is on screen: frames made ahead by Python, and whose move an answer of Python's is for.
//
// Pure functions. A frame is all that stands on the page for one place of the two sliders; a place is the stop of each.
// The module that receives frames and the one that paints them are run apart: they meet on a shelf of the page.

const SHELF = Symbol.for("second-token.frames");

/** The page's shelf: for each slider the frames along it. */
export function shelfOf(page = globalThis) {
  page[SHELF] ??= new Map();
  return page[SHELF];
}

/** Put frames along one slider where those before them were. */
export function putAhead(shelf, message) {
  shelf.set(message.axis, message);
}

/** The frame of a place, or null: the page's own, or one ahead of it along the one slider that has moved, if it was made
 * for all else that is chosen (`data.keys`). */
export function frameAt(shelf, data, place) {
  const moved = place.flatMap((stop, axis) => (stop === data.at[axis] ? [] : [axis]));
  if (!moved.length) return data.frame;
  if (moved.length > 1 || !data.keys) return null;
  const { name } = data.sliders[moved[0]];
  const ahead = shelf.get(name);
  if (!ahead || ahead.key !== data.keys[name]) return null;
  return ahead.frames[place[moved[0]]] ?? null;
}

/** Moves made here, and the last one that Python has answered and been told of. */
export function newMoves(answered) {
  return { made: answered, answered, told: answered };
}

/** Take an answer for the move `number`: false where the sliders have moved on since, so that they stay. */
export function isAnswered(moves, number) {
  if (moves.made > moves.answered && number < moves.made) return false;
  Object.assign(moves, newMoves(number));
  return true;
}
