// What lies over the columns and does not scroll with them: numbers, names, marks, the request that is pointed at.
import { count, duration, shortId } from "../lib/format.js";
import { AXIS, middle, paintCell, tapeHeight, TOP } from "./draw.js";
import { columnX } from "./geometry.js";
import { FINISHED, IDLE, KIND, PREEMPTED } from "./ring.js";
import { GAP } from "./tape.js";

const LABEL_EVERY_PX = 90;

/** `marks`: {hover, pinned} absolute columns or null, `seat` or null, `spot` a request id or null. */
export function drawOverlay(ctx, scene, words) {
  const { geometry, theme, rows, marks } = scene;
  ctx.clearRect(0, 0, geometry.width, tapeHeight(geometry, rows));
  ctx.font = `11px ${theme.font}`;
  ctx.textBaseline = "middle";
  seatNumbers(ctx, scene);
  if (marks.spot !== null) spot(ctx, scene);
  breaks(ctx, scene, words);
  axis(ctx, scene);
  if (!geometry.narrow) labels(ctx, scene, words);
  columnMark(ctx, scene, marks.pinned, 2);
  columnMark(ctx, scene, marks.hover, 1);
}

function seatNumbers(ctx, { geometry, theme, rows }) {
  ctx.fillStyle = theme.colour.muted;
  ctx.textAlign = "right";
  const every = Math.max(1, Math.ceil(12 / geometry.rowHeight));
  const step = every <= 1 ? 1 : every <= 2 ? 2 : every <= 4 ? 4 : 8;
  for (let seat = 0; seat < rows; seat += step) ctx.fillText(String(seat), geometry.left - 8, middle(geometry, seat) + 0.5);
}

/** The request pointed at: everything else is dimmed, its own cells are drawn again on top. */
function spot(ctx, scene) {
  const { tape, geometry, theme, rows, until, marks } = scene;
  const number = tape.numberOf.get(marks.spot);
  if (number === undefined) return;
  ctx.globalAlpha = 0.62;
  ctx.fillStyle = theme.colour.surface;
  ctx.fillRect(geometry.left, TOP - 2, geometry.end - geometry.left, rows * geometry.rowHeight + 2);
  ctx.globalAlpha = 1;
  for (let column = Math.max(until - geometry.columns, tape.oldest); column < until; column++) {
    const start = (column % tape.capacity) * tape.stride;
    for (let seat = 0; seat < Math.min(rows, tape.stride); seat++) {
      if (!(tape.flags[start + seat] & KIND) || tape.request[start + seat] !== number) continue;
      paintCell(ctx, scene, start + seat, seat, column, columnX(geometry, column, until), geometry.pitch);
      break;
    }
  }
}

/** Where time passed between two columns: the engine rested, was restarted, or frames did not arrive. */
function breaks(ctx, { tape, geometry, theme, rows, until }, words) {
  ctx.textAlign = "right";
  ctx.lineWidth = 1;
  let free = -Infinity; // words must not lie over each other
  for (let column = Math.max(until - geometry.columns, tape.oldest) + 1; column < until; column++) {
    const c = column % tape.capacity;
    const gap = tape.gap[c];
    if (gap === GAP.none) continue;
    const x = Math.round(columnX(geometry, column, until)) - 0.5;
    ctx.strokeStyle = gap === GAP.restarted ? theme.colour.warn : theme.colour.muted;
    ctx.setLineDash(gap === GAP.restarted ? [] : [2, 3]);
    ctx.beginPath();
    ctx.moveTo(x, TOP - 4);
    ctx.lineTo(x, TOP + rows * geometry.rowHeight);
    ctx.stroke();
    const label = gap === GAP.restarted ? words.restarted : gap === GAP.idle ? `${words.idle} ${duration(tape.gapMs[c])}` : words.missed;
    const width = ctx.measureText(label).width;
    if (x - width < free + 8 || x - width < geometry.left) continue;
    ctx.fillStyle = theme.colour.muted;
    ctx.fillText(label, x - 4, TOP / 2);
    free = x;
  }
  ctx.setLineDash([]);
}

function axis(ctx, { tape, geometry, theme, rows, until }) {
  const every = Math.max(5, Math.ceil(LABEL_EVERY_PX / geometry.pitch / 10) * 10);
  const y = TOP + rows * geometry.rowHeight;
  ctx.textAlign = "center";
  for (let column = Math.max(until - geometry.columns, tape.oldest); column < until; column++) {
    const n = tape.n[column % tape.capacity];
    if (n % every !== 0) continue;
    const x = columnX(geometry, column, until) + geometry.pitch / 2;
    ctx.fillStyle = theme.colour.line;
    ctx.fillRect(Math.round(x), y, 1, 5);
    if (x < geometry.left + 16 || x > geometry.end - 10) continue;
    ctx.fillStyle = theme.colour.muted;
    ctx.fillText(count(n), x, y + AXIS - 7);
  }
}

/** Who sits where in the newest column shown: a swatch, the request, its context; or that the seat is held idle. */
function labels(ctx, { tape, geometry, theme, rows, until, marks }, words) {
  if (until === 0 || geometry.rowHeight < 9) return;
  const start = ((until - 1) % tape.capacity) * tape.stride;
  if (geometry.rowHeight < 12) ctx.font = `9px ${theme.font}`;
  for (let seat = 0; seat < Math.min(rows, tape.stride); seat++) {
    const flags = tape.flags[start + seat];
    const y = middle(geometry, seat);
    ctx.textAlign = "left";
    if (flags & IDLE) {
      ctx.fillStyle = theme.colour.muted;
      ctx.fillText(words.held, geometry.end + 21, y + 0.5);
    }
    if (!(flags & KIND) || flags & (FINISHED | PREEMPTED)) continue;
    const id = tape.requestId(tape.request[start + seat]);
    ctx.fillStyle = theme.requests[tape.colour[start + seat]];
    ctx.fillRect(geometry.end + 8, Math.round(y - 4), 8, 8);
    ctx.fillStyle = id === marks.spot ? theme.colour.accent : theme.colour.text;
    ctx.fillText(shortId(id), geometry.end + 21, y + 0.5);
    ctx.fillStyle = theme.colour.muted;
    ctx.textAlign = "right";
    ctx.fillText(count(tape.context[start + seat]), geometry.width - 4, y + 0.5);
  }
  ctx.font = `11px ${theme.font}`;
}

function columnMark(ctx, { geometry, theme, rows, until }, column, width) {
  if (column === null || column < until - geometry.columns || column >= until) return;
  const x = columnX(geometry, column, until);
  ctx.strokeStyle = theme.colour.accent;
  ctx.lineWidth = width;
  ctx.strokeRect(x - 1, TOP - 3, geometry.pitch + 1, rows * geometry.rowHeight + 6);
}
