// A request's life as a tape tells it, and whose work its tokens waited on. Pure.
import { DECODE, FINISHED, KEPT, PREFILL, SEATED } from "./ring.js";
import { cellOf } from "./readings.js";

/**
 * {segments, answered, computed (tokens), ended} of request `id`; null where the tape does not know it. A segment is a stretch of
 * one state: {kind: "prefill" | "decode" | "kept" | "waiting" | "out", reason, ms, first: [epoch, n], last: [epoch, n]}; "kept" is
 * time with a seat in which a paused engine computed nothing, "out" is time without one after it once had one (preempted, the
 * engine restarted).
 */
export function lifeOf(tape, id) {
  const number = tape.numberOf.get(id) ?? -1;
  const life = { segments: [], answered: 0, computed: 0, ended: false };
  let wasIn = false;
  for (let column = tape.oldest; column < tape.total && !life.ended; column++) {
    const c = column % tape.capacity;
    const cell = number < 0 ? -1 : cellOf(tape, c, number, SEATED);
    if (cell < 0 && tape.extras[c].finished.some((end) => end.request_id === id)) {
      life.ended = true; // without a part in this iteration: cancelled, mostly
      break;
    }
    const waits = cell < 0 ? tape.extras[c].waiting.find((item) => item.request_id === id) : undefined;
    if (cell < 0 && !waits && !wasIn) continue;
    const flags = cell < 0 ? 0 : tape.flags[cell];
    const kind = cell >= 0 ? workOf(flags) : wasIn ? "out" : "waiting";
    extend(life.segments, tape, column, kind, waits?.reason ?? "");
    if (cell < 0) continue;
    wasIn = true;
    life.computed += flags & PREFILL ? tape.tokens[cell] : 0;
    life.answered += flags & DECODE ? 1 + tape.taken[cell] : 0;
    life.ended = (flags & FINISHED) !== 0;
  }
  return life.segments.length ? life : null;
}

const workOf = (flags) => (flags & KEPT ? "kept" : flags & PREFILL ? "prefill" : "decode");

function extend(segments, tape, column, kind, reason) {
  const c = column % tape.capacity;
  const place = [tape.epoch[c], tape.n[c]];
  const ms = until(tape, column);
  const last = segments.at(-1);
  if (last && last.kind === kind && last.reason === reason) {
    last.ms += ms;
    last.last = place;
  } else {
    segments.push({ kind, reason, ms, first: place, last: place });
  }
}

/** From the start of this column's iteration to the start of the next one's, or to its own end. */
function until(tape, column) {
  const c = column % tape.capacity;
  const next = (column + 1) % tape.capacity;
  const isNext = column + 1 < tape.total && tape.epoch[next] === tape.epoch[c];
  return isNext ? Math.max(0, tape.t0[next] - tape.t0[c]) : tape.spent(c);
}

/** Milliseconds by kind of segment, and for waiting by reason. */
export function partsOf(segments) {
  const parts = new Map();
  for (const { kind, reason, ms } of segments) {
    const key = kind === "waiting" ? `waiting.${reason}` : kind;
    parts.set(key, (parts.get(key) ?? 0) + ms);
  }
  return parts;
}

/**
 * Who cost request `id` most: [{id, ms}], dearest first, at most `most`. In an iteration where it decoded, a batch-mate's
 * prefill tokens cost it their price; without prices (`costs.token`, ms) their share of the forward pass by tokens.
 */
export function dearestMates(tape, id, costs, most = 5) {
  const number = tape.numberOf.get(id);
  if (number === undefined) return [];
  const spent = new Map();
  for (let column = tape.oldest; column < tape.total; column++) {
    const c = column % tape.capacity;
    if (tape.prefillTokens[c] === 0) continue;
    const own = cellOf(tape, c, number);
    if (own < 0 || tape.flags[own] & PREFILL) continue;
    const price = costs?.token ?? tape.forward[c] / Math.max(1, tape.budgetUsed[c]);
    for (let cell = c * tape.stride; cell < (c + 1) * tape.stride; cell++) {
      if (!(tape.flags[cell] & PREFILL)) continue;
      spent.set(tape.request[cell], (spent.get(tape.request[cell]) ?? 0) + price * tape.tokens[cell]);
    }
  }
  const dearest = [...spent].sort((a, b) => b[1] - a[1]).slice(0, most);
  return dearest.map(([mate, ms]) => ({ id: tape.requestId(mate), ms }));
}
