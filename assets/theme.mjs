// The colours of the page's theme, as canvases want them.
//
// It reads computed styles of a mounted node; it knows nothing of runs. Colours are named in live_view.css.
import { paletteOf } from "./matrix.mjs";

export const probe = typeof document === "undefined" ? null : document.createElement("canvas").getContext("2d", { willReadFrequently: true });
function rgbOf(node, name) {
  const sample = document.createElement("i");
  sample.style.cssText = `position:absolute;visibility:hidden;background:var(${name})`;
  node.append(sample);
  probe.fillStyle = "#000";
  probe.fillStyle = getComputedStyle(sample).backgroundColor;
  sample.remove();
  probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}

/** Colours from the page's theme: dark or light by the luminance of its background. `stamp` changes when they do. */
export function themeOf(root) {
  const [r, g, b] = rgbOf(root, "--st-background-color");
  const dark = 0.2126 * r + 0.7152 * g + 0.0722 * b < 128;
  root.dataset.theme = dark ? "dark" : "light";
  const theme = { dark, font: getComputedStyle(root).fontFamily };
  for (const name of ["card", "bg", "line", "text", "mut", "k", "v", "new", "read", "pre", "dec", "track"]) {
    const rgb = rgbOf(root, `--${name}`);
    theme[name] = `rgb(${rgb.join(",")})`;
    theme[`${name}Rgb`] = rgb;
  }
  const mix = (a, c, share) => a.map((value, i) => value + (c[i] - value) * share);
  const bright = dark ? [255, 255, 255] : [10, 16, 40];
  const empty = mix(theme.cardRgb, theme.textRgb, dark ? 0.09 : 0.07);
  theme.emptyCell = `rgb(${empty.map(Math.round).join(",")})`;
  for (const [name, ramp] of [["k", "rampK"], ["v", "rampV"]]) {
    const hue = theme[`${name}Rgb`];
    theme[ramp] = paletteOf([0.1, 0.3, 0.52, 0.76, 1].map((share) => mix(theme.cardRgb, hue, share)).concat([mix(hue, bright, dark ? 0.5 : 0.45)]), empty);
  }
  theme.stamp = JSON.stringify([theme.card, theme.text, theme.k, theme.font]);
  return theme;
}
