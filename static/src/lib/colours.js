// Ten colours that stay apart for colour-blind eyes (they differ in lightness too) and keep a contrast of 3 or more
// on the surface of their theme. A request has the same one on every page, by its id.

const LIGHT = ["#1769c2", "#b8470b", "#0b7a6b", "#b02a80", "#6a55d8", "#8a6a00", "#4a7810", "#c22f4c", "#356a86", "#8a4a24"];
const DARK = ["#5fb0ff", "#ff9a5c", "#3fd6b5", "#f58ac8", "#a99bff", "#e6c344", "#a2d95f", "#ff7f92", "#8fbcdb", "#d8a67f"];

export const PALETTE_SIZE = LIGHT.length;

/** FNV-1a: spreads ids that differ in one character. */
export function colourIndex(id) {
  let hash = 0x811c9dc5;
  for (let i = 0; i < id.length; i++) {
    hash = Math.imul(hash ^ id.charCodeAt(i), 0x01000193);
  }
  return ((hash ^ (hash >>> 15)) >>> 0) % PALETTE_SIZE;
}

export const palette = (dark) => (dark ? DARK : LIGHT);

export function isDark() {
  return document.documentElement.dataset.theme === "dark";
}

/** Calls `listener` when the theme changes, by the toggle or by the system. */
export function onThemeChange(listener) {
  addEventListener("themechange", listener);
}
