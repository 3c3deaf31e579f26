// Columns on a film of small canvases, which moves as a whole: a frame draws what is new on the newest canvases and shifts
// the film; the others are left as they are. Knows nothing of what a column shows.
import { columnX } from "./geometry.js";

const TILE_PX = 160;
const AGAIN = 2; // columns before the first new one are drawn again: an iteration may put a mark on the one before it
const FAR_PX = 1_000_000; // the film is never longer: a transform is no exact number any more

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

export class Film {
  /** `box`: an empty element; what it holds and where it lies is the film's. */
  constructor(box) {
    this.box = box;
    this.film = box.appendChild(document.createElement("div"));
    this.tiles = new Map(); // by number: {canvas, ctx, done: one more than the newest column on it}
    this.spare = [];
    this.key = "";
    this.tape = null;
    this.origin = 0; // the column at the film's left end
  }

  /** What was drawn no longer holds: the next `show` draws all of it. */
  spoil() {
    for (const tile of this.tiles.values()) tile.done = -Infinity;
  }

  /**
   * Brings it to `scene`. `paint(ctx, scene, from, to)` draws columns from..to-1 and the ground under them; `reach`: CSS
   * pixels by which what is drawn for a column may lie over those before it.
   */
  show(scene, height, paint, reach = 24) {
    const { tape, until, geometry } = scene;
    const { left, end, pitch, ratio, columns } = geometry;
    const per = Math.max(1, Math.floor(TILE_PX / pitch));
    const key = `${left} ${end} ${pitch} ${ratio} ${height}`;
    if (key !== this.key || tape !== this.tape || Math.abs(until - this.origin) * pitch > FAR_PX) this.#begin(scene, height, per);
    [this.key, this.tape] = [key, tape];
    const [first, last] = [Math.floor((until - columns) / per), Math.floor((until - 1) / per)];
    for (const number of this.tiles.keys()) if (number < first || number > last) this.#drop(number);
    for (let number = first; number <= last; number++) this.#bring(number, scene, height, paint, per, Math.max(AGAIN, Math.ceil(reach / pitch)));
    this.film.style.transform = `translateX(${end - left - (until - this.origin) * pitch}px)`;
  }

  #begin({ until, geometry }, height, per) {
    for (const number of this.tiles.keys()) this.#drop(number);
    this.origin = Math.floor(until / per) * per;
    Object.assign(this.box.style, { left: `${geometry.left}px`, width: `${geometry.end - geometry.left}px`, height: `${height}px` });
  }

  #drop(number) {
    const { canvas } = this.tiles.get(number);
    canvas.remove();
    this.spare.push(canvas);
    this.tiles.delete(number);
  }

  /** Columns start..start + per - 1 on their canvas; those after them reach over it with their marks. */
  #bring(number, scene, height, paint, per, reach) {
    const start = number * per;
    const tile = this.tiles.get(number) ?? this.#put(number, start, scene, height, per);
    const to = Math.min(scene.until, start + per + reach);
    if (tile.done >= to) return;
    const { geometry, theme } = scene;
    const own = { ...scene, geometry: { ...geometry, left: 0, end: per * geometry.pitch }, until: start + per };
    tile.ctx.setTransform(geometry.ratio, 0, 0, geometry.ratio, 0, 0);
    if (tile.done < start) {
      tile.ctx.fillStyle = theme.colour.surface;
      tile.ctx.fillRect(0, 0, own.geometry.end, height);
    }
    paint(tile.ctx, own, Math.max(start, tile.done - AGAIN), to);
    tile.done = to;
  }

  #put(number, start, { geometry }, height, per) {
    const canvas = this.spare.pop() ?? document.createElement("canvas");
    fit(canvas, per * geometry.pitch, height, geometry.ratio);
    canvas.style.left = `${(start - this.origin) * geometry.pitch}px`;
    this.film.append(canvas);
    const tile = { canvas, ctx: canvas.getContext("2d", { alpha: false }), done: -Infinity };
    this.tiles.set(number, tile);
    return tile;
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
