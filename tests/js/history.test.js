import assert from "node:assert/strict";
import test from "node:test";
import { BlockMap, CACHED, Follower, FREE, HELD, SHARED } from "../../static/src/scheduler/blocks.js";
import { blockAt, gridOf, strongest } from "../../static/src/scheduler/kv_canvas.js";
import { dearestMates, lifeOf, partsOf } from "../../static/src/scheduler/life.js";
import { readLink, writeLink } from "../../static/src/scheduler/links.js";
import { whyWords } from "../../static/src/scheduler/reasons.js";
import { tapeOf } from "../../static/src/scheduler/tape.js";
import { Timeline } from "../../static/src/scheduler/timeline.js";
import { record, row, waits } from "./support/records.js";

test("ordinals run through all epochs and back", () => {
  const timeline = new Timeline([[1, 11, 20], [5, 1, 5]]);
  assert.equal(timeline.total, 15);
  for (let ordinal = 0; ordinal < 15; ordinal++) {
    const { epoch, n } = timeline.at(ordinal);
    assert.equal(timeline.ordinalOf(epoch, n), ordinal);
  }
  assert.deepEqual([timeline.at(-4), timeline.at(99)], [{ epoch: 1, n: 11 }, { epoch: 5, n: 5 }]);
  assert.deepEqual([timeline.ordinalOf(1, 3), timeline.ordinalOf(3, 7), timeline.ordinalOf(9, 1)], [0, 10, 14]);
  assert.equal(new Timeline().at(0), null);
});

test("a span over a restart is asked for in pieces", () => {
  const timeline = new Timeline([[1, 11, 20], [5, 1, 5]]);
  assert.deepEqual(timeline.pieces(8, 11), [{ epoch: 1, first: 19, last: 20 }, { epoch: 5, first: 1, last: 2 }]);
  assert.deepEqual(timeline.pieces(-5, 0), [{ epoch: 1, first: 11, last: 11 }]);
  assert.deepEqual(timeline.pieces(15, 30), []);
});

test("the timeline grows with the feed", () => {
  const timeline = new Timeline([[1, 11, 20]]);
  timeline.extend(1, 25);
  timeline.extend(1, 3);
  timeline.extend(2, 1);
  assert.deepEqual(timeline.epochs, [{ epoch: 1, first: 11, last: 25 }, { epoch: 2, first: 1, last: 1 }]);
});

const six = { kv: { free: 0, cached: 0, used: 6, total: 6 } };
const kept = { total: 6, blocks: [[1, 0, 0], [2, 1, 0], [0, 1, -1], [0, 0, -1], [0, 0, -1], [0, 0, -1]], owners: ["a"] };

test("a block is held, shared, cached or free", () => {
  const map = BlockMap.of(kept);
  assert.deepEqual([0, 1, 2, 3].map((block) => map.stateOf(block)), [HELD, SHARED, CACHED, FREE]);
  assert.deepEqual([map.ownerOf(0), map.ownerOf(2)], ["a", null]);
  assert.equal(map.takeDirty(), null); // all of it
  map.apply([[3, 1, 0, "b"], [0, 0, 1, null], [99, 1, 0, "b"]]);
  assert.deepEqual(map.takeDirty(), [3, 0]);
  assert.deepEqual([map.stateOf(0), map.ownerOf(3)], [CACHED, "b"]);
  assert.deepEqual(map.counts(), { [HELD]: 1, [SHARED]: 1, [CACHED]: 2, [FREE]: 2 });
});

test("owners that have gone are forgotten, those that hold are not", () => {
  const map = BlockMap.of(kept);
  for (let i = 0; i < 1000; i++) map.apply([[5, 1, 0, `r${i}`]]);
  assert.ok(map.owners.length < 4 * map.total + 66);
  assert.deepEqual([map.ownerOf(0), map.ownerOf(5)], ["a", "r999"]);
});

