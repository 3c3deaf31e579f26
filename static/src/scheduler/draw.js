// Draws the batch tape. One function of (tape, geometry, theme, marks); it keeps nothing between calls.
import { count, duration, shortId } from "../lib/format.js";
import { colourIndex } from "../lib/colours.js";
import { columnX, decodeHeight, prefillHeight } from "./geometry.js";
import { DECODE, FINISHED, KIND, PREEMPTED, PREFILL } from "./tape.js";

export const TOP = 14; // room for the words over a pause in time
export const AXIS = 20;
const IDLE_MS = 1000;
const LABEL_EVERY_PX = 90;

export const tapeHeight = (geometry, rows) => TOP + rows * geometry.rowHeight + AXIS;

/** `until`: one more than the newest column shown; `marks`: {hover, pinned} absolute columns or null, `seat` or null. */
export function drawTape(ctx, { tape, geometry, theme, rows, until, marks, words }) {
  const first = Math.max(until - geometry.columns, tape.total - tape.length, 0);
  ctx.clearRect(0, 0, geometry.width, tapeHeight(geometry, rows));
  ctx.font = `11px ${theme.font}`;
  ctx.textBaseline = "middle";
  const scene = { ctx, tape, geometry, theme, rows, until, first, words };
  tracks(scene);
  if (marks.seat !== null) rowMark(scene, marks.seat);
  decodes(scene);
  prefills(scene);
  ends(scene);
  breaks(scene);
  axis(scene);
  if (!geometry.narrow) labels(scene);
  columnMark(scene, marks.pinned, true);
  columnMark(scene, marks.hover, false);
}

const middle = (geometry, seat) => TOP + seat * geometry.rowHeight + geometry.rowHeight / 2;

function tracks({ ctx, geometry, theme, rows }) {
  ctx.fillStyle = theme.colour.track;
  for (let seat = 0; seat < rows; seat++) {
    ctx.fillRect(geometry.left, Math.round(middle(geometry, seat)), geometry.end - geometry.left, 1);
  }
  ctx.fillStyle = theme.colour.muted;
  ctx.textAlign = "right";
  const every = geometry.rowHeight < 13 ? 4 : geometry.rowHeight < 17 ? 2 : 1;
  for (let seat = 0; seat < rows; seat += every) ctx.fillText(String(seat), geometry.left - 8, middle(geometry, seat) + 0.5);
}

function rowMark({ ctx, geometry, theme }, seat) {
  ctx.fillStyle = theme.colour.track;
  ctx.fillRect(geometry.left, TOP + seat * geometry.rowHeight, geometry.end - geometry.left, geometry.rowHeight);
}

/** Calls visit(cell, seat, x, column) for each held cell whose flags have one of `flags`. */
function eachCell({ tape, geometry, rows, until, first }, flags, visit) {
  const seats = Math.min(rows, tape.stride);
  for (let column = first; column < until; column++) {
    const x = columnX(geometry, column, until);
    const start = (column % tape.capacity) * tape.stride;
    for (let seat = 0; seat < seats; seat++) {
      if (tape.flags[start + seat] & flags) visit(start + seat, seat, x, column);
    }
  }
}

/** One path a colour: 64 rows of 200 columns are ten fills, not thirteen thousand. */
function decodes(scene) {
  const { ctx, tape, geometry, theme } = scene;
  const height = decodeHeight(geometry.rowHeight);
  const paths = theme.requests.map(() => new Path2D());
  const colours = coloursOf(tape);
  eachCell(scene, DECODE, (cell, seat, x) => {
    paths[colours(tape.request[cell])].rect(x, Math.round(middle(geometry, seat) - height / 2), geometry.pitch - 1, height);
  });
  paths.forEach((path, i) => {
    ctx.fillStyle = theme.requests[i];
    ctx.fill(path);
  });
}

function prefills(scene) {
  const { ctx, tape, geometry, theme } = scene;
  const fills = theme.requests.map(() => new Path2D());
  const colours = coloursOf(tape);
  eachCell(scene, PREFILL, (cell, seat, x, column) => {
    const height = prefillHeight(tape.tokens[cell], tape.budgetLimit[column % tape.capacity], geometry.rowHeight);
    const top = Math.round(middle(geometry, seat) - height / 2);
    fills[colours(tape.request[cell])].rect(x + 0.5, top + 0.5, geometry.pitch - 2, height - 1);
  });
  ctx.lineWidth = 1;
  fills.forEach((path, i) => {
    ctx.fillStyle = theme.hatches[i];
    ctx.fill(path);
    ctx.strokeStyle = theme.requests[i];
    ctx.stroke(path);
  });
}

function coloursOf(tape) {
  const known = new Map();
  return (number) => {
    let index = known.get(number);
    if (index === undefined) known.set(number, (index = colourIndex(tape.requestId(number))));
    return index;
  };
}

