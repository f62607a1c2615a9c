// What every view is made of: elements, icons, floating notes, and the call that Streamlit makes. Text enters by
// textContent only; nothing here knows what is shown.

/** An element. `attributes`: on* are listeners, the rest are attributes; children are nodes or text. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same of a picture: an element of SVG. */
export function drawn(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const ICONS = {
  start: "M4 4h2v12H4zM16 4v12L7 10z",
  back: "M13 4v12L4.5 10zM15 4h2v12h-2z",
  play: "M5 3.5v13L17 10z",
  pause: "M5 4h3.6v12H5zM11.4 4H15v12h-3.6z",
  next: "M7 4v12l8.500-6zM3 4h2v12H3z",
  end: "M14 4h2v12h-2zM4 4v12l9-6z",
  replay: "M10 4V1L5.500 5 10 9V6a4.500 4.500 0 1 1-4.500 4.500h-2A6.500 6.500 0 1 0 10 4z",
  save: "M9 3h2v7.200l2.800-2.800 1.400 1.400L10 14 4.800 8.800l1.400-1.400L9 10.200zM4 15h12v2H4z",
  project: "M3 3h6v2H5v4H3zM17 17h-6v-2h4v-4h2zM11 3h6v6h-2V5h-4zM3 11h2v4h4v2H3z",
};

/** A small picture, hidden from screen readers. */
export function icon(name) {
  return drawn("svg", { viewBox: "0 0 20 20", "aria-hidden": "true" }, drawn("path", { d: ICONS[name] }));
}

/** A round button of the transport. */
export function iconButton(name, onclick) {
  return el("button", { type: "button", class: "icon", "data-icon": name, onclick }, icon(name));
}

/** Give a button another picture. */
export function setIcon(button, name) {
  if (button.dataset.icon === name) return;
  button.dataset.icon = name;
  button.replaceChildren(icon(name));
}

/** Set text only where it differs: an unchanged node costs no layout. */
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Put a floating element by a box of the viewport, where there is room: below, above, or at its left. */
export function place(floating, box, atLeft = false) {
  const { innerWidth, innerHeight } = window;
  const w = floating.offsetWidth;
  const h = floating.offsetHeight;
  if (atLeft && box.left - w - 12 > 6) {
    floating.style.left = `${Math.round(box.left - w - 12)}px`;
    floating.style.top = `${Math.round(Math.max(6, Math.min(box.top, innerHeight - h - 6)))}px`;
    return;
  }
  const x = Math.max(6, Math.min(box.left + box.width / 2 - w / 2, innerWidth - w - 6));
  const below = box.bottom + 8 + h < innerHeight - 4;
  const y = below ? box.bottom + 8 : Math.max(6, box.top - h - 8);
  floating.style.left = `${Math.round(x)}px`;
  floating.style.top = `${Math.round(y)}px`;
}

/** Show or hide a floating element, in the top layer where the browser has one. */
export function float(node, on) {
  if (node.showPopover) {
    const open = node.matches(":popover-open");
    if (on && !open && node.isConnected) node.showPopover();
    if (!on && open) node.hidePopover();
  } else node.classList.toggle("open", on);
}

/** What Streamlit calls at every rerun, with `views` parent -> view. A call that is superseded is cleaned up while the
 * view is still mounted: only a view that has left the page is taken down. */
export function mounting(views, newView, update, destroy) {
  return (component) => {
    const parent = component.parentElement;
    let view = views.get(parent);
    if (!view) {
      view = newView(parent);
      views.set(parent, view);
    }
    update(view, component);
    return () => setTimeout(() => {
      if (!view.n.root.isConnected && views.get(parent) === view) destroy(view);
    }, 0);
  };
}
