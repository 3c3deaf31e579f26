// Colours of the canvases, read from the page's style sheet, and hatch patterns, made once for a theme and a density.
import { palette } from "../lib/colours.js";

const NAMES = [
  "text", "muted", "line", "control", "track", "raised", "surface", "accent", "warn",
  "phase-schedule", "phase-forward", "phase-sample", "phase-commit",
  "prefill", "decode", "drafted", "queue", "ghost", "kv-used", "kv-cached", "kv-free", "hits",
]; // prettier-ignore

export function readTheme(ratio) {
  const style = getComputedStyle(document.documentElement);
  const colour = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  const requests = palette();
  return {
    colour,
    requests,
    hatches: requests.map((c) => hatch(c, ratio)),
    prefillHatch: hatch(colour.prefill, ratio),
    cachedHatch: hatch(colour["kv-cached"], ratio),
    cachedBlock: hatch(colour["kv-cached"], ratio, 0.16, 0.45), // calmer: there may be thousands
    ghostHatch: hatch(colour.ghost, ratio, 0.08, 0.55),
    font: style.getPropertyValue("--font-ui").trim() || "sans-serif",
  };
}

/** Diagonal lines of `colour` over a faint wash of it. */
function hatch(colour, ratio, wash = 0.28, lines = 1) {
  const size = Math.max(4, Math.round(4 * ratio));
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const ctx = tile.getContext("2d");
  ctx.globalAlpha = wash;
  ctx.fillStyle = colour;
  ctx.fillRect(0, 0, size, size);
  ctx.globalAlpha = lines;
  ctx.strokeStyle = colour;
  ctx.lineWidth = Math.max(1, ratio * 1.1);
  ctx.beginPath();
  for (const shift of [-size, 0, size]) {
    ctx.moveTo(shift, size);
    ctx.lineTo(shift + size, 0);
  }
  ctx.stroke();
  const pattern = ctx.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}
