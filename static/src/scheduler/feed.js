// The scheduler socket's frames, applied to engines. Pure but for the tapes it fills.
import { Follower } from "./blocks.js";
import { Tape } from "./tape.js";
import { Timeline } from "./timeline.js";

/** The state of an engine that no heartbeat tells of any more; its history is still there to be looked at. */
export const GONE = "gone";

/**
 * `shown`: one more than the newest column the picture shows; it follows `tape.total`. `refused`: {text, at} of the newest order
 * that the engine itself refused, `dismissed`: the time of the one that another order has followed. `heardAt`: when the newest
 * record came, by this page's clock.
 */
export function newEngine(name, capacity) {
  return {
    name, state: "ready", model: "", settings: {}, running: 0, waiting: 0, kv: null, latest: null, missed: 0,
    paused: false, slowMs: 0, costs: null, refused: null, dismissed: null, shown: 0, heardAt: 0,
    active: new Set(), tape: new Tape(capacity), blocks: new Follower(), timeline: new Timeline(),
  }; // prettier-ignore
}

/** An engine of which only the history is left. `epochs`: [epoch, first, last] of what is kept. */
export const goneEngine = (name, capacity, epochs) => Object.assign(newEngine(name, capacity), { state: GONE, timeline: new Timeline(epochs) });

/**
 * Applies a `snapshot`: the engines there are, with where each stands, and its recent records where they came along. The one
 * that is `lookedAt`, by name, stays when it has gone: whoever looks for why it went must not lose the picture.
 */
export function applySnapshot(engines, snapshot, capacity, lookedAt = null) {
  const next = new Map();
  for (const raw of snapshot.engines) {
    const engine = engines.get(raw.engine) ?? newEngine(raw.engine, capacity);
    const isNew = engine.tape.length === 0;
    if (isNew && Array.isArray(raw.running)) engine.tape.seated = raw.running;
    next.set(raw.engine, engine);
    addRecords(engine, raw.records ?? []);
    if (raw.blocks) engine.blocks.takePart(raw.blocks);
    Object.assign(engine, {
      state: raw.state ?? "ready",
      settings: raw.settings ?? {},
      model: raw.model ?? "",
      paused: raw.paused ?? false,
      slowMs: raw.slow_ms ?? 0,
      refused: raw.refused ?? null,
      costs: raw.costs && raw.costs.observed > 0 ? raw.costs : null,
    });
    if (isNew || !engine.paused || engine.latest?.epoch !== raw.epoch) standsAt(engine, raw);
    else if (raw.kv?.total === raw.settings?.kv_blocks) engine.kv = kvAfterResize(engine.kv, raw.kv);
  }
  const gone = engines.get(lookedAt);
  if (gone && !next.has(lookedAt)) next.set(lookedAt, Object.assign(gone, { state: GONE, running: 0, waiting: 0, active: new Set(), paused: false, slowMs: 0 }));
  return next;
}

/** Applies a `blocks` frame: a stretch of an engine's KV map. */
export const applyBlocks = (engines, frame) => engines.get(frame.engine)?.blocks.takePart(frame);

/** Blocks can be made fewer while an engine is paused; then no record tells of it until somebody comes. */
const kvAfterResize = (before, now) => (now && now.total !== before?.total ? now : before);

/** Who runs and waits by the snapshot. A paused engine's newest record says it better: none comes after it. */
function standsAt(engine, raw) {
  engine.running = size(raw.running);
  engine.active = new Set(Array.isArray(raw.running) ? raw.running.map((row) => row.request_id) : []);
  engine.waiting = raw.waiting_total ?? size(raw.waiting);
  if (raw.kv?.total !== undefined) engine.kv = raw.kv;
}

/** A number, or a list that is counted. */
const size = (value) => (Array.isArray(value) ? value.length : (value ?? 0));

/** Applies an `iterations` frame; true if anything was new. An engine not heard of before appears. */
export function applyIterations(engines, frame, capacity) {
  let engine = engines.get(frame.engine);
  if (!engine) {
    engine = newEngine(frame.engine, capacity);
    engines.set(frame.engine, engine);
  }
  return addRecords(engine, frame.records);
}

function addRecords(engine, records) {
  let news = false;
  for (const record of records) {
    const last = engine.tape.newest();
    const missing = last >= 0 && engine.tape.epoch[last] === record.epoch ? record.n - engine.tape.n[last] - 1 : 0;
    if (!engine.tape.push(record)) continue;
    engine.missed += Math.max(0, missing);
    engine.latest = record;
    engine.active = activeAfter(engine.active, record);
    engine.blocks.hear(record);
    engine.timeline.extend(record.epoch, record.n);
    news = true;
  }
  if (news) {
    engine.heardAt = performance.now();
    const { latest } = engine;
    engine.running = engine.active.size;
    engine.waiting = latest.waiting_total ?? latest.waiting.length;
    engine.kv = latest.kv;
    learnLimits(engine, latest);
  }
  return news;
}

/** Who has a seat after an iteration: whoever had a part in it and did not leave; while the engine is paused nobody has one. */
function activeAfter(before, { rows, finished, preempted }) {
  const after = rows.length ? new Set(rows.map((row) => row.request_id)) : new Set(before);
  for (const end of finished) after.delete(end.request_id);
  for (const id of preempted) after.delete(id);
  return after;
}

/** Limits change while an engine runs: the newest record knows better than the snapshot before it. */
function learnLimits(engine, { seats, budget, policy, kv }) {
  const told = { max_num_seqs: seats || engine.settings.max_num_seqs, max_num_batched_tokens: budget.limit, policy, kv_blocks: kv.total };
  if (policy === engine.settings.next_policy) told.next_policy = null;
  if (Object.keys(told).some((name) => told[name] !== engine.settings[name])) engine.settings = { ...engine.settings, ...told };
}
