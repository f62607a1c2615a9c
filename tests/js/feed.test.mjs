import assert from "node:assert/strict";
import test from "node:test";
import { openFeed } from "../../assets/js/feed.mjs";

globalThis.navigator ??= { onLine: true }; // older versions of node have none
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const answer = (text, type = "application/x-ndjson") => ({ ok: true, status: 200, headers: { get: () => type }, text: async () => text });

const sockets = []; // those that were opened
/** A feed against a server that answers with `serve(url)`; what it has told is in the list. */
function feedOf(serve, handle = () => ({ gap: false, over: true })) {
  const told = [];
  globalThis.fetch = async (url) => serve(String(url));
  sockets.length = 0;
  globalThis.WebSocket = class { constructor() { sockets.push(this); } close() {} };
  const feed = openFeed({
    runId: "r", language: "en", next: () => 0, base: "http://here/", handle: (text) => handle(text, told),
    onState: (state) => told.push(state), onLost: () => told.push("lost"),
  });
  return { feed, told };
}

test("an answer that is no frame leaves it to the page", async () => {
  const { told } = feedOf(() => answer("hello"));
  await wait(20);
  assert.deepEqual(told, ["lost"]);
});

test("a frame is handed on as it is", async () => {
  const { told } = feedOf(() => answer('{"first":0}'), (text, all) => {
    all.push(text);
    return { gap: false, over: true };
  });
  await wait(20);
  assert.deepEqual(told, ['{"first":0}', "open"]);
});

test("a server that does not answer at all is waited for", async () => {
  let up = false;
  const { feed, told } = feedOf(() => {
    if (!up) throw new TypeError("Failed to fetch");
    return answer('{"first":0}');
  });
  await wait(2500); // three attempts and more
  assert.ok(!told.includes("lost"));
  up = true;
  await wait(2600);
  assert.deepEqual([told[0], told[told.length - 1]], ["retry", "open"]);
  feed.close();
});

test("what is more than one message takes comes as a snapshot at once, and the feed listens again", async () => {
  let asked = 0;
  const { feed, told } = feedOf(() => (asked++, answer('{"first":0}')), () => ({ gap: false, over: false }));
  await wait(20);
  sockets[0].onclose({ code: 4413 });
  await wait(20);
  assert.deepEqual([asked, sockets.length, told], [2, 2, ["open", "open"]]);
  feed.close();
});

test("where too many watch the run is asked for now and then, not at once", async () => {
  let asked = 0;
  const { feed, told } = feedOf(() => (asked++, answer('{"first":0}')), () => ({ gap: false, over: false }));
  await wait(20);
  sockets[0].onclose({ code: 4429 });
  await wait(1500); // a broken socket would have been opened again
  assert.deepEqual([asked, told], [1, ["open"]]);
  feed.close();
});
