// What belongs to every page: its question, keys, a way past the header by keyboard and to the boxes on a narrow
// screen, and files dropped anywhere. What a page shows it does not know.
import { el, put } from "./elements.mjs";

const VIEWS = ".st-key-live_view, .st-key-race_view"; // they take the key F themselves
const PAGE_LINKS = '[data-testid="stTopNavLink"], [data-testid="stSidebarNavLink"]';
const PASTE_BUTTON = '[class*="st-key-paste-"] button';
const PASTE_TEXT = '[class*="st-key-paste_text_"] textarea';
const PASTE_FILES = '[class*="st-key-paste_files_"] input[type="file"]';
const NUMBERS = 'summary, [aria-haspopup="dialog"]:not([data-testid])';
const WAIT_MS = 3000;
let heard = null;

/** What Streamlit calls at every rerun: `data` has the page's question and the words of the two buttons. */
function frame({ data, parentElement }) {
  let root = parentElement.querySelector(".frame");
  if (!root) {
    const button = (name, onclick) => el("button", { type: "button", class: name, onclick });
    root = el("div", { class: "frame" }, button("skip", toNumbers), el("p", {}), button("jump", toBoxes));
    parentElement.append(root);
    listen();
  }
  put(root.querySelector("p"), data.question);
  for (const name of ["skip", "jump"]) put(root.querySelector(`.${name}`), data[name]);
}

/** Once for the page: an earlier frame's listeners go. */
function listen() {
  heard?.abort();
  heard = new AbortController();
  const on = (name, act) => document.addEventListener(name, act, { signal: heard.signal });
  on("keydown", onKey);
  on("dragover", onDrag);
  on("dragleave", (event) => event.relatedTarget === null && dragging(false));
  on("drop", onDrop);
}

/** 1 to 9 a page, O the box that opens anything, F large type, unless somebody is typing. */
function onKey(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  const target = event.composedPath()[0];
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(target?.tagName ?? "") || target?.isContentEditable) return;
  const key = event.key.toLowerCase();
  if (key === "o") openBox().then((text) => text?.focus());
  else if (key === "f" && !document.querySelector(VIEWS)) document.documentElement.classList.toggle("st-projection");
  else if (/^[1-9]$/.test(key)) pageLinks()[Number(key) - 1]?.click();
  else return;
  event.preventDefault();
}

function pageLinks() {
  const links = [...document.querySelectorAll(PAGE_LINKS)];
  return [...new Map(links.map((link) => [link.href, link])).values()];
}

// ---- files dropped anywhere ---------------------------------------------------------------------

const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
const overBox = (event) => event.composedPath().some((node) => node.dataset?.testid === "stFileUploaderDropzone");
const dragging = (on) => document.documentElement.classList.toggle("st-drop", on);

function onDrag(event) {
  if (!hasFiles(event)) return;
  event.preventDefault();
  dragging(true);
}

/** Handed to the box of the header, but where they are dropped on a box of the page. */
async function onDrop(event) {
  if (!hasFiles(event)) return;
  dragging(false);
  if (overBox(event)) return;
  event.preventDefault();
  const { files } = event.dataTransfer;
  await openBox();
  const input = await found(PASTE_FILES);
  if (!input) return;
  input.files = files;
  input.dispatchEvent(new Event("change", { bubbles: true }));
}

/** Open the box; gives its field. */
async function openBox() {
  if (!document.querySelector(PASTE_TEXT)) document.querySelector(PASTE_BUTTON)?.click();
  return found(PASTE_TEXT);
}

/** An element, as soon as the page has it; null where it does not come. */
async function found(selector) {
  const end = performance.now() + WAIT_MS;
  for (;;) {
    const node = document.querySelector(selector);
    if (node || performance.now() > end) return node;
    await new Promise(requestAnimationFrame);
  }
}

// ---- past the header ----------------------------------------------------------------------------

/** To the first number that opens, which may be within a view's own tree. */
function toNumbers() {
  const roots = [document, ...[...document.querySelectorAll("*")].flatMap((node) => node.shadowRoot ?? [])];
  const first = roots.flatMap((root) => [...root.querySelectorAll(NUMBERS)]).find((node) => node.checkVisibility() && !node.closest('[data-testid="stPopover"]'));
  first?.scrollIntoView({ block: "center" });
  first?.focus();
}

function toBoxes() {
  document.querySelector(".st-key-ask")?.scrollIntoView({ block: "start" });
}

export default frame;
