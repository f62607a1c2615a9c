// Where frames come from: a snapshot, then the socket, opened again from the next event whenever it breaks.
//
// It knows nothing of what a frame says beyond "the run is over"; `handle(text)` returns {gap, over}.
// Where the routes do not answer (a proxy that forwards only the page) it says so once, and the page feeds frames.

const PATIENCE = 60; // attempts without any answer, about five minutes

/** The folder that the app is served from, as a URL that ends in a slash. */
export function baseUrl() {
  const script = document.querySelector('script[src*="static/js/"], link[href*="static/"]');
  const address = script && (script.src || script.href);
  const cut = address ? address.indexOf("/static/") : -1;
  if (cut > 0 && address.startsWith(location.origin)) return address.slice(0, cut + 1);
  return new URL("/", location.href).href;
}

/** Follow a run. `next()` is the index of the next event wanted. Returns {close()}. */
export function openFeed({ runId, language, next, handle, onLost, onState, base = baseUrl() }) {
  let socket = null;
  let timer = null;
  let closed = false;
  let failures = 0;
  const address = (what) => `${base}api/runs/${encodeURIComponent(runId)}/${what}?from=${next()}&lang=${language}`;

  async function snapshot() {
    let answer;
    try {
      answer = await fetch(address("snapshot"));
    } catch {
      return retry();
    }
    if (closed) return null;
    if (answer.status === 404 && (await reachable())) return onState("gone");
    if (!answer.ok || !isFrame(answer)) return (await reachable()) ? retry() : lost();
    const text = await answer.text();
    if (closed) return null;
    if (!text.startsWith("{")) return lost(); // not ours: a proxy answered for the routes
    const { over } = handle(text);
    if (closed) return null;
    failures = 0;
    onState("open");
    if (!over) listen();
    return null;
  }

  function listen() {
    socket = new WebSocket(address("ws").replace(/^http/, "ws"));
    socket.onmessage = (message) => {
      if (closed) return;
      failures = 0;
      const { gap, over } = handle(message.data);
      if (gap) socket.close();
      if (over) {
        socket.onclose = null;
        socket.close();
      }
    };
    socket.onclose = (event) => {
      if (closed) return;
      if (event.code === 4404) onState("gone");
      else if (event.code === 4413) snapshot(); // more than one message takes
      else if (event.code === 4429) timer = setTimeout(snapshot, 5000); // too many watch: ask now and then
      else retry();
    };
  }

  async function retry() {
    if (closed) return;
    failures++;
    if (failures > 1) onState("retry");
    if (failures >= 3 && !(await reachable())) {
      lost();
      return;
    }
    timer = setTimeout(snapshot, Math.min(5000, 150 * 2 ** Math.min(failures, 6)));
  }

  async function reachable() {
    try {
      const answer = await fetch(`${base}api/ping`);
      return answer.ok && (answer.headers.get("content-type") ?? "").includes("json");
    } catch {
      // no answer at all: the network or the server is away, wait
      return navigator.onLine === false || failures < PATIENCE;
    }
  }

  function lost() {
    if (closed) return;
    close();
    onLost();
  }

  function close() {
    closed = true;
    clearTimeout(timer);
    if (socket) {
      socket.onclose = null;
      socket.close();
    }
  }

  snapshot();
  return { close };
}

function isFrame(answer) {
  return !(answer.headers.get("content-type") ?? "").includes("html");
}
