// Iteration records become columns of a ring. Pure. Request ids are interned to small integers; lists that only the
// inspector reads (who waits, which KV blocks changed) stay as they came, in `extras`.
import { colourIndex } from "../lib/colours.js";
import { DECODE, EMPTY, FINISHED, IDLE, KEPT, KIND, PREEMPTED, PREFILL, Ring, SEATED } from "./ring.js";

/** What lies between a column and the one before it. `still`: somebody was there, and nothing was computed: paused, slow, stuck. */
export const GAP = { none: 0, idle: 1, missed: 2, restarted: 3, still: 4 };
const IDLE_MS = 1000;
const MEMORY_OF_HITS = 0.97; // of what the hit rate remembers, kept from one iteration with a prefill to the next
const MOST_LOST = 1024;

export class Tape extends Ring {
  constructor(capacity = 1024) {
    super(capacity);
    this.ids = [];
    this.numberOf = new Map();
    this.waitingSince = new Map();
    this.lost = new Map(); // by request that was preempted: tokens it had computed
    this.seated = []; // rows of those who had a seat before the first record, where it is known
    this.found = this.lookedUp = 0; // prompt tokens found in the prefix cache, of those looked up, lately
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
    const idle = record.idle ?? [];
    const highest = record.rows.reduce((most, row) => Math.max(most, row.seat), Math.max(0, ...idle));
    if (highest >= this.stride) this.widen(highest + 1);
    if (this.ids.length > 16 * this.capacity) this.#forgetIds();
    const before = this.newest();
    const c = this.total % this.capacity;
    this.total += 1;
    this.length = Math.min(this.length + 1, this.capacity);
    this.flags.fill(EMPTY, c * this.stride, (c + 1) * this.stride);
    this.#writeColumn(c, record);
    this.#writeGap(c, before);
    for (const seat of idle) this.flags[c * this.stride + seat] = IDLE;
    // A request not seen yet is a new one only where no iteration is missing before this.
    const whole = before < 0 ? record.n <= 1 : this.gap[c] !== GAP.missed;
    for (const row of record.rows) this.#writeCell(c, row, whole);
    if (this.lost.size) for (const row of record.rows) this.lost.delete(row.request_id);
    this.hitRate[c] = this.lookedUp > 0 ? this.found / this.lookedUp : Number.NaN;
    for (const end of record.finished) this.#mark(c, before, end.request_id, FINISHED);
    for (const id of record.preempted) this.#lose(id, this.#mark(c, before, id, PREEMPTED));
    if (record.rows.length === 0) this.#keepSeats(c, before);
    this.extras[c] = this.#extrasOf(record);
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
    for (const sum of ["prefillRows", "prefillTokens", "decodeTokens", "accepted", "rejected", "padTo", "kept"]) this[sum][c] = 0;
    this.padding[c] = record.padding ?? 0;
    this.idle[c] = record.idle?.length ?? 0;
    this.kvFree[c] = kv.free;
    this.kvCached[c] = kv.cached;
    this.kvUsed[c] = kv.used;
    this.kvTotal[c] = kv.total;
    this.budgetUsed[c] = budget.used;
    this.budgetLimit[c] = budget.limit;
    this.seats[c] = record.seats ?? 0;
    this.policies[c] = record.policy;
    if (record.rows.some((row) => row.kind === "prefill")) {
      this.found *= MEMORY_OF_HITS;
      this.lookedUp *= MEMORY_OF_HITS;
    }
  }

