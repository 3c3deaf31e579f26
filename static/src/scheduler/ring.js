// Iterations as columns of numbers: a ring buffer of typed arrays, no object per row. Pure.
//
// Column c of the ring holds one iteration; cell (c, seat) holds what that seat did in it. Knows where things lie and
// how to find them; how a record becomes a column is in tape.js.

export const EMPTY = 0;
export const PREFILL = 1;
export const DECODE = 2;
export const FINISHED = 4;
export const PREEMPTED = 8;
export const IDLE = 16; // its request has ended, its batch still holds the seat
export const KEPT = 32; // its request keeps the seat while the engine, paused, computes nothing
export const KIND = PREFILL | DECODE;
export const SEATED = KIND | KEPT;

const COLUMNS = [
  "n", "epoch", "startedAt", "t0", "schedule", "forward", "sample", "commit", "waiting", "rows", "prefillRows",
  "prefillTokens", "decodeTokens", "accepted", "rejected", "padding", "padTo", "idle", "kept", "hitRate",
  "kvFree", "kvCached", "kvUsed", "kvTotal", "budgetUsed", "budgetLimit", "seats", "gap", "gapMs",
]; // prettier-ignore
const CELLS = {
  request: Int32Array, tokens: Int32Array, context: Int32Array, blocks: Int32Array,
  flags: Uint8Array, colour: Uint8Array, drafted: Uint8Array, taken: Uint8Array,
}; // prettier-ignore
const SEATS_AT_START = 16;

export class Ring {
  constructor(capacity) {
    this.capacity = capacity;
    this.length = 0; // columns filled, at most `capacity`
    this.total = 0; // columns ever written
    this.stride = SEATS_AT_START;
    for (const name of COLUMNS) this[name] = new Float64Array(capacity);
    for (const [name, Kind] of Object.entries(CELLS)) this[name] = new Kind(capacity * this.stride);
    this.policies = new Array(capacity).fill("");
    this.extras = new Array(capacity).fill(null);
  }

  /** Absolute number of the oldest column held. */
  get oldest() {
    return this.total - this.length;
  }

  holds(column) {
    return column >= this.oldest && column < this.total;
  }

  /** Ring index of the column `back` columns before the newest (0 = the newest). */
  at(back) {
    return (this.total - 1 - back) % this.capacity;
  }

  newest() {
    return this.length ? this.at(0) : -1;
  }

  /** Milliseconds an iteration took, all phases. */
  spent(c) {
    return this.schedule[c] + this.forward[c] + this.sample[c] + this.commit[c];
  }

  /** Absolute number of the column of iteration (epoch, n), or of the first one after it; `total` if there is none. */
  columnAfter(epoch, n) {
    let [low, high] = [this.oldest, this.total];
    while (low < high) {
      const middle = Math.floor((low + high) / 2);
      const c = middle % this.capacity;
      if (this.epoch[c] < epoch || (this.epoch[c] === epoch && this.n[c] < n)) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Absolute number of the column of iteration (epoch, n); -1 if it is not held. */
  columnOf(epoch, n) {
    const column = this.columnAfter(epoch, n);
    const c = column % this.capacity;
    return column < this.total && this.epoch[c] === epoch && this.n[c] === n ? column : -1;
  }

  /** Makes room for `seats` seats, and keeps what is held. */
  widen(seats) {
    const stride = Math.max(seats, this.stride * 2);
    for (const [name, Kind] of Object.entries(CELLS)) {
      const wide = new Kind(this.capacity * stride);
      for (let c = 0; c < this.capacity; c++) {
        wide.set(this[name].subarray(c * this.stride, (c + 1) * this.stride), c * stride);
      }
      this[name] = wide;
    }
    this.stride = stride;
  }
}
