import assert from "node:assert/strict";
import test from "node:test";
import { applyIterations, applySnapshot, GONE } from "../../static/src/scheduler/feed.js";
import { rates, rowsOf, seatsUsed } from "../../static/src/scheduler/readings.js";
import { DECODE, FINISHED, IDLE, KEPT, PREEMPTED, PREFILL } from "../../static/src/scheduler/ring.js";
import { GAP, Tape } from "../../static/src/scheduler/tape.js";
import { record, row, waits } from "./support/records.js";

test("rows land in their seats, with kind, tokens and marks", () => {
  const tape = new Tape(8);
  tape.push(record(1, [row("a", 0, "prefill", 30, 30, 2), row("b", 3)], { finished: [{ request_id: "b", reason: "stop", seat: 3 }], preempted: ["a"] }));
  const rows = rowsOf(tape, tape.newest());
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
    const rows = rowsOf(tape, tape.at(back));
    assert.deepEqual(rows.map(({ id, seat }) => [id, seat]), [[`r${11 - back}`, (11 - back) % 3]]);
  }
});

test("more seats than at first make the ring wider and keep what it held", () => {
  const tape = new Tape(4);
  tape.push(record(1, [row("a", 0), row("b", 15)]));
  tape.push(record(2, [row("c", 200)]));
  assert.deepEqual(rowsOf(tape, tape.at(1)).map(({ id, seat }) => [id, seat]), [["a", 0], ["b", 15]]);
  assert.deepEqual(rowsOf(tape, tape.at(0)).map(({ id, seat }) => [id, seat]), [["c", 200]]);
  assert.equal(seatsUsed(tape, 4), 201);
});

test("request ids do not pile up for ever", () => {
  const tape = new Tape(4);
  for (let n = 1; n <= 500; n++) tape.push(record(n, [row(`r${n}`, 0)]));
  assert.ok(tape.ids.length <= 16 * 4 + 1);
  assert.deepEqual([1, 0].map((back) => rowsOf(tape, tape.at(back))[0].id), ["r499", "r500"]);
});

