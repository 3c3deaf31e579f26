// The history an engine keeps, all its epochs end to end: an ordinal counts iterations from the oldest kept. Pure.

export class Timeline {
  constructor(epochs = []) {
    this.epochs = epochs.map(([epoch, first, last]) => ({ epoch, first, last }));
  }

  get total() {
    return this.epochs.reduce((sum, { first, last }) => sum + last - first + 1, 0);
  }

  /** Iteration (epoch, n) has been made: the history reaches to it. */
  extend(epoch, n) {
    const newest = this.epochs.at(-1);
    if (!newest || epoch > newest.epoch) this.epochs.push({ epoch, first: n, last: n });
    else if (epoch === newest.epoch && n > newest.last) newest.last = n;
  }

  /** The ordinal of (epoch, n), or of the nearest iteration that is kept. */
  ordinalOf(epoch, n) {
    let before = 0;
    for (const span of this.epochs) {
      if (epoch < span.epoch) return before;
      const size = span.last - span.first + 1;
      if (epoch === span.epoch) return before + Math.min(Math.max(n - span.first, 0), size - 1);
      before += size;
    }
    return Math.max(0, before - 1);
  }

  /** {epoch, n} at an ordinal (bounded to what is kept); null where nothing is. */
  at(ordinal) {
    let left = Math.min(Math.max(Math.round(ordinal), 0), this.total - 1);
    for (const { epoch, first, last } of this.epochs) {
      if (left <= last - first) return { epoch, n: first + left };
      left -= last - first + 1;
    }
    return null;
  }

  /** The pieces of one epoch each, oldest first, that cover ordinals `from` to `to` (both included, bounded). */
  pieces(from, to) {
    const found = [];
    let before = 0;
    for (const { epoch, first, last } of this.epochs) {
      const size = last - first + 1;
      const low = Math.max(from - before, 0);
      const high = Math.min(to - before, size - 1);
      if (low <= high) found.push({ epoch, first: first + low, last: first + high });
      before += size;
    }
    return found;
  }
}
