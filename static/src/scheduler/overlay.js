// What lies over the columns while somebody points or chooses: the iteration, and everything else dimmed around a request.
// Knows the tape and the charts; where nothing is pointed at there is nothing to draw, and the canvas is not shown.
import { CHARTS, floorOf, PLOT } from "./charts.js";
import { paintCell, TOP } from "./draw.js";
import { columnX } from "./geometry.js";
import { SEATED } from "./ring.js";

/** `marks`: {hover, pinned} absolute columns or null, `seat` or null, `spot` a request id or null. */
export function drawTapeMarks(ctx, scene) {
  const { geometry, rows, marks } = scene;
  if (marks.spot !== null) spot(ctx, scene);
  frame(ctx, scene, marks.pinned, TOP - 3, rows * geometry.rowHeight + 6, 2);
  frame(ctx, scene, marks.hover, TOP - 3, rows * geometry.rowHeight + 6, 1);
}

export function drawChartMarks(ctx, scene) {
  CHARTS.forEach((_, i) => {
    frame(ctx, scene, scene.marks.pinned, floorOf(i) - PLOT - 2, PLOT + 3, 2);
    frame(ctx, scene, scene.marks.hover, floorOf(i) - PLOT - 2, PLOT + 3, 1);
  });
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
      if (!(tape.flags[start + seat] & SEATED) || tape.request[start + seat] !== number) continue;
      paintCell(ctx, scene, start + seat, seat, column, columnX(geometry, column, until), geometry.pitch);
      break;
    }
  }
}

function frame(ctx, { geometry, theme, until }, column, top, height, width) {
  if (column === null || column < until - geometry.columns || column >= until) return;
  ctx.strokeStyle = theme.colour.accent;
  ctx.lineWidth = width;
  ctx.strokeRect(columnX(geometry, column, until) - 1, top, geometry.pitch + 1, height);
}
