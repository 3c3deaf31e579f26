// Where columns and rows lie, for the tape and the charts under it: they share one time axis. Pure.

const NARROW_PX = 560;

/** Geometry for a box of `width` CSS pixels, for a tape of `seats` rows. */
export function layout(width, seats) {
  const narrow = width < NARROW_PX;
  const left = narrow ? 28 : 34;
  const right = narrow ? 6 : 112;
  const pitch = narrow ? 6 : width < 1100 ? 7 : 8;
  const rowHeight = seats <= 16 ? 22 : seats <= 32 ? 17 : seats <= 48 ? 14 : narrow ? 10 : 12;
  const columns = Math.max(1, Math.floor((width - left - right) / pitch));
  return { width, narrow, left, right, pitch, columns, rowHeight, end: left + columns * pitch };
}

/** How many rows to show: those that were used, at least `least`, at most what there are. */
export function rowsToShow(used, seats, least = 8) {
  const all = seats > 0 ? seats : Math.max(used, least);
  return Math.min(all, Math.max(used, Math.min(least, all)));
}

/** Left edge of the column with absolute number `column`, when the newest shown is `until - 1`. */
export const columnX = (geometry, column, until) => geometry.end - (until - column) * geometry.pitch;

/** The absolute column under x, or null outside of what is held. */
export function columnAt(geometry, x, until, oldest) {
  if (x < geometry.left || x >= geometry.end) return null;
  const column = until - Math.ceil((geometry.end - x) / geometry.pitch);
  return column >= Math.max(oldest, 0) && column < until ? column : null;
}

/** Height of a prefill block: grows with the chunk (square root, so that small chunks stay visible). */
export function prefillHeight(tokens, limit, rowHeight) {
  const tallest = rowHeight - 3;
  const share = Math.sqrt(Math.min(1, tokens / Math.max(1, limit)));
  return Math.max(6, Math.round(tallest * (0.35 + 0.65 * share)));
}

export const decodeHeight = (rowHeight) => (rowHeight >= 20 ? 4 : rowHeight >= 13 ? 3 : 2);
