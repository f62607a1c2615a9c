// The colours of the page's theme, as canvases want them.
//
// It reads computed styles of a mounted node; it knows nothing of runs. Colours are named in live_view.css.
import { paletteOf } from "./matrix.mjs";

const canvas = typeof document === "undefined" ? null : document.createElement("canvas");
export const probe = canvas?.getContext("2d", { willReadFrequently: true }) ?? null;
const NAMES = ["card", "bg", "line", "text", "mut", "k", "v", "new", "read", "pre", "dec", "track"];

/** The colours of a node's custom properties, as red, green, blue: all in one go, since a look at a style and a look at
 * a pixel each make the browser wait for what it has not yet worked out. The samples are in an empty copy beside the
 * node: inside it, where styles may depend on its width, they would wait for the page's layout too. */
function rgbsOf(node, properties) {
  const place = node.cloneNode(false);
  place.style.cssText = "display:none;container-type:normal";
  const samples = properties.map((name) => {
    const sample = document.createElement("i");
    sample.style.background = `var(${name})`;
    return sample;
  });
  place.append(...samples);
  node.after(place);
  samples.forEach((sample, i) => {
    probe.fillStyle = "#000";
    probe.fillStyle = getComputedStyle(sample).backgroundColor;
    probe.fillRect(i, 0, 1, 1);
  });
  place.remove();
  const pixels = probe.getImageData(0, 0, properties.length, 1).data;
  return properties.map((_, i) => [...pixels.slice(4 * i, 4 * i + 3)]);
}

/** Colours from the page's theme: dark or light by the luminance of its background. `stamp` changes when they do. */
export function themeOf(root) {
  const [[r, g, b]] = rgbsOf(root, ["--st-background-color"]);
  const dark = 0.2126 * r + 0.7152 * g + 0.0722 * b < 128;
  root.dataset.theme = dark ? "dark" : "light";
  const theme = { dark, font: getComputedStyle(root).fontFamily };
  const colours = rgbsOf(root, NAMES.map((name) => `--${name}`));
  NAMES.forEach((name, i) => {
    theme[name] = `rgb(${colours[i].join(",")})`;
    theme[`${name}Rgb`] = colours[i];
  });
  const mix = (a, c, share) => a.map((value, i) => value + (c[i] - value) * share);
  const bright = dark ? [255, 255, 255] : [10, 16, 40];
  const empty = mix(theme.cardRgb, theme.textRgb, dark ? 0.09 : 0.07);
  theme.emptyCell = `rgb(${empty.map(Math.round).join(",")})`;
  for (const [name, ramp] of [["k", "rampK"], ["v", "rampV"]]) {
    const hue = theme[`${name}Rgb`];
    const stops = [0.1, 0.3, 0.52, 0.76, 1].map((share) => mix(theme.cardRgb, hue, share));
    theme[ramp] = paletteOf([...stops, mix(hue, bright, dark ? 0.5 : 0.45)], empty);
  }
  theme.stamp = JSON.stringify([theme.card, theme.text, theme.k, theme.font]);
  return theme;
}