test("a follower keeps the thread, loses it at a gap, and takes it up from a whole map", () => {
  const follower = new Follower();
  follower.hear(record(4, [], { ...six, blocks: [] }));
  assert.ok(follower.lost && follower.hears);
  follower.hear(record(5, [], { ...six, blocks: [[3, 1, 0, "b"]] }));
  follower.hear(record(6, [], { ...six, blocks: [[4, 1, 0, "c"]] }));
  follower.take(BlockMap.of(kept), 1, 5); // the map after iteration 5 has b's block or not: what counts is what comes after
  assert.deepEqual([follower.lost, follower.n, follower.map.ownerOf(4), follower.map.ownerOf(3)], [false, 6, "c", null]);
  follower.hear(record(8, [], { ...six, blocks: [] }));
  assert.ok(follower.lost);
  follower.hear(record(1, [], { ...six, epoch: 2, blocks: [[0, 1, 0, "d"]] })); // restarted: all is free
  assert.deepEqual([follower.lost, follower.map.ownerOf(0), follower.map.stateOf(1)], [false, "d", FREE]);
  follower.hear(record(2, [], { epoch: 2, blocks: [] })); // 100 blocks now
  assert.ok(follower.lost);
});

test("a map that comes over the feed in parts is whole with the last one", () => {
  const follower = new Follower();
  follower.hear(record(7, [], { ...six, blocks: [] }));
  const part = (start, n = 7) => ({ epoch: 1, n, start, total: 6, blocks: kept.blocks.slice(start, start + 3), owners: ["a"] });
  follower.takePart(part(0));
  assert.ok(follower.lost);
  follower.hear(record(8, [], { ...six, blocks: [[5, 1, 0, "z"]] }));
  follower.takePart(part(3));
  assert.deepEqual([follower.n, follower.map.ownerOf(0), follower.map.ownerOf(5)], [8, "a", "z"]);
  follower.takePart(part(0, 6)); // older than what is known
  follower.takePart(part(3, 6));
  assert.equal(follower.n, 8);
});

test("records that come after a newer map are in it already", () => {
  const follower = new Follower();
  follower.takePart({ ...kept, epoch: 1, n: 9, start: 0 });
  follower.hear(record(7, [], { ...six, blocks: [[5, 1, 0, "z"]] }));
  follower.hear(record(9, [], { ...six, blocks: [[5, 1, 0, "z"]] }));
  assert.deepEqual([follower.lost, follower.n, follower.map.stateOf(5)], [false, 9, FREE]);
  follower.hear(record(10, [], { ...six, blocks: [[5, 1, 0, "z"]] }));
  assert.deepEqual([follower.n, follower.map.ownerOf(5)], [10, "z"]);
});

test("the map's grid shows every block, or several a cell where they are too many", () => {
  for (const [total, width] of [[64, 320], [4096, 320], [4096, 700], [100_000, 320]]) {
    const grid = gridOf(total, width, 300);
    assert.ok(grid.rows * grid.columns * grid.per >= total, `${total}`);
    assert.ok(grid.columns * grid.cell <= width && grid.rows * grid.cell <= 310, `${total}`);
    assert.equal(blockAt(grid, 1, 1, total), 0);
    assert.equal(blockAt(grid, grid.cell + 1, 1, total), grid.per);
    assert.equal(blockAt(grid, -1, 1, total), -1);
  }
  assert.equal(gridOf(4096, 320, 300).per, 1);
  assert.equal(strongest(BlockMap.of(kept), 0, 3), 1);
});

const story = () =>
  tapeOf([
    record(1, [row("b", 1)], { waiting: [waits("a")] }),
    record(2, [row("b", 1)], { waiting: [waits("a", "no_kv", "needs 6 blocks, 3 free")] }),
    record(3, [row("a", 0, "prefill", 30, 30), row("b", 1)]),
    record(4, [row("a", 0), row("b", 1)]),
    record(5, [row("a", 0), row("c", 2, "prefill", 40, 40)], { preempted: ["a"] }),
    record(6, [row("c", 2)]),
    record(7, [row("a", 0, "prefill", 32, 32), row("c", 2)]),
    record(8, [{ ...row("a", 0), tokens: 3, drafted: 2, accepted: 2 }], { finished: [{ request_id: "a", reason: "stop", seat: 0 }] }),
  ]);

