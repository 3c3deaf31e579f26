// The latency receipt as parts of a bar. Pure.

const ORDER = ["queue", "prefill", "decode", "batchmates", "preempted", "stalled", "deliver"];

/** A part is a number of ms or an object of reasons to ms (or one with a `total`). */
function milliseconds(part) {
  if (typeof part === "number") return Math.max(0, part);
  if (part && typeof part === "object") {
    if (typeof part.total === "number") return Math.max(0, part.total);
    return Object.values(part).reduce((sum, ms) => sum + (typeof ms === "number" ? Math.max(0, ms) : 0), 0);
  }
  return 0;
}

/** {total, parts: [{name, ms, share}]} in the order of time; parts under 0.05 ms are left out. */
export function receiptParts(receipt) {
  const parts = ORDER.map((name) => ({ name, ms: milliseconds(receipt[name]) })).filter((part) => part.ms >= 0.05);
  const sum = parts.reduce((all, part) => all + part.ms, 0);
  const total = typeof receipt.total === "number" ? receipt.total : sum;
  return { total, parts: parts.map((part) => ({ ...part, share: sum > 0 ? part.ms / sum : 0 })) };
}

/** Time to the first token and tokens/s after it, as the engine saw them. Null where the receipt does not say. */
export function receiptFigures(receipt, tokens) {
  const first = milliseconds(receipt.queue) + milliseconds(receipt.prefill);
  const decode = milliseconds(receipt.decode) + milliseconds(receipt.batchmates);
  return {
    first: first > 0 ? first : null,
    perSecond: tokens > 1 && decode > 0 ? ((tokens - 1) * 1000) / decode : null,
  };
}
