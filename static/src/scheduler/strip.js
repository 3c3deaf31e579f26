// A canvas of columns that scrolls by copying itself: what is new at the right edge is drawn, the rest is moved.
// Knows nothing of what a column shows.
import { columnX } from "./geometry.js";

const AGAIN = 2; // newest columns drawn once more: an iteration may put a mark on the one before it

/** Sets a canvas to width x height CSS pixels at `ratio`. True if it was another size before (and so is blank now). */
export function fit(canvas, width, height, ratio) {
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width === w && canvas.height === h) return false;
  canvas.width = w;
  canvas.height = h;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  return true;
}

export class Strip {
  constructor(canvas) {
    this.canvas = canvas;
    this.ctx = canvas.getContext("2d", { alpha: false });
    this.tape = null;
    this.until = -1;
  }

  /** What was drawn no longer holds: the next `show` draws all of it. */
  spoil() {
    this.until = -1;
  }

  /** Brings it to `scene`. `paint(ctx, scene, from, to)` draws columns from..to-1 and the ground under them. */
  show(scene, height, paint) {
    const { tape, until, geometry, theme } = scene;
    const { ratio } = geometry;
    const { ctx } = this;
    if (fit(this.canvas, geometry.width, height, ratio) || this.tape !== tape) this.spoil();
    const moved = until - this.until;
    if (this.until < 0 || moved < 0 || moved >= geometry.columns) {
      ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
      ctx.fillStyle = theme.colour.surface;
      ctx.fillRect(0, 0, geometry.width, height);
      paint(ctx, scene, until - geometry.columns, until);
    } else if (moved > 0) {
      this.#shift(moved, geometry);
      paint(ctx, scene, Math.max(until - geometry.columns, this.until - AGAIN), until);
    }
    this.tape = tape;
    this.until = until;
  }

  #shift(moved, geometry) {
    const { ctx, canvas } = this;
    const { ratio } = geometry;
    const left = Math.round(geometry.left * ratio);
    const by = Math.round(moved * geometry.pitch * ratio);
    const width = Math.round((geometry.end - geometry.left) * ratio) - by;
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.drawImage(canvas, left + by, 0, width, canvas.height, left, 0, width, canvas.height);
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  }
}

/** Clears columns from..to-1 to the ground colour; returns [x, width] of them. */
export function ground(ctx, { geometry, theme, until }, from, to, top, height) {
  const x = columnX(geometry, from, until);
  const width = (to - from) * geometry.pitch;
  ctx.fillStyle = theme.colour.surface;
  ctx.fillRect(x, top, width, height);
  return [x, width];
}
