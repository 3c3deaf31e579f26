// Draws the KV map: a cell a block, or for several thousand more than fit a cell for a few of them.
import { CACHED, FREE, NOBODY, SHARED } from "./blocks.js";
import { fit } from "./film.js";

const LEAST_PX = 4;
const MOST_PX = 14;

/** How `total` blocks lie in a box `width` wide and about `height` high: {cell, columns, rows, per} (blocks a cell). Pure. */
export function gridOf(total, width, height) {
  if (total === 0) return { cell: 0, columns: 1, rows: 0, per: 1 };
  const most = Math.max(1, Math.floor(width / LEAST_PX) * Math.floor(height / LEAST_PX));
  const per = Math.ceil(total / most);
  const cells = Math.ceil(total / per);
  let cell = Math.min(MOST_PX, Math.max(LEAST_PX, Math.floor(Math.sqrt((width * height) / cells))));
  while (cell > LEAST_PX && Math.ceil(cells / Math.floor(width / cell)) * cell > height) cell -= 1;
  const columns = Math.max(1, Math.floor(width / cell));
  return { cell, columns, rows: Math.ceil(cells / columns), per };
}

/** The first block of the cell under (x, y); -1 beside them. */
export function blockAt({ cell, columns, per }, x, y, total) {
  const column = Math.floor(x / cell);
  if (cell === 0 || x < 0 || y < 0 || column >= columns) return -1;
  const block = (Math.floor(y / cell) * columns + column) * per;
  return block < total ? block : -1;
}

/** The block that stands for a cell: the one with the most references, else one that is cached. */
export function strongest(map, first, per) {
  let best = first;
  for (let block = first + 1; block < Math.min(first + per, map.total); block++) {
    const more = map.references[block] - map.references[best] || map.cached[block] - map.cached[best];
    if (more > 0) best = block;
  }
  return best;
}

export class KVCanvas {
  constructor(canvas) {
    this.canvas = canvas;
    this.ctx = canvas.getContext("2d", { alpha: false });
    this.key = "";
    this.map = null;
  }

  /** marks: {changed: Set of blocks, spot: request id or null, block: a block or -1}. */
  show(map, theme, width, height, ratio, marks) {
    const key = `${width} ${height} ${ratio} ${marks.spot} ${marks.block} ${marks.key}`;
    const changed = map.takeDirty();
    const all = changed === null || this.map !== map || this.key !== key || this.theme !== theme;
    [this.map, this.key, this.theme] = [map, key, theme];
    this.grid = gridOf(map.total, width, height);
    const { cell, rows, per } = this.grid;
    if (fit(this.canvas, width, Math.max(1, rows * cell), ratio) || all) {
      this.ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
      this.ctx.fillStyle = theme.colour.surface;
      this.ctx.fillRect(0, 0, width, rows * cell);
      for (let first = 0; first < map.total; first += per) this.#cell(first, marks);
    } else {
      for (const block of changed) this.#cell(block - (block % per), marks);
    }
  }

  #cell(first, marks) {
    const { ctx, map, theme, grid } = this;
    const { cell, columns, per } = grid;
    const place = first / per;
    const [x, y] = [(place % columns) * cell, Math.floor(place / columns) * cell];
    const gap = cell >= 5 ? 1 : cell >= 3 ? 0.5 : 0;
    const size = cell - gap;
    const block = per === 1 ? first : strongest(map, first, per);
    const state = map.stateOf(block);
    ctx.fillStyle = theme.colour.surface;
    ctx.fillRect(x, y, cell, cell);
    const faded = marks.spot !== null && state !== FREE && map.ownerOf(block) !== marks.spot;
    ctx.globalAlpha = faded ? 0.3 : 1;
    const colour = map.colour[block];
    if (state === FREE) ctx.fillStyle = theme.colour["kv-free"];
    else if (state === CACHED) ctx.fillStyle = theme.cachedBlock;
    else ctx.fillStyle = colour === NOBODY ? theme.colour.muted : theme.requests[colour];
    ctx.fillRect(x, y, size, size);
    if (state === SHARED) ring(ctx, theme.colour.text, x, y, size, cell >= 6 ? 1.5 : 1);
    ctx.globalAlpha = 1;
    if (marks.changed.has(block)) ring(ctx, theme.colour.accent, x, y, size, cell >= 6 ? 2 : 1.5);
    if (marks.block === first) ring(ctx, theme.colour.text, x, y, size, 2);
  }
}

function ring(ctx, colour, x, y, size, width) {
  ctx.strokeStyle = colour;
  ctx.lineWidth = width;
  ctx.strokeRect(x + width / 2, y + width / 2, size - width, size - width);
}
