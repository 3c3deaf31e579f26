// The scheduler socket's frames, applied to engines. Pure but for the tapes it fills.
import { Tape } from "./tape.js";

export function newEngine(name, capacity) {
  return { name, state: "ready", model: "", settings: {}, running: 0, waiting: 0, kv: null, tape: new Tape(capacity), latest: null, missed: 0 };
}

/** Applies a `snapshot`: the engines there are, with where each stands, and its recent records where they came along. */
export function applySnapshot(engines, snapshot, capacity) {
  const next = new Map();
  for (const raw of snapshot.engines) {
    const engine = engines.get(raw.engine) ?? newEngine(raw.engine, capacity);
    next.set(raw.engine, engine);
    addRecords(engine, raw.records ?? []);
    Object.assign(engine, {
      state: raw.state ?? "ready",
      settings: raw.settings ?? {},
      model: raw.model ?? "",
      running: size(raw.running),
      waiting: raw.waiting_total ?? size(raw.waiting),
      kv: raw.kv && raw.kv.total !== undefined ? raw.kv : engine.kv,
    });
  }
  return next;
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
    news = true;
  }
  if (news) {
    const { latest } = engine;
    const leaving = new Set([...latest.finished.map((end) => end.request_id), ...latest.preempted]);
    engine.running = latest.rows.filter((row) => !leaving.has(row.request_id)).length;
    engine.waiting = latest.waiting_total ?? latest.waiting.length;
    engine.kv = latest.kv;
  }
  return news;
}