function ends(scene) {
  const { ctx, geometry, theme } = scene;
  ctx.fillStyle = theme.colour.text;
  eachCell(scene, FINISHED, (cell, seat, x) => {
    ctx.fillRect(x + geometry.pitch - 2, TOP + seat * geometry.rowHeight + 2, 2, geometry.rowHeight - 4);
  });
  ctx.strokeStyle = theme.colour.warn;
  ctx.lineWidth = 1.5;
  ctx.setLineDash([3, 2]);
  eachCell(scene, PREEMPTED, (cell, seat, x) => {
    const width = Math.max(geometry.pitch * 2, 14);
    ctx.strokeRect(x - 0.5, TOP + seat * geometry.rowHeight + 1.5, width, geometry.rowHeight - 3);
  });
  ctx.setLineDash([]);
}

/** Where time passed between two columns: the engine rested, was restarted, or frames did not arrive. */
function breaks({ ctx, tape, geometry, theme, rows, until, first, words }) {
  ctx.textAlign = "right";
  let free = -Infinity; // words must not lie over each other
  for (let column = first + 1; column < until; column++) {
    const c = column % tape.capacity;
    const p = (column - 1) % tape.capacity;
    const restarted = tape.epoch[c] !== tape.epoch[p];
    const missed = !restarted && tape.n[c] !== tape.n[p] + 1;
    const idle = restarted ? 0 : tape.t0[c] - tape.t0[p] - tape.spent(p);
    if (!restarted && !missed && idle < IDLE_MS) continue;
    const x = Math.round(columnX(geometry, column, until)) - 0.5;
    ctx.strokeStyle = restarted ? theme.colour.warn : theme.colour.muted;
    ctx.lineWidth = 1;
    ctx.setLineDash(restarted ? [] : [2, 3]);
    ctx.beginPath();
    ctx.moveTo(x, TOP - 4);
    ctx.lineTo(x, TOP + rows * geometry.rowHeight);
    ctx.stroke();
    ctx.setLineDash([]);
    const label = restarted ? words.restarted : idle >= IDLE_MS ? `${words.idle} ${duration(idle)}` : words.missed;
    const width = ctx.measureText(label).width;
    if (x - width < free + 8 || x - width < geometry.left) continue;
    ctx.fillStyle = theme.colour.muted;
    ctx.fillText(label, x - 4, TOP / 2);
    free = x;
  }
}

function axis({ ctx, tape, geometry, theme, rows, until, first }) {
  const every = Math.max(5, Math.ceil(LABEL_EVERY_PX / geometry.pitch / 10) * 10);
  const y = TOP + rows * geometry.rowHeight;
  ctx.textAlign = "center";
  for (let column = first; column < until; column++) {
    const n = tape.n[column % tape.capacity];
    if (n % every !== 0) continue;
    const x = columnX(geometry, column, until) + geometry.pitch / 2;
    ctx.fillStyle = theme.colour.line;
    ctx.fillRect(Math.round(x), y, 1, 5);
    if (x < geometry.left + 16 || x > geometry.end - 10) continue;
    ctx.fillStyle = theme.colour.muted;
    ctx.fillText(count(n), x, y + 13);
  }
}

/** Who sits where now, at the right edge: a swatch, the request, its context. */
function labels({ ctx, tape, geometry, theme, rows, until }) {
  if (until === 0) return;
  const start = ((until - 1) % tape.capacity) * tape.stride;
  for (let seat = 0; seat < Math.min(rows, tape.stride); seat++) {
    const flags = tape.flags[start + seat];
    if (!(flags & KIND) || flags & (FINISHED | PREEMPTED)) continue;
    const id = tape.requestId(tape.request[start + seat]);
    const y = middle(geometry, seat);
    ctx.fillStyle = theme.requests[colourIndex(id)];
    ctx.fillRect(geometry.end + 8, Math.round(y - 4), 8, 8);
    ctx.fillStyle = theme.colour.text;
    ctx.textAlign = "left";
    ctx.fillText(shortId(id), geometry.end + 21, y + 0.5);
    ctx.fillStyle = theme.colour.muted;
    ctx.textAlign = "right";
    ctx.fillText(count(tape.context[start + seat]), geometry.width - 4, y + 0.5);
  }
}

function columnMark({ ctx, geometry, theme, rows, until, first }, column, pinned) {
  if (column === null || column < first || column >= until) return;
  const x = columnX(geometry, column, until);
  ctx.strokeStyle = theme.colour.accent;
  ctx.lineWidth = pinned ? 2 : 1;
  ctx.strokeRect(x - 1, TOP - 3, geometry.pitch + 1, rows * geometry.rowHeight + 6);
}
