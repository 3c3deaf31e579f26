// Draws columns of the batch tape: a function of (tape, geometry, theme); it keeps nothing between calls.
import { columnX, decodeHeight, prefillHeight } from "./geometry.js";
import { DECODE, FINISHED, IDLE, KEPT, PREEMPTED, PREFILL } from "./ring.js";
import { ground } from "./film.js";
import { GAP } from "./tape.js";

export const TOP = 14; // room for the words over a pause in time
export const AXIS = 20;

export const tapeHeight = (geometry, rows) => TOP + rows * geometry.rowHeight + AXIS;
export const middle = (geometry, seat) => TOP + seat * geometry.rowHeight + geometry.rowHeight / 2;

/** Columns from..to-1 of every seat, on their ground. */
export function paintTape(ctx, scene, from, to) {
  const { geometry, theme, rows, tape } = scene;
  const [x, width] = ground(ctx, scene, from, to, 0, tapeHeight(geometry, rows));
  ctx.fillStyle = theme.colour.track;
  for (let seat = 0; seat < rows; seat++) ctx.fillRect(x, Math.round(middle(geometry, seat)), width, 1);
  const first = Math.max(from, tape.oldest);
  for (let seat = 0; seat < Math.min(rows, tape.stride); seat++) paintSeat(ctx, scene, seat, first, to);
  paintBreaks(ctx, scene, first, to);
}

/** Lines where time passed between two columns: the engine rested, was restarted, or frames did not arrive. */
function paintBreaks(ctx, { tape, geometry, theme, rows, until }, from, to) {
  ctx.lineWidth = 1;
  for (let column = Math.max(from, tape.oldest + 1); column < to; column++) {
    const gap = tape.gap[column % tape.capacity];
    const x = Math.round(columnX(geometry, column, until)) + 0.5;
    if (gap === GAP.none) continue;
    ctx.strokeStyle = gap === GAP.restarted ? theme.colour.warn : theme.colour.muted;
    ctx.setLineDash(gap === GAP.restarted ? [] : [2, 3]);
    ctx.beginPath();
    ctx.moveTo(x, TOP);
    ctx.lineTo(x, TOP + rows * geometry.rowHeight);
    ctx.stroke();
  }
  ctx.setLineDash([]);
}

function paintSeat(ctx, scene, seat, from, to) {
  const { tape, geometry, until } = scene;
  for (let column = from; column < to; column++) {
    const cell = (column % tape.capacity) * tape.stride + seat;
    if (tape.flags[cell] === 0) continue;
    const last = geometry.gap === 0 && isPlain(tape, cell) ? runEnd(tape, seat, column, to) : column;
    paintCell(ctx, scene, cell, seat, column, columnX(geometry, column, until), (last - column + 1) * geometry.pitch);
    column = last;
  }
}

const isPlain = (tape, cell) => tape.flags[cell] === DECODE && tape.drafted[cell] === 0;

/** The last column of a run of plain decodes of one request: without gaps they are one rectangle. */
function runEnd(tape, seat, column, to) {
  const request = tape.request[(column % tape.capacity) * tape.stride + seat];
  let last = column;
  while (last + 1 < to) {
    const next = ((last + 1) % tape.capacity) * tape.stride + seat;
    if (!isPlain(tape, next) || tape.request[next] !== request) break;
    last += 1;
  }
  return last;
}

/** One cell at x, `width` wide, the gap to the next one included. */
export function paintCell(ctx, scene, cell, seat, column, x, width) {
  const { tape, geometry } = scene;
  const flags = tape.flags[cell];
  const y = middle(geometry, seat);
  if (flags & DECODE) paintDecode(ctx, scene, cell, x, y, width - geometry.gap);
  else if (flags & PREFILL) paintPrefill(ctx, scene, cell, column, x, y, width - geometry.gap);
  else if (flags & IDLE) paintIdle(ctx, scene, x, y, width - geometry.gap);
  else if (flags & KEPT) paintKept(ctx, scene, cell, x, y, width - geometry.gap);
  if (flags & FINISHED) paintEnd(ctx, scene, seat, x + width);
  if (flags & PREEMPTED) paintPreempted(ctx, scene, seat, x, width);
}

