// One answer as the socket's messages make it. Pure: state in, state out; no DOM, no clock but the one handed in.
//
// `seq` counts a request's deltas from 1 without gaps. A delta that was already seen is dropped; one that comes too
// early is dropped too, and `gap` asks for `resume` with the last seq seen: the log behind the server is the truth.

/** @typedef {"sending"|"queued"|"streaming"|"finished"|"failed"} Phase */

/** `now`: when it was asked for; null for an answer that this page did not ask for itself (after a reload). */
export function newAnswer(ref, now = null) {
  return {
    ref,
    requestId: null,
    /** @type {Phase} */
    phase: "sending",
    text: "",
    seq: 0,
    gap: false,
    tokens: 0,
    position: null,
    reason: null,
    detail: null,
    etaMs: null,
    etaAt: null,
    /** [[end, iteration]]: text up to `end` came no later than in that iteration; only of deltas this page has seen. */
    marks: [],
    sentAt: now,
    firstAt: null,
    lastAt: null,
    finishReason: null,
    usage: null,
    receipt: null,
    error: null,
    stopping: false,
  };
}

export const isOver = (answer) => answer.phase === "finished" || answer.phase === "failed";

/** Does this message speak of this answer? By request id where both know it, else by the client's own ref. */
export function concerns(answer, message) {
  if (message.request_id && answer.requestId) return message.request_id === answer.requestId;
  return message.ref !== undefined && message.ref !== null && message.ref === answer.ref;
}

/** The answer after `message`. The same object comes back when nothing changes. */
export function reduceAnswer(answer, message, now = 0) {
  if (isOver(answer)) return answer;
  switch (message.type) {
    case "accepted":
      return accepted(answer, message);
    case "queued":
      return answer.phase === "streaming"
        ? answer
        : {
            ...answer,
            phase: "queued",
            position: message.position ?? null,
            reason: message.reason ?? null,
            detail: message.detail ?? null,
            etaMs: message.eta_ms ?? null,
            etaAt: now,
          };
    case "delta":
      return delta(answer, message, now);
    case "finished":
      return finished(answer, message, now);
    case "error":
      return { ...answer, phase: "failed", error: { code: message.code, message: message.message }, lastAt: now };
    default:
      return answer;
  }
}

function accepted(answer, message) {
  const phase = answer.phase === "sending" ? "queued" : answer.phase;
  return { ...answer, requestId: message.request_id, phase, position: message.position ?? answer.position };
}

function delta(answer, message, now) {
  const first = message.first_seq ?? message.seq; // a coalesced delta says where it starts
  if (message.seq <= answer.seq) return answer;
  if (first !== answer.seq + 1) return answer.gap ? answer : { ...answer, gap: true };
  return {
    ...answer,
    phase: "streaming",
    text: answer.text + message.text,
    marks: message.iteration ? [...answer.marks, [answer.text.length + message.text.length, message.iteration]] : answer.marks,
    seq: message.seq,
    gap: false,
    tokens: answer.tokens + (message.tokens ?? 1),
    firstAt: answer.firstAt ?? now,
    lastAt: now,
  };
}

function finished(answer, message, now) {
  // The finish has the seq after the last delta's: it tells whether the text before it is whole.
  if (message.seq && message.seq > answer.seq + 1) return answer.gap ? answer : { ...answer, gap: true };
  const reason = message.finish_reason;
  return {
    ...answer,
    phase: reason === "error" ? "failed" : "finished",
    gap: false,
    finishReason: reason,
    usage: message.usage ?? null,
    receipt: message.receipt ?? null,
    tokens: message.usage?.completion_tokens ?? answer.tokens,
    error: reason === "error" ? (message.error ?? { code: message.code ?? "internal", message: message.message }) : null,
    lastAt: answer.lastAt ?? now,
  };
}

/** Ms until it begins, as estimated; null where nobody can say. Never below zero: it may take longer than was thought. */
export function remaining(answer, now) {
  return answer.etaMs === null || answer.etaAt === null ? null : Math.max(0, answer.etaMs - (now - answer.etaAt));
}

/** The `resume` that continues this answer, or null when there is nothing to ask for. */
export function resumeMessage(answer) {
  if (!answer.requestId || isOver(answer)) return null;
  return { type: "resume", request_id: answer.requestId, after_seq: answer.seq };
}

/**
 * Figures while it streams: `first` ms to the first token, `perSecond` tokens after it. Null where not known: not yet,
 * or never, since a resumed answer's tokens come all at once and would make a rate that nobody had.
 */
export function liveFigures(answer, now) {
  const first = answer.firstAt !== null && answer.sentAt !== null ? answer.firstAt - answer.sentAt : null;
  const end = isOver(answer) ? answer.lastAt : now;
  const spent = answer.firstAt === null ? 0 : end - answer.firstAt;
  const perSecond = answer.sentAt !== null && answer.tokens > 1 && spent > 0 ? ((answer.tokens - 1) * 1000) / spent : null;
  return { first, perSecond, tokens: answer.tokens };
}