  #writeGap(c, before) {
    this.gap[c] = GAP.none;
    this.gapMs[c] = 0;
    if (before < 0) return;
    if (this.epoch[c] !== this.epoch[before]) {
      this.gap[c] = GAP.restarted;
      this.lost.clear();
      return;
    }
    this.gapMs[c] = this.t0[c] - this.t0[before] - this.spent(before);
    if (this.n[c] !== this.n[before] + 1) this.gap[c] = GAP.missed;
    else if (this.gapMs[c] >= IDLE_MS) this.gap[c] = this.#leftSomebody(before) ? GAP.still : GAP.idle;
  }

  /** Whether somebody still had a seat or waited after column c. */
  #leftSomebody(c) {
    if (this.waiting[c] > 0) return true;
    for (let cell = c * this.stride; cell < (c + 1) * this.stride; cell++) {
      if (this.flags[cell] & SEATED && !(this.flags[cell] & (FINISHED | PREEMPTED))) return true;
    }
    return false;
  }

  #writeCell(c, row, whole) {
    const cell = c * this.stride + row.seat;
    const isNew = whole && !this.numberOf.has(row.request_id);
    this.request[cell] = this.#intern(row.request_id);
    this.colour[cell] = colourIndex(row.request_id);
    this.tokens[cell] = row.tokens;
    this.context[cell] = row.context;
    this.blocks[cell] = row.blocks;
    this.drafted[cell] = row.drafted ?? 0;
    this.taken[cell] = row.accepted ?? 0;
    if (row.kind === "prefill") this.#countPrefill(c, cell, isNew);
    else this.#countDecode(c, cell);
  }

  #countPrefill(c, cell, isNew) {
    const tokens = this.tokens[cell];
    this.flags[cell] = PREFILL;
    this.prefillRows[c] += 1;
    this.prefillTokens[c] += tokens;
    if (this.padding[c] > 0) this.padTo[c] = Math.max(this.padTo[c], tokens);
    const cached = isNew ? this.context[cell] - tokens : 0;
    this.found += cached;
    this.lookedUp += cached + tokens;
  }

  #countDecode(c, cell) {
    this.flags[cell] = DECODE;
    this.decodeTokens[c] += this.tokens[cell] - this.drafted[cell];
    this.accepted[c] += this.taken[cell];
    this.rejected[c] += this.drafted[cell] - this.taken[cell];
  }

  /** Who waits, and since when by the engine's clock, and what else is kept as it came. */
  #extrasOf({ waiting, preempted, finished, blocks, t0 }) {
    const since = new Map();
    for (const { request_id: id, since: came } of waiting) since.set(id, came ?? this.waitingSince.get(id) ?? t0);
    this.waitingSince = since;
    if (this.lost.size) for (const { request_id: id } of finished) this.lost.delete(id);
    const lost = this.lost.size ? new Map(this.lost) : null;
    return { waiting, since, lost, preempted, finished, blocks: blocks ?? null };
  }

  /** Marks the cell of a request in this column, or in the one before if it had no part in this one: that cell, or -1. */
  #mark(c, before, id, flag) {
    const number = this.numberOf.get(id);
    if (number === undefined) return -1;
    for (const column of before < 0 ? [c] : [c, before]) {
      for (let cell = column * this.stride; cell < (column + 1) * this.stride; cell++) {
        if (this.flags[cell] & SEATED && this.request[cell] === number) {
          this.flags[cell] |= flag;
          return cell;
        }
      }
    }
    return -1;
  }

  /** What a preempted request had computed is told beside its place in the queue, until it runs again. */
  #lose(id, cell) {
    if (this.lost.size >= MOST_LOST) this.lost.clear(); // the records that told of their ends were missed
    if (cell >= 0) this.lost.set(id, this.context[cell]);
  }

  /** An iteration without rows: whoever had a seat before it and did not leave has it still. */
  #keepSeats(c, before) {
    if (before < 0) {
      for (const row of this.seated) this.#keep(c, row.seat, { ...row, request: this.#intern(row.request_id), colour: colourIndex(row.request_id) });
      return;
    }
    if (this.gap[c] === GAP.missed || this.gap[c] === GAP.restarted) return;
    for (let seat = 0; seat < this.stride; seat++) {
      const cell = before * this.stride + seat;
      if (!(this.flags[cell] & SEATED) || this.flags[cell] & (FINISHED | PREEMPTED)) continue;
      this.#keep(c, seat, { request: this.request[cell], colour: this.colour[cell], context: this.context[cell], blocks: this.blocks[cell] });
    }
  }

  #keep(c, seat, { request, colour, context, blocks }) {
    if (seat >= this.stride) this.widen(seat + 1);
    const cell = c * this.stride + seat;
    this.flags[cell] = KEPT;
    this.request[cell] = request;
    this.colour[cell] = colour;
    this.context[cell] = context;
    this.blocks[cell] = blocks;
    this.tokens[cell] = this.drafted[cell] = this.taken[cell] = 0;
    this.kept[c] += 1;
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
      if (this.flags[cell] & SEATED) this.request[cell] = this.#intern(ids[this.request[cell]]);
    }
  }
}

/** A tape of records that came as a list: a span of kept history. */
export function tapeOf(records) {
  const tape = new Tape(Math.max(1, records.length));
  for (const record of records) tape.push(record);
  return tape;
}
