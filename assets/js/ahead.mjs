// Frames made ahead, as they come from Python: inflated and put on the page's shelf. It shows nothing.
import { putAhead, shelfOf } from "./frames.mjs";

let newest = null; // two that come at once are put in the order in which they came

/** What Streamlit calls at every rerun: `data` is deflated JSON. */
function receive({ data }) {
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate"));
  const read = new Response(stream).json();
  newest = Promise.allSettled([newest, read]).then(([, { status, value }]) => {
    if (status === "fulfilled") putAhead(shelfOf(), value);
  });
}

export default receive;
