// The newest iterations as columns of numbers: a ring buffer of typed arrays, no object per row. Pure.
//
// Column c of the ring holds one iteration; cell (c, seat) holds what that seat did in it. Request ids are interned to
// small integers. What is drawn reads these arrays and nothing else.

export const EMPTY = 0;
export const PREFILL = 1;
export const DECODE = 2;
export const FINISHED = 4;
export const PREEMPTED = 8;
export const KIND = PREFILL | DECODE;

const COLUMNS = [
  "n", "epoch", "startedAt", "t0", "schedule", "forward", "sample", "commit", "waiting", "rows",
  "prefillRows", "prefillTokens", "decodeTokens", "kvFree", "kvCached", "kvUsed", "kvTotal", "budgetUsed", "budgetLimit", "seats",
]; // prettier-ignore
const CELLS = { request: Int32Array, tokens: Int32Array, context: Int32Array, blocks: Int32Array, flags: Uint8Array };
const SEATS_AT_START = 16;

export class Tape {
  constructor(capacity = 1024) {
    this.capacity = capacity;
    this.clear();
  }

  clear() {
    this.length = 0; // columns filled, at most `capacity`
    this.total = 0; // columns ever written
    this.stride = SEATS_AT_START;
    for (const name of COLUMNS) this[name] = new Float64Array(this.capacity);
    for (const [name, Kind] of Object.entries(CELLS)) this[name] = new Kind(this.capacity * this.stride);
    this.policies = new Array(this.capacity).fill("");
    this.ids = [];
    this.numberOf = new Map();
  }

  /** Ring index of the column `back` columns before the newest (0 = the newest). */
  at(back) {
    return (this.total - 1 - back) % this.capacity;
  }

  newest() {
    return this.length ? this.at(0) : -1;
  }

  /** The newest column in which a request had a part; -1 if there is none. */
  newestWithRows() {
    for (let back = 0; back < this.length; back++) if (this.rows[this.at(back)] > 0) return this.at(back);
    return -1;
  }

  requestId(number) {
    return this.ids[number];
  }

  /** True if (epoch, n) comes after everything held: duplicates and late frames are refused. */
  isNews(record) {
    const last = this.newest();
    if (last < 0) return true;
    return record.epoch > this.epoch[last] || (record.epoch === this.epoch[last] && record.n > this.n[last]);
  }

  /** Adds an iteration record. False if it is not newer than what is held. */
  push(record) {
    if (!this.isNews(record)) return false;
    const highest = record.rows.reduce((most, row) => Math.max(most, row.seat), 0);
    if (highest >= this.stride) this.#widen(highest + 1);
    if (this.ids.length > 16 * this.capacity) this.#forgetIds();
    const before = this.newest();
    const c = this.total % this.capacity;
    this.total += 1;
    this.length = Math.min(this.length + 1, this.capacity);
    this.flags.fill(EMPTY, c * this.stride, (c + 1) * this.stride);
    this.#writeColumn(c, record);
    for (const row of record.rows) this.#writeCell(c, row);
    for (const end of record.finished) this.#markFinished(c, before, end);
    for (const id of record.preempted) this.#mark(c, before, id, PREEMPTED);
    return true;
  }