test("a request's life: waiting by reason, prefill, decode, out, and in again", () => {
  const life = lifeOf(story(), "a");
  assert.deepEqual(
    life.segments.map(({ kind, reason, first, last }) => [kind, reason, first[1], last[1]]),
    [
      ["waiting", "no_seat", 1, 1],
      ["waiting", "no_kv", 2, 2],
      ["prefill", "", 3, 3],
      ["decode", "", 4, 5],
      ["out", "", 6, 6],
      ["prefill", "", 7, 7],
      ["decode", "", 8, 8],
    ],
  );
  assert.deepEqual([life.computed, life.answered, life.ended], [62, 5, true]);
  assert.equal(partsOf(life.segments).get("prefill"), 40);
  assert.equal(partsOf(life.segments).get("waiting.no_kv"), 20);
  assert.equal(lifeOf(story(), "zzz"), null);
});

test("a pause is a part of a life of its own", () => {
  const tape = tapeOf([record(1, [row("a", 0, "prefill", 30, 30)]), record(2), record(3), record(4, [row("a", 0)])]);
  const life = lifeOf(tape, "a");
  assert.deepEqual(life.segments.map(({ kind, ms }) => [kind, ms]), [["prefill", 20], ["kept", 40], ["decode", 14]]);
  assert.deepEqual([life.computed, life.answered], [30, 1]);
});

test("who is cancelled has ended, with a seat or without", () => {
  const end = { finished: [{ request_id: "a", reason: "cancelled", seat: null }] };
  const seated = [record(1, [row("a", 0, "prefill", 30, 30)]), record(2, [row("a", 0)])];
  const others = [row("b", 1)];
  for (const last of [record(3, [], end), record(3, others, end)]) {
    const life = lifeOf(tapeOf([...seated, last]), "a");
    assert.deepEqual([life.ended, life.segments.at(-1).last[1]], [true, 2]);
  }
  const waiting = record(4, others, { waiting: [waits("a")], waiting_total: 1 });
  const preempted = [...seated, record(3, others, { preempted: ["a"] }), waiting, record(5, others, end)];
  assert.equal(lifeOf(tapeOf(preempted), "a").ended, true);
  assert.equal(lifeOf(tapeOf(preempted.slice(0, 4)), "a").ended, false);
});

test("who cost it most: others' prefills in iterations where it decoded, at their price", () => {
  assert.deepEqual(dearestMates(story(), "a", { token: 0.5 }), [{ id: "c", ms: 20 }]);
  assert.deepEqual(dearestMates(story(), "b", { token: 0.5 }), [{ id: "a", ms: 15 }]);
  assert.deepEqual(dearestMates(story(), "c", null).map(({ id }) => id), ["a"]);
});

test("the address names what is looked at, and junk in it is nothing", () => {
  const words = writeLink({ engine: "engine-1", place: { epoch: 1700000000, n: 42 }, request: "r/1" });
  assert.deepEqual(readLink(words), { engine: "engine-1", epoch: 1700000000, n: 42, request: "r/1" });
  assert.equal(writeLink({ engine: "engine-1", place: null, request: null }), "");
  assert.deepEqual(readLink("?n=-3&epoch=x"), { engine: null, epoch: null, n: null, request: null });
});

test("the engine's sentences are said again with their numbers; others stand as they came", () => {
  const why = (detail, reason = "no_kv") => whyWords({ reason, detail });
  assert.equal(why("seats 8 of 8, 3 of them idle"), "no seat: 8 of 8 taken, 3 of them idle");
  assert.equal(why("needs 6 blocks, 3 free"), "needs 6 blocks, 3 free");
  assert.equal(why("2 lost their blocks in this iteration"), "blocks ran out: 2 preempted");
  assert.equal(why("the engine runs slowly, an iteration every 200 ms; 3 ahead", "paused"), "engine slow, an iteration every 200 ms; 3 ahead of it");
  assert.equal(why("40 tokens fit 50.5 ms between the tokens of 8 decoding", "no_budget"), "40 tok fit 50.5 ms between the tokens of 8 decoding");
  assert.equal(why("switching to the static policy: 3 running requests end first", "policy"), "switching to static batching: 3 running end first");
  assert.equal(why("static batch: 4 still run, 37 iterations left at most"), "static batch: 4 still run, 37 iterations left at most");
  assert.equal(why("something new"), "KV cache full: something new");
  assert.equal(why("", "no_seat"), "no seat free");
});
