// Request colours: ten that stay apart for colour-blind eyes (they differ in lightness too) and keep a contrast of 3 or
// more on the surface of their theme. What they are stands in styles/tokens.css; here is which one a request has: the same
// on every page, by its id.

export const PALETTE_SIZE = 10;

/** FNV-1a: spreads ids that differ in one character. */
export function colourIndex(id) {
  let hash = 0x811c9dc5;
  for (let i = 0; i < id.length; i++) {
    hash = Math.imul(hash ^ id.charCodeAt(i), 0x01000193);
  }
  return ((hash ^ (hash >>> 15)) >>> 0) % PALETTE_SIZE;
}

/** The colours of the theme that the page has now, as canvases need them. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  return Array.from({ length: PALETTE_SIZE }, (_, i) => style.getPropertyValue(`--request-${i}`).trim());
}

/** Calls `listener` when the theme changes, by the toggle or by the system. Returns what undoes it. */
export function onThemeChange(listener) {
  addEventListener("themechange", listener);
  return () => removeEventListener("themechange", listener);
}
