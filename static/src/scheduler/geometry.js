// Where columns and rows lie, for the tape and the charts under it: they share one time axis. Pure.

const NARROW_PX = 560;
/** Width of a column in CSS pixels, by zoom level. */
export const PITCHES = [1, 2, 3, 4, 6, 8, 12, 18, 28];
export const zoomAtStart = (width) => (width < NARROW_PX ? 4 : 5);
export const clampZoom = (level) => Math.min(Math.max(level, 0), PITCHES.length - 1);

const WIDE_PX = 1200;

const heightOf = (seats, width) => {
  if (seats <= 16) return width < NARROW_PX ? 18 : 22;
  if (seats <= 32) return 15;
  if (seats <= 48) return 12;
  if (seats <= 96) return width < WIDE_PX ? 9 : 12;
  return seats <= 192 ? 5 : 3;
};

/** Geometry for a box of `width` CSS pixels, for a tape of `seats` rows; edges lie on device pixels at `ratio`. isBare: without room for names. */
export function layout(width, seats, zoom = zoomAtStart(width), ratio = 1, isBare = false) {
  const narrow = width < NARROW_PX;
  const left = isBare ? 0 : Math.round((narrow ? 28 : 34) * ratio) / ratio;
  const right = isBare ? 0 : narrow ? 6 : 124;
  const pitch = Math.max(1, Math.round(PITCHES[zoom] * ratio)) / ratio;
  const gap = pitch >= 4 ? 1 : 0;
  const columns = Math.max(1, Math.floor((width - left - right) / pitch));
  return { width, narrow, left, right, pitch, gap, columns, rowHeight: heightOf(seats, width), end: left + columns * pitch, ratio };
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
  const tallest = Math.max(1, rowHeight - (rowHeight > 6 ? 3 : 1));
  const share = Math.sqrt(Math.min(1, tokens / Math.max(1, limit)));
  return Math.min(tallest, Math.max(6, Math.round(tallest * (0.35 + 0.65 * share))));
}

export const decodeHeight = (rowHeight) => (rowHeight >= 20 ? 5 : rowHeight >= 12 ? 3 : rowHeight >= 6 ? 2 : 1);

const FAR_BEHIND = 24;

/** How many columns to go forward in this frame: evenly where a few are due, all at once when it has fallen behind. */
export const pace = (due) => (due > FAR_BEHIND ? due : Math.ceil(due / 3));
