// What is read off a tape: rows for a table, rates, seats in use, a request's life. Pure.
import { FINISHED, IDLE, KEPT, KIND, PREEMPTED, PREFILL, SEATED } from "./ring.js";

/** The newest column, ring index, in which a request had a part; -1 if there is none. */
export function newestWithRows(tape) {
  for (let back = 0; back < tape.length; back++) if (tape.rows[tape.at(back)] > 0) return tape.at(back);
  return -1;
}

/** One more than the highest seat used in the newest `columns` columns. */
export function seatsUsed(tape, columns = tape.length) {
  let highest = 0;
  for (let back = Math.min(columns, tape.length) - 1; back >= 0; back--) {
    const start = tape.at(back) * tape.stride;
    for (let seat = tape.stride - 1; seat >= highest; seat--) {
      if (tape.flags[start + seat] & (SEATED | IDLE)) {
        highest = seat + 1;
        break;
      }
    }
  }
  return highest;
}

/** The rows of ring column c, as objects for a table; with `of` KEPT, those who only keep their seats in it. */
export function rowsOf(tape, c, of = KIND) {
  const rows = [];
  for (let seat = 0; seat < tape.stride; seat++) {
    const cell = c * tape.stride + seat;
    const flags = tape.flags[cell];
    if (!(flags & of)) continue;
    rows.push({
      seat,
      id: tape.requestId(tape.request[cell]),
      kept: (flags & KEPT) !== 0,
      prefill: (flags & PREFILL) !== 0,
      finished: (flags & FINISHED) !== 0,
      preempted: (flags & PREEMPTED) !== 0,
      tokens: tape.tokens[cell],
      context: tape.context[cell],
      blocks: tape.blocks[cell],
      drafted: tape.drafted[cell],
      accepted: tape.taken[cell],
    });
  }
  return rows;
}

/** Tokens per second over the newest `windowMs` of the engine's own clock: {decode, prefill}. Drafts count if right. */
export function rates(tape, windowMs = 3000) {
  const last = tape.newest();
  if (last < 0) return { decode: 0, prefill: 0 };
  const end = tape.t0[last] + tape.spent(last);
  let [decode, prefill, start] = [0, 0, end];
  for (let back = 0; back < tape.length; back++) {
    const c = tape.at(back);
    if (end - tape.t0[c] > windowMs || tape.epoch[c] !== tape.epoch[last]) break;
    decode += tape.decodeTokens[c] + tape.accepted[c];
    prefill += tape.prefillTokens[c];
    start = tape.t0[c];
  }
  const seconds = Math.max(end - start, 1) / 1000;
  return { decode: decode / seconds, prefill: prefill / seconds };
}

/** The cell of request `number` in ring column c; -1 if it has no part in it (with `of` SEATED: no seat either). */
export function cellOf(tape, c, number, of = KIND) {
  for (let cell = c * tape.stride; cell < (c + 1) * tape.stride; cell++) {
    if (tape.flags[cell] & of && tape.request[cell] === number) return cell;
  }
  return -1;
}
