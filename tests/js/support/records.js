// Iteration records as the scheduler's feed has them.

export const row = (request_id, seat, kind = "decode", tokens = 1, context = 10, blocks = 1) => ({ request_id, seat, kind, tokens, context, blocks });

export const record = (n, rows = [], extra = {}) => ({
  n,
  epoch: 1,
  started_at: 1000 + n,
  t0: n * 20,
  schedule: 1,
  forward: 10,
  sample: 2,
  commit: 1,
  policy: "continuous",
  rows,
  waiting: [],
  waiting_total: 0,
  preempted: [],
  finished: [],
  kv: { free: 90, cached: 0, used: 10, total: 100 },
  budget: { used: 4, limit: 64 },
  seats: 8,
  ...extra,
});

export const waits = (request_id, reason = "no_seat", detail = "seats 8 of 8") => ({ request_id, reason, detail });
