import assert from "node:assert/strict";
import test from "node:test";
import { applyIterations, applySnapshot } from "../../static/src/scheduler/feed.js";
import { columnAt, columnX, layout, prefillHeight, rowsToShow } from "../../static/src/scheduler/geometry.js";
import { roundUp } from "../../static/src/scheduler/charts.js";
import { DECODE, FINISHED, PREEMPTED, PREFILL, Tape } from "../../static/src/scheduler/tape.js";

const row = (request_id, seat, kind = "decode", tokens = 1, context = 10, blocks = 1) => ({ request_id, seat, kind, tokens, context, blocks });
const record = (n, rows = [], extra = {}) => ({
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

test("rows land in their seats, with kind, tokens and marks", () => {
  const tape = new Tape(8);
  tape.push(record(1, [row("a", 0, "prefill", 30, 30, 2), row("b", 3)], { finished: [{ request_id: "b", reason: "stop", seat: 3 }], preempted: ["a"] }));
  const rows = tape.rowsOf(tape.newest());
  assert.deepEqual(
    rows.map(({ seat, id, prefill, finished, preempted, tokens }) => [seat, id, prefill, finished, preempted, tokens]),
    [
      [0, "a", true, false, true, 30],
      [3, "b", false, true, false, 1],
    ],
  );
  assert.equal(tape.prefillTokens[0], 30);
  assert.equal(tape.decodeTokens[0], 1);
  assert.equal(tape.flags[3], DECODE | FINISHED);
  assert.equal(tape.flags[0], PREFILL | PREEMPTED);
});

test("a request that left without a part in the iteration is marked in the one before", () => {
  const tape = new Tape(8);
  tape.push(record(1, [row("a", 2), row("b", 3)]));
  tape.push(record(2, [row("b", 3)], { preempted: ["a"], finished: [{ request_id: "zzz", reason: "cancelled", seat: null }] }));
  assert.equal(tape.flags[tape.at(1) * tape.stride + 2], DECODE | PREEMPTED);
  assert.equal(tape.flags[tape.at(0) * tape.stride + 2], 0);
});

test("late and doubled records are refused, a restart is news", () => {
  const tape = new Tape(8);
  assert.ok(tape.push(record(5)));
  assert.ok(!tape.push(record(5)));
  assert.ok(!tape.push(record(4)));
  assert.ok(tape.push(record(1, [], { epoch: 2 })));
  assert.ok(!tape.push(record(9)));
  assert.equal(tape.length, 2);
});

test("the ring keeps the newest columns and forgets what they held before", () => {
  const tape = new Tape(4);
  for (let n = 1; n <= 11; n++) tape.push(record(n, [row(`r${n}`, n % 3)]));
  assert.equal(tape.length, 4);
  assert.deepEqual([3, 2, 1, 0].map((back) => tape.n[tape.at(back)]), [8, 9, 10, 11]);
  for (let back = 0; back < 4; back++) {
    const rows = tape.rowsOf(tape.at(back));
    assert.deepEqual(rows.map(({ id, seat }) => [id, seat]), [[`r${11 - back}`, (11 - back) % 3]]);
  }
});

test("more seats than at first make the ring wider and keep what it held", () => {
  const tape = new Tape(4);
  tape.push(record(1, [row("a", 0), row("b", 15)]));
  tape.push(record(2, [row("c", 200)]));
  assert.deepEqual(tape.rowsOf(tape.at(1)).map(({ id, seat }) => [id, seat]), [["a", 0], ["b", 15]]);
  assert.deepEqual(tape.rowsOf(tape.at(0)).map(({ id, seat }) => [id, seat]), [["c", 200]]);
  assert.equal(tape.seatsUsed(4), 201);
});

test("request ids do not pile up for ever", () => {
  const tape = new Tape(4);
  for (let n = 1; n <= 500; n++) tape.push(record(n, [row(`r${n}`, 0)]));
  assert.ok(tape.ids.length <= 16 * 4 + 1);
  assert.deepEqual([1, 0].map((back) => tape.rowsOf(tape.at(back))[0].id), ["r499", "r500"]);
});

test("rates are over the engine's clock, and end at a restart", () => {
  const tape = new Tape(64);
  for (let n = 1; n <= 50; n++) tape.push(record(n, [row("a", 0), row("b", 1)]));
  // 50 iterations of 20 ms, the last one 14: 100 tokens in 994 ms.
  assert.ok(Math.abs(tape.rates().decode - 100 / 0.994) < 1e-6);
  tape.push(record(1, [row("a", 0, "prefill", 28)], { epoch: 2, t0: 0 }));
  assert.deepEqual(tape.rates(), { decode: 0, prefill: 2000 });
});

test("a snapshot, then frames: engines appear, counts follow the newest record", () => {
  const snapshot = {
    type: "snapshot",
    engines: [{ engine: "e1", state: "ready", settings: { max_num_seqs: 8 }, running: [], waiting: [], waiting_total: 2, kv: { free: 1, cached: 0, used: 0, total: 1 }, records: [record(1, [row("a", 0)])] }],
  };
  const engines = applySnapshot(new Map(), snapshot, 16);
  assert.deepEqual([...engines.keys()], ["e1"]);
  assert.deepEqual([engines.get("e1").waiting, engines.get("e1").running, engines.get("e1").tape.length], [2, 0, 1]);
  const frame = { type: "iterations", engine: "e1", records: [record(1), record(2, [row("a", 0), row("b", 1)], { finished: [{ request_id: "a", reason: "stop", seat: 0 }], waiting_total: 7 }), record(4)] };
  assert.ok(applyIterations(engines, { ...frame, records: frame.records.slice(0, 2) }, 16));
  assert.deepEqual([engines.get("e1").running, engines.get("e1").waiting, engines.get("e1").tape.length], [1, 7, 2]);
  assert.ok(applyIterations(engines, frame, 16));
  assert.equal(engines.get("e1").missed, 1);
  assert.ok(!applyIterations(engines, frame, 16));
  applyIterations(engines, { type: "iterations", engine: "e2", records: [record(1)] }, 16);
  assert.deepEqual([...engines.keys()], ["e1", "e2"]);
});

test("a new snapshot keeps the tape of an engine that is still there and drops one that is gone", () => {
  const described = (engine, records) => ({ engine, state: "ready", settings: {}, running: [], waiting: [], records });
  const first = applySnapshot(new Map(), { engines: [described("a", [record(1)]), described("b", [])] }, 16);
  const second = applySnapshot(first, { engines: [described("a", [record(1), record(2)])] }, 16);
  assert.equal(second.get("a"), first.get("a"));
  assert.equal(second.get("a").tape.length, 2);
  assert.ok(!second.has("b"));
});

test("the column under a point is the one that is drawn there", () => {
  for (const width of [320, 900, 2400]) {
    const geometry = layout(width, 16);
    assert.ok(geometry.end <= width - geometry.right);
    for (const column of [1000, 1001 - geometry.columns]) {
      const x = columnX(geometry, column, 1001);
      assert.equal(columnAt(geometry, x + 1, 1001, 0), column);
      assert.equal(columnAt(geometry, x + geometry.pitch - 0.5, 1001, 0), column);
    }
    assert.equal(columnAt(geometry, geometry.left - 1, 1001, 0), null);
    assert.equal(columnAt(geometry, geometry.end, 1001, 0), null);
    assert.equal(columnAt(geometry, geometry.end - 1, 1001, 1001), null);
  }
});

test("rows shown: those used, a few at least, never more than there are", () => {
  assert.equal(rowsToShow(0, 64), 8);
  assert.equal(rowsToShow(20, 64), 20);
  assert.equal(rowsToShow(0, 4), 4);
  assert.equal(rowsToShow(12, 0), 12);
});

test("a bigger chunk is a taller block, and always taller than decode", () => {
  const heights = [1, 16, 64, 256, 512].map((tokens) => prefillHeight(tokens, 512, 22));
  assert.deepEqual([...heights].sort((a, b) => a - b), heights);
  assert.ok(heights[0] >= 6 && heights.at(-1) === 19);
});

test("scales end at round numbers", () => {
  assert.deepEqual([1, 1.2, 7, 23, 96, 181].map(roundUp), [1, 1.5, 8, 30, 100, 200]);
});