test("rates are over the engine's clock, and end at a restart", () => {
  const tape = new Tape(64);
  for (let n = 1; n <= 50; n++) tape.push(record(n, [row("a", 0), row("b", 1)]));
  // 50 iterations of 20 ms, the last one 14: 100 tokens in 994 ms.
  assert.ok(Math.abs(rates(tape).decode - 100 / 0.994) < 1e-6);
  tape.push(record(1, [row("a", 0, "prefill", 28)], { epoch: 2, t0: 0 }));
  assert.deepEqual(rates(tape), { decode: 0, prefill: 2000 });
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

test("requests keep their seats while the engine is paused; limits follow the newest record", () => {
  const engines = applySnapshot(new Map(), { engines: [{ engine: "e1", settings: { max_num_seqs: 8 }, running: [], waiting: [] }] }, 16);
  applyIterations(engines, { engine: "e1", records: [record(1, [row("a", 0), row("b", 1)]), record(2, [], { seats: 4 })] }, 16);
  assert.deepEqual([engines.get("e1").running, engines.get("e1").settings.max_num_seqs], [2, 4]);
  applyIterations(engines, { engine: "e1", records: [record(3, [], { finished: [{ request_id: "a", reason: "cancelled", seat: 0 }] })] }, 16);
  assert.equal(engines.get("e1").running, 1);
});

test("a new snapshot keeps the tape of an engine that is still there and drops one that is gone", () => {
  const described = (engine, records) => ({ engine, state: "ready", settings: {}, running: [], waiting: [], records });
  const first = applySnapshot(new Map(), { engines: [described("a", [record(1)]), described("b", [])] }, 16);
  const second = applySnapshot(first, { engines: [described("a", [record(1), record(2)])] }, 16);
  assert.equal(second.get("a"), first.get("a"));
  assert.equal(second.get("a").tape.length, 2);
  assert.ok(!second.has("b"));
});

test("seats held by a batch, padding and drafts are kept apart from work", () => {
  const tape = new Tape(8);
  tape.push(record(1, [row("a", 0, "prefill", 30, 30), row("b", 1, "prefill", 10, 10)], { idle: [4], padding: 20, policy: "static" }));
  assert.equal(tape.flags[4], IDLE);
  assert.deepEqual([tape.idle[0], tape.padding[0], tape.padTo[0]], [1, 20, 30]);
  assert.equal(rowsOf(tape, 0).length, 2);
  tape.push(record(2, [{ ...row("a", 0, "decode", 5, 35), drafted: 4, accepted: 3 }]));
  assert.deepEqual([tape.decodeTokens[1], tape.accepted[1], tape.rejected[1]], [1, 3, 1]);
  assert.deepEqual([rowsOf(tape, 1)[0].drafted, rowsOf(tape, 1)[0].accepted], [4, 3]);
  assert.equal(seatsUsed(tape), 5);
});

test("the hit rate counts what a new request found, not what a chunk continues", () => {
  const tape = new Tape(8);
  tape.push(record(1, [row("a", 0, "prefill", 20, 20)]));
  assert.equal(tape.hitRate[0], 0);
  tape.push(record(2, [row("a", 0, "prefill", 20, 40), row("b", 1, "prefill", 10, 40)]));
  // lately: 20 of old tokens weigh 0.97; b found 30 of 40
  assert.ok(Math.abs(tape.hitRate[1] - 30 / (20 * 0.97 + 20 + 40)) < 1e-9);
  const late = new Tape(8); // begins in the middle: nobody knows whether a is new
  late.push(record(7, [row("a", 0, "prefill", 20, 40)]));
  assert.equal(late.hitRate[0], 0);
});

test("what lies between two columns: a rest, a gap, a restart", () => {
  const tape = new Tape(8);
  tape.push(record(1));
  tape.push(record(2));
  tape.push(record(3, [], { t0: 5000 }));
  tape.push(record(9, [], { t0: 5020 }));
  tape.push(record(1, [], { epoch: 2, t0: 3 }));
  assert.deepEqual([...tape.gap].slice(0, 5), [GAP.none, GAP.none, GAP.idle, GAP.missed, GAP.restarted]);
});

test("an iteration is found by its epoch and number", () => {
  const tape = new Tape(4);
  for (const n of [1, 2, 4, 7]) tape.push(record(n));
  tape.push(record(1, [], { epoch: 2 }));
  assert.equal(tape.columnOf(1, 4), 2);
  assert.equal(tape.columnOf(1, 1), -1); // overwritten
  assert.equal(tape.columnOf(1, 5), -1);
  assert.equal(tape.columnAfter(1, 5), 3);
  assert.equal(tape.columnOf(2, 1), 4);
  assert.equal(tape.columnAfter(3, 0), tape.total);
});

test("who waits is known since when", () => {
  const tape = new Tape(8);
  const waiting = (...ids) => ({ waiting: ids.map((request_id) => ({ request_id, reason: "no_seat", detail: "" })) });
  tape.push(record(1, [], waiting("a")));
  tape.push(record(2, [], waiting("a", "b")));
  tape.push(record(3, [], waiting("b")));
  tape.push(record(4, [], waiting("a", "b")));
  assert.deepEqual([...tape.extras[tape.newest()].since], [["a", 80], ["b", 40]]);
});

const keepers = (tape, back = 0) => rowsOf(tape, tape.at(back), KEPT).map(({ id, seat, context, kept }) => [id, seat, context, kept]);

test("in iterations of a paused engine whoever has a seat keeps it, until it leaves", () => {
  const tape = new Tape(8);
  tape.push(record(1, [row("a", 0, "prefill", 30, 30, 2), row("b", 3), row("c", 4)], { finished: [{ request_id: "c", reason: "stop", seat: 4 }] }));
  assert.deepEqual(keepers(tape), []);
  tape.push(record(2));
  assert.deepEqual(keepers(tape), [["a", 0, 30, true], ["b", 3, 10, true]]);
  assert.deepEqual([tape.rows[1], tape.kept[1], tape.prefillRows[1], tape.decodeTokens[1]], [0, 2, 0, 0]);
  assert.deepEqual(rowsOf(tape, 1), []);
  tape.push(record(3, [], { finished: [{ request_id: "b", reason: "cancelled", seat: 3 }] }));
  assert.deepEqual(keepers(tape), [["a", 0, 30, true]]);
  assert.equal(tape.flags[tape.at(1) * tape.stride + 3], KEPT | FINISHED);
  tape.push(record(4, [], { preempted: ["a"] }));
  assert.deepEqual(keepers(tape), []);
  assert.equal(seatsUsed(tape), 5);
});

test("who keeps a seat is not known after a gap or a restart", () => {
  const tape = new Tape(8);
  tape.push(record(1, [row("a", 0)]));
  tape.push(record(7));
  assert.deepEqual(keepers(tape), []);
  tape.push(record(8, [row("a", 0)]));
  tape.push(record(1, [], { epoch: 2 }));
  assert.deepEqual(keepers(tape), []);
});

test("a page that comes while the engine is paused is told who has a seat", () => {
  const held = { ...row("a", 20, "decode", 1, 44), drafted: 0, accepted: 0 };
  const snapshot = { engines: [{ engine: "e1", epoch: 1, settings: {}, paused: true, running: [held], waiting: [], records: [record(8), record(9)] }] };
  const engines = applySnapshot(new Map(), snapshot, 16);
  const { tape } = engines.get("e1");
  assert.deepEqual([keepers(tape, 1), keepers(tape), engines.get("e1").running], [[["a", 20, 44, true]], [["a", 20, 44, true]], 1]);
  applyIterations(engines, { engine: "e1", records: [record(10, [], { finished: [{ request_id: "a", reason: "cancelled", seat: 20 }] })] }, 16);
  assert.deepEqual([keepers(tape), engines.get("e1").running], [[], 0]);
  applySnapshot(engines, { engines: [{ ...snapshot.engines[0], records: [] }] }, 16); // taken before that record
  assert.equal(engines.get("e1").running, 0);
});

test("what a preempted request had computed is known until it runs again or ends", () => {
  const tape = new Tape(8);
  const lost = () => [...(tape.extras[tape.newest()].lost ?? [])];
  tape.push(record(1, [row("a", 0, "decode", 1, 57), row("b", 1, "decode", 1, 20)]));
  tape.push(record(2, [], { preempted: ["a", "b", "zzz"] }));
  assert.deepEqual(lost(), [["a", 57], ["b", 20]]);
  tape.push(record(3, [row("a", 0, "prefill", 57, 57)]));
  assert.deepEqual(lost(), [["b", 20]]);
  tape.push(record(4, [row("a", 0)], { finished: [{ request_id: "b", reason: "cancelled", seat: null }] }));
  assert.deepEqual(lost(), []);
});

test("an order that the engine refused is told until the next snapshot knows better", () => {
  const described = { engine: "e1", settings: {}, running: [], waiting: [], records: [] };
  const refused = { text: "too few blocks", at: 17, action: "set" };
  const engines = applySnapshot(new Map(), { engines: [{ ...described, refused }] }, 16);
  assert.deepEqual(engines.get("e1").refused, refused);
  assert.equal(applySnapshot(engines, { engines: [described] }, 16).get("e1").refused, null);
});

test("an engine that is looked at stays when it goes, and is itself again when it comes back", () => {
  const described = (engine, records, epoch = 1) => ({ engine, epoch, state: "ready", settings: {}, running: [row("r", 0)], waiting: [], waiting_total: 3, records });
  const first = applySnapshot(new Map(), { engines: [described("a", [record(1)]), described("b", [record(5)])] }, 16);
  const second = applySnapshot(first, { engines: [described("a", [])] }, 16, "b");
  const gone = second.get("b");
  assert.deepEqual([gone.state, gone.running, gone.waiting, gone.tape.length], [GONE, 0, 0, 1]);
  const third = applySnapshot(second, { engines: [described("b", [record(1, [], { epoch: 2 })], 2)] }, 16, "b");
  assert.deepEqual([third.get("b") === gone, gone.state, gone.tape.length, gone.tape.gap[1]], [true, "ready", 2, GAP.restarted]);
  assert.ok(!applySnapshot(third, { engines: [] }, 16, "a").has("b"));
});

test("blocks that were made fewer while the engine is paused and at rest are told", () => {
  const kv = (total) => ({ free: total, cached: 0, used: 0, total });
  const described = (total) => ({ engine: "a", epoch: 1, paused: true, settings: { kv_blocks: total }, kv: kv(total), running: [], waiting: [], records: [] });
  const engines = applySnapshot(new Map(), { engines: [{ ...described(100), records: [record(1, [], { kv: kv(100) })] }] }, 16);
  applySnapshot(engines, { engines: [described(60)] }, 16);
  assert.equal(engines.get("a").kv.total, 60);
  applyIterations(engines, { engine: "a", records: [record(2, [], { kv: kv(80) })] }, 16);
  assert.deepEqual([engines.get("a").kv.total, engines.get("a").settings.kv_blocks], [80, 80]);
});

test("a policy that was to follow follows no more once it is in force", () => {
  const settings = { policy: "continuous", next_policy: "static" };
  const engines = applySnapshot(new Map(), { engines: [{ engine: "a", settings, running: [], waiting: [], records: [record(1)] }] }, 16);
  assert.equal(engines.get("a").settings.next_policy, "static");
  applyIterations(engines, { engine: "a", records: [record(2, [], { policy: "static" })] }, 16);
  assert.deepEqual([engines.get("a").settings.policy, engines.get("a").settings.next_policy], ["static", null]);
});

test("time in which nothing was computed is idle only if nobody was there", () => {
  const tape = new Tape(8);
  tape.push(record(1, [row("a", 0)]));
  tape.push(record(2, [row("a", 0)], { t0: 5000, finished: [{ request_id: "a", reason: "stop", seat: 0 }] }));
  tape.push(record(3, [], { t0: 9000, waiting_total: 1 }));
  tape.push(record(4, [row("b", 0)], { t0: 20_000 }));
  assert.deepEqual([1, 2, 3].map((c) => tape.gap[c]), [GAP.still, GAP.idle, GAP.still]);
});

test("how long somebody has waited does not depend on when the page came", () => {
  const tape = new Tape(8);
  tape.push(record(500, [], { waiting: [{ ...waits("a"), since: 400 }, waits("b")], waiting_total: 2 }));
  tape.push(record(501, [], { waiting: [{ ...waits("a"), since: 400 }, waits("b")], waiting_total: 2 }));
  assert.deepEqual([...tape.extras[1].since], [["a", 400], ["b", 10_000]]);
});
