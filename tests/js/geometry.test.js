import assert from "node:assert/strict";
import test from "node:test";
import { CHARTS, roundUp, scaleTops } from "../../static/src/scheduler/charts.js";
import { columnAt, columnX, layout, pace, PITCHES, prefillHeight, rowsToShow } from "../../static/src/scheduler/geometry.js";
import { Tape } from "../../static/src/scheduler/tape.js";
import { record, row } from "./support/records.js";

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

test("the picture goes on evenly, and all at once when it has fallen behind", () => {
  assert.deepEqual([0, 1, 3, 6].map(pace), [0, 1, 1, 2]);
  assert.equal(pace(500), 500);
});

test("columns lie on device pixels at every zoom and density", () => {
  for (const ratio of [1, 1.25, 1.5, 2, 3]) {
    for (let zoom = 0; zoom < PITCHES.length; zoom++) {
      const { pitch, left, columns, end, width, right } = layout(1000, 16, zoom, ratio);
      for (const edge of [pitch * ratio, left * ratio]) assert.ok(Math.abs(edge - Math.round(edge)) < 1e-6, `${zoom} ${ratio}`);
      assert.ok(Math.abs(end - (left + columns * pitch)) < 1e-6 && end <= width - right + 1e-6);
    }
  }
});

test("a chart's scale holds all it shows, but does not stretch for padding", () => {
  const tape = new Tape(8);
  tape.push(record(1, [row("a", 0, "prefill", 30, 30), row("b", 1, "prefill", 20, 20)], { padding: 4000, waiting_total: 230 }));
  tape.push(record(2, [row("a", 0), row("b", 1)]));
  const tops = new Float64Array(CHARTS.length);
  const scene = { tape, until: 2, geometry: { columns: 10 } };
  assert.ok(scaleTops(scene, tops));
  const topOf = (name) => tops[CHARTS.findIndex((chart) => chart.name === name)];
  assert.deepEqual(["tokens", "queue", "batch", "kv", "hits"].map(topOf), [50, 300, 8, 100, 100]);
  assert.ok(!scaleTops(scene, tops)); // nothing has changed
});
