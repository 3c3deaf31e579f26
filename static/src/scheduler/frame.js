// What stands around the tape's columns: with them on the film, words over breaks in time and the axis; beside it, on the
// canvas under it, seat numbers and who sits where.
import { t } from "../i18n/index.js";
import { count, duration, shortId } from "../lib/format.js";
import { AXIS, middle, paintTape, tapeHeight, TOP } from "./draw.js";
import { columnX } from "./geometry.js";
import { FINISHED, IDLE, PREEMPTED, SEATED } from "./ring.js";
import { GAP } from "./tape.js";

const LABEL_EVERY_PX = 90;
/** CSS pixels by which words reach over the columns before theirs, or after. */
export const REACH = 140;
const HALF_LABEL = 30;

export const tapeWords = () => ({ idle: t("tape.idle"), still: t("tape.still"), held: t("tape.heldShort"), missed: t("tape.gap"), restarted: t("tape.restarted") });

function clear(ctx, { theme }, x, y, width, height) {
  ctx.fillStyle = theme.colour.surface;
  ctx.fillRect(x, y, width, height);
}

/** Columns from..to-1 with their words, on a stretch of film that ends at `scene.until`; later ones reach over it. */
export const paintFilm = (words) => (ctx, scene, from, to) => {
  const { geometry, theme, rows, tape, until } = scene;
  const near = Math.min(to, until + 2);
  if (from < near) paintTape(ctx, scene, from, near);
  const bottom = TOP + rows * geometry.rowHeight;
  clear(ctx, scene, 0, 0, geometry.end, TOP);
  clear(ctx, scene, 0, bottom, geometry.end, AXIS);
  ctx.font = `11px ${theme.font}`;
  ctx.textBaseline = "middle";
  const first = until - Math.round((geometry.end + HALF_LABEL) / geometry.pitch);
  breaks(ctx, scene, words, Math.max(first, tape.oldest + 1), to);
  axis(ctx, scene, bottom, Math.max(first, tape.oldest), to);
};

function breaks(ctx, { tape, geometry, theme, until }, words, from, to) {
  ctx.fillStyle = theme.colour.muted;
  ctx.textAlign = "right";
  let free = -Infinity; // words must not lie over each other
  for (let column = from; column < to; column++) {
    const c = column % tape.capacity;
    const gap = tape.gap[c];
    if (gap === GAP.none) continue;
    const x = columnX(geometry, column, until);
    const label = labelOf(gap, words, tape.gapMs[c]);
    if (x - ctx.measureText(label).width < free + 8) continue;
    ctx.fillText(label, x - 4, TOP / 2);
    free = x;
  }
}

function labelOf(gap, words, ms) {
  if (gap === GAP.restarted) return words.restarted;
  if (gap === GAP.missed) return words.missed;
  return `${gap === GAP.still ? words.still : words.idle} ${duration(ms)}`;
}

function axis(ctx, { tape, geometry, theme, until }, y, from, to) {
  const every = Math.max(5, Math.ceil(LABEL_EVERY_PX / geometry.pitch / 10) * 10);
  ctx.textAlign = "center";
  for (let column = from; column < to; column++) {
    const n = tape.n[column % tape.capacity];
    if (n % every !== 0) continue;
    const x = columnX(geometry, column, until) + geometry.pitch / 2;
    ctx.fillStyle = theme.colour.line;
    ctx.fillRect(Math.round(x), y, 1, 5);
    ctx.fillStyle = theme.colour.muted;
    ctx.fillText(count(n), x, y + AXIS - 7);
  }
}

/** The numbers of the seats, left of the columns. */
export function seatNumbers(ctx, scene) {
  const { geometry, theme, rows } = scene;
  ctx.fillStyle = theme.colour.muted;
  ctx.font = `11px ${theme.font}`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "right";
  const every = Math.max(1, Math.ceil(12 / geometry.rowHeight));
  const step = every <= 1 ? 1 : every <= 2 ? 2 : every <= 4 ? 4 : 8;
  for (let seat = 0; seat < rows; seat += step) ctx.fillText(String(seat), geometry.left - 8, middle(geometry, seat) + 0.5);
}

/** Who sits where in the newest column shown: a swatch, the request, its context; or that the seat is held idle. */
export function names(ctx, scene, words) {
  const { tape, geometry, theme, rows, until, marks } = scene;
  if (geometry.narrow) return;
  clear(ctx, scene, geometry.end, 0, geometry.width - geometry.end, tapeHeight(geometry, rows));
  if (!tape.holds(until - 1) || geometry.rowHeight < 9) return;
  const start = ((until - 1) % tape.capacity) * tape.stride;
  ctx.font = `${geometry.rowHeight < 12 ? 9 : 11}px ${theme.font}`;
  ctx.textBaseline = "middle";
  for (let seat = 0; seat < Math.min(rows, tape.stride); seat++) {
    const flags = tape.flags[start + seat];
    const y = middle(geometry, seat);
    ctx.textAlign = "left";
    if (flags & IDLE) {
      ctx.fillStyle = theme.colour.muted;
      ctx.fillText(words.held, geometry.end + 21, y + 0.5);
    }
    if (!(flags & SEATED) || flags & (FINISHED | PREEMPTED)) continue;
    const id = tape.requestId(tape.request[start + seat]);
    ctx.fillStyle = theme.requests[tape.colour[start + seat]];
    ctx.fillRect(geometry.end + 8, Math.round(y - 4), 8, 8);
    ctx.fillStyle = id === marks.spot ? theme.colour.accent : theme.colour.text;
    ctx.fillText(shortId(id), geometry.end + 21, y + 0.5);
    ctx.fillStyle = theme.colour.muted;
    ctx.textAlign = "right";
    ctx.fillText(count(tape.context[start + seat]), geometry.width - 4, y + 0.5);
  }
}