/** A thin line; with drafts as tall as the tokens it brought, with the guesses that were wrong hollow on top. */
function paintDecode(ctx, { tape, geometry, theme }, cell, x, y, width) {
  const height = decodeHeight(geometry.rowHeight);
  const drafted = tape.drafted[cell];
  ctx.fillStyle = theme.requests[tape.colour[cell]];
  if (drafted === 0) {
    ctx.fillRect(x, Math.round(y - height / 2), width, height);
    return;
  }
  const room = geometry.rowHeight - 2;
  const unit = Math.min(height, room / (drafted + 1));
  const floor = Math.round(y + (unit * (drafted + 1)) / 2);
  for (let token = 0; token <= drafted; token++) {
    ctx.globalAlpha = token <= tape.taken[cell] ? 1 : 0.28;
    ctx.fillRect(x, floor - (token + 1) * unit, width, unit >= 3 ? unit - 1 : unit);
  }
  ctx.globalAlpha = 1;
}

/** A block as tall as its chunk, hatched and framed; over it, dashed, what a padded batch adds. */
function paintPrefill(ctx, { tape, geometry, theme }, cell, column, x, y, width) {
  const c = column % tape.capacity;
  const { rowHeight } = geometry;
  const colour = theme.requests[tape.colour[cell]];
  const height = prefillHeight(tape.tokens[cell], tape.budgetLimit[c], rowHeight);
  const padded = tape.padTo[c] > tape.tokens[cell] ? prefillHeight(tape.padTo[c], tape.budgetLimit[c], rowHeight) : 0;
  const top = Math.round(y - Math.max(height, padded) / 2) + Math.max(0, padded - height);
  ctx.fillStyle = theme.hatches[tape.colour[cell]];
  ctx.fillRect(x, top, width, height);
  if (width >= 4) {
    ctx.strokeStyle = colour;
    ctx.lineWidth = 1;
    ctx.strokeRect(x + 0.5, top + 0.5, width - 1, height - 1);
  } else {
    ctx.fillStyle = colour;
    ctx.fillRect(x, top, width, 1);
    ctx.fillRect(x, top + height - 1, width, 1);
  }
  if (padded > height) {
    ctx.fillStyle = theme.ghostHatch;
    ctx.fillRect(x, top - (padded - height), width, padded - height);
  }
}

/** A hollow cell: the seat is held and does nothing. */
function paintIdle(ctx, { geometry, theme }, x, y, width) {
  const height = Math.max(3, Math.round(geometry.rowHeight * 0.4));
  const top = Math.round(y - height / 2);
  ctx.fillStyle = theme.ghostHatch;
  ctx.fillRect(x, top, width, height);
  ctx.fillStyle = theme.colour.ghost;
  ctx.fillRect(x, top, width, 1);
  ctx.fillRect(x, top + height - 1, width, 1);
}

/** Dashes in the colour of the request: it keeps its seat, and nothing is computed. */
function paintKept(ctx, { tape, theme }, cell, x, y, width) {
  ctx.globalAlpha = 0.5;
  ctx.fillStyle = theme.requests[tape.colour[cell]];
  ctx.fillRect(x, Math.round(y - 1), Math.max(1, width / 2), 2);
  ctx.globalAlpha = 1;
}

function paintEnd(ctx, { geometry, theme }, seat, right) {
  const inset = geometry.rowHeight >= 12 ? 2 : 0;
  ctx.fillStyle = theme.colour.text;
  ctx.fillRect(right - Math.min(2, geometry.pitch), TOP + seat * geometry.rowHeight + inset, Math.min(2, geometry.pitch), geometry.rowHeight - 2 * inset);
}

/** A dashed box around the last work of a request that had to leave. */
function paintPreempted(ctx, { geometry, theme }, seat, x, width) {
  const wide = Math.max(width + geometry.pitch, Math.min(10, 2 * geometry.pitch));
  ctx.strokeStyle = theme.colour.warn;
  ctx.lineWidth = 1.5;
  ctx.setLineDash([3, 2]);
  ctx.strokeRect(x + width - wide + 0.75, TOP + seat * geometry.rowHeight + 1.25, wide - 1.5, geometry.rowHeight - 2.5);
  ctx.setLineDash([]);
}