  #writeColumn(c, record) {
    const { kv, budget } = record;
    this.n[c] = record.n;
    this.epoch[c] = record.epoch;
    this.startedAt[c] = record.started_at;
    this.t0[c] = record.t0;
    for (const phase of ["schedule", "forward", "sample", "commit"]) this[phase][c] = record[phase];
    this.waiting[c] = record.waiting_total ?? record.waiting.length;
    this.rows[c] = record.rows.length;
    this.prefillRows[c] = this.prefillTokens[c] = this.decodeTokens[c] = 0;
    this.kvFree[c] = kv.free;
    this.kvCached[c] = kv.cached;
    this.kvUsed[c] = kv.used;
    this.kvTotal[c] = kv.total;
    this.budgetUsed[c] = budget.used;
    this.budgetLimit[c] = budget.limit;
    this.seats[c] = record.seats ?? 0;
    this.policies[c] = record.policy;
  }

  #writeCell(c, row) {
    const cell = c * this.stride + row.seat;
    const prefill = row.kind === "prefill";
    this.request[cell] = this.#intern(row.request_id);
    this.tokens[cell] = row.tokens;
    this.context[cell] = row.context;
    this.blocks[cell] = row.blocks;
    this.flags[cell] = prefill ? PREFILL : DECODE;
    if (prefill) {
      this.prefillRows[c] += 1;
      this.prefillTokens[c] += row.tokens;
    } else {
      this.decodeTokens[c] += row.tokens;
    }
  }

  #markFinished(c, before, { request_id: id }) {
    this.#mark(c, before, id, FINISHED);
  }

  /** Marks the cell of a request in this column, or in the one before if it had no part in this one. */
  #mark(c, before, id, flag) {
    const number = this.numberOf.get(id);
    if (number === undefined) return;
    for (const column of before < 0 ? [c] : [c, before]) {
      for (let cell = column * this.stride; cell < (column + 1) * this.stride; cell++) {
        if (this.flags[cell] & KIND && this.request[cell] === number) {
          this.flags[cell] |= flag;
          return;
        }
      }
    }
  }

  #intern(id) {
    let number = this.numberOf.get(id);
    if (number === undefined) {
      number = this.ids.push(id) - 1;
      this.numberOf.set(id, number);
    }
    return number;
  }

  /** Keeps only the ids that a held cell still names. */
  #forgetIds() {
    const ids = this.ids;
    this.ids = [];
    this.numberOf = new Map();
    for (let cell = 0; cell < this.flags.length; cell++) {
      if (this.flags[cell] & KIND) this.request[cell] = this.#intern(ids[this.request[cell]]);
    }
  }

  #widen(seats) {
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

  /** Milliseconds an iteration took, all phases. */
  spent(c) {
    return this.schedule[c] + this.forward[c] + this.sample[c] + this.commit[c];
  }

  /** One more than the highest seat used in the newest `columns` columns. */
  seatsUsed(columns) {
    let highest = 0;
    for (let back = Math.min(columns, this.length) - 1; back >= 0; back--) {
      const start = this.at(back) * this.stride;
      for (let seat = this.stride - 1; seat >= highest; seat--) {
        if (this.flags[start + seat] & KIND) {
          highest = seat + 1;
          break;
        }
      }
    }
    return highest;
  }

  /** The rows of column c, as objects for a table. */
  rowsOf(c) {
    const rows = [];
    for (let seat = 0; seat < this.stride; seat++) {
      const cell = c * this.stride + seat;
      const flags = this.flags[cell];
      if (!(flags & KIND)) continue;
      rows.push({
        seat,
        id: this.requestId(this.request[cell]),
        prefill: (flags & PREFILL) !== 0,
        finished: (flags & FINISHED) !== 0,
        preempted: (flags & PREEMPTED) !== 0,
        tokens: this.tokens[cell],
        context: this.context[cell],
        blocks: this.blocks[cell],
      });
    }
    return rows;
  }

  /** Tokens per second over the newest `windowMs` of the engine's own clock: {decode, prefill}. */
  rates(windowMs = 3000) {
    const last = this.newest();
    if (last < 0) return { decode: 0, prefill: 0 };
    const end = this.t0[last] + this.spent(last);
    let [decode, prefill, start] = [0, 0, end];
    for (let back = 0; back < this.length; back++) {
      const c = this.at(back);
      if (end - this.t0[c] > windowMs || this.epoch[c] !== this.epoch[last]) break;
      decode += this.decodeTokens[c];
      prefill += this.prefillTokens[c];
      start = this.t0[c];
    }
    const seconds = Math.max(end - start, 1) / 1000;
    return { decode: decode / seconds, prefill: prefill / seconds };
  }
}
