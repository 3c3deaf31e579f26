// The latency receipt as parts of a bar and lines of a table. Pure.

export const PARTS = ["queue", "prefill", "decode", "batchmates", "preempted", "stalled", "deliver"];
const LEAST_MS = 0.05; // what is shorter shows as 0.0 and is left out

const milliseconds = (part) => (typeof part === "number" ? Math.max(0, part) : 0);

/** {total, parts: [{name, ms, share}]} in the order of time. */
export function receiptParts(receipt) {
  const parts = PARTS.map((name) => ({ name, ms: milliseconds(receipt[name]) })).filter((part) => part.ms >= LEAST_MS);
  const sum = parts.reduce((all, part) => all + part.ms, 0);
  const total = typeof receipt.total === "number" ? receipt.total : sum;
  return { total, parts: parts.map((part) => ({ ...part, share: sum > 0 ? part.ms / sum : 0 })) };
}

/** Why it waited, the longest first: [{reason, ms}]. */
export function queueReasons(receipt) {
  return Object.entries(receipt.details?.queue ?? {})
    .map(([reason, ms]) => ({ reason, ms: milliseconds(ms) }))
    .filter(({ ms }) => ms >= LEAST_MS)
    .sort((a, b) => b.ms - a.ms);
}

/** What the receipt says beside its parts; empty or null where it says nothing. */
export function receiptDetails(receipt) {
  const details = receipt.details ?? {};
  return {
    batchmates: (details.batchmates ?? []).filter(({ ms }) => ms >= LEAST_MS),
    caused: milliseconds(details.caused),
    preemptions: details.preemptions ?? 0,
    first: details.first_iteration || null,
    last: details.last_iteration || null,
    place: details.engine && details.epoch !== undefined ? { engine: details.engine, epoch: details.epoch } : null,
  };
}

/** Time to the first token and tokens/s after it, as the server saw them. Null where the receipt does not say. */
export function receiptFigures(receipt, tokens) {
  const ttft = receipt.details?.ttft ?? milliseconds(receipt.queue) + milliseconds(receipt.prefill);
  const rest = receiptParts(receipt).total - milliseconds(receipt.deliver) - ttft;
  return {
    first: ttft > 0 ? ttft : null,
    perSecond: tokens > 1 && rest > 0 ? ((tokens - 1) * 1000) / rest : null,
  };
}
