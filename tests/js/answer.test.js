import assert from "node:assert/strict";
import test from "node:test";
import { concerns, isOver, liveFigures, newAnswer, reduceAnswer, resumeMessage } from "../../static/src/chat/answer.js";

const ID = "r1";
const delta = (seq, text, extra = {}) => ({ type: "delta", request_id: ID, seq, text, tokens: 1, ...extra });
const finished = (seq, extra = {}) => ({
  type: "finished",
  request_id: ID,
  seq,
  finish_reason: "stop",
  usage: { prompt_tokens: 3, completion_tokens: seq - 1, cached_tokens: 0 },
  receipt: { total: 10 },
  ...extra,
});
const accepted = { type: "accepted", ref: "a", request_id: ID, position: 2 };
const play = (messages, start = newAnswer("a", 0)) =>
  messages.reduce((answer, message, i) => reduceAnswer(answer, message, (i + 1) * 100), start);

test("a whole answer: sending, queued, streaming, finished", () => {
  const phases = [];
  let answer = newAnswer("a", 0);
  for (const message of [accepted, delta(1, "He"), delta(2, "llo"), finished(3)]) {
    phases.push(answer.phase);
    answer = reduceAnswer(answer, message, 5);
  }
  assert.deepEqual([...phases, answer.phase], ["sending", "queued", "streaming", "streaming", "finished"]);
  assert.equal(answer.text, "Hello");
  assert.deepEqual(answer.receipt, { total: 10 });
  assert.ok(isOver(answer));
});

test("a delta that was seen already changes nothing", () => {
  const answer = play([accepted, delta(1, "a"), delta(2, "b")]);
  assert.equal(reduceAnswer(answer, delta(1, "a")), answer);
  assert.equal(reduceAnswer(answer, delta(2, "b")), answer);
});

test("a gap in seq is never shown: it asks for a resume, and the log fills it", () => {
  const holed = play([accepted, delta(1, "a"), delta(3, "c"), delta(4, "d")]);
  assert.equal(holed.text, "a");
  assert.equal(holed.gap, true);
  assert.deepEqual(resumeMessage(holed), { type: "resume", request_id: ID, after_seq: 1 });
  const whole = play([delta(2, "b"), delta(3, "c"), delta(3, "c"), delta(4, "d"), finished(5)], holed);
  assert.equal(whole.text, "abcd");
  assert.equal(whole.gap, false);
  assert.equal(whole.phase, "finished");
});

test("a finish that comes before the last delta waits for it", () => {
  const early = play([accepted, delta(1, "a"), finished(3)]);
  assert.equal(early.phase, "streaming");
  assert.equal(early.gap, true);
  assert.equal(play([delta(2, "b"), finished(3)], early).text, "ab");
});

test("deltas put together by the server say where they start", () => {
  assert.equal(play([accepted, delta(1, "a"), delta(4, "bcd", { first_seq: 2, tokens: 3 })]).text, "abcd");
  assert.equal(play([accepted, delta(1, "a"), delta(4, "cd", { first_seq: 3 })]).text, "a");
});

test("any cut and resume gives the same text as no cut", () => {
  const words = ["one ", "two ", "three ", "four ", "five"];
  const log = [...words.map((word, i) => delta(i + 1, word)), finished(words.length + 1)];
  for (let cut = 0; cut <= words.length; cut++) {
    for (let overlap = 0; overlap <= cut; overlap++) {
      const before = play([accepted, ...log.slice(0, cut)]);
      const after = play(log.slice(cut - overlap), before);
      assert.equal(after.text, words.join(""), `cut ${cut}, overlap ${overlap}`);
      assert.equal(after.phase, "finished");
    }
  }
});

test("queued tells place and reason, and is too late once tokens flow", () => {
  const queued = { type: "queued", request_id: ID, position: 4, reason: "no_kv", eta_ms: 900 };
  const waiting = play([accepted, queued]);
  assert.deepEqual([waiting.phase, waiting.position, waiting.reason, waiting.etaMs], ["queued", 4, "no_kv", 900]);
  const streaming = play([accepted, delta(1, "a")]);
  assert.equal(reduceAnswer(streaming, queued), streaming);
});

test("errors end an answer and keep the part so far", () => {
  const failed = play([accepted, delta(1, "part"), { type: "error", request_id: ID, code: "numerical_error", message: "m" }]);
  assert.deepEqual([failed.phase, failed.text, failed.error.code], ["failed", "part", "numerical_error"]);
  assert.equal(resumeMessage(failed), null);
  assert.equal(reduceAnswer(failed, delta(2, "x")), failed);
  assert.equal(play([accepted, finished(1, { finish_reason: "error" })]).phase, "failed");
});

test("a message is matched by request id, and by ref only before there is one", () => {
  const fresh = newAnswer("a");
  assert.ok(concerns(fresh, accepted));
  assert.ok(!concerns(fresh, { ...accepted, ref: "b" }));
  assert.ok(!concerns(fresh, delta(1, "x")));
  const known = reduceAnswer(fresh, accepted);
  assert.ok(concerns(known, delta(1, "x")));
  assert.ok(!concerns(known, { ...delta(1, "x"), request_id: "r2" }));
  assert.ok(!concerns(known, { type: "error", request_id: "r2", ref: "a" }));
});

test("figures: time to the first token, then the rate after it", () => {
  const answer = play([accepted, delta(1, "a"), delta(2, "b"), delta(3, "c")]); // at 200, 300, 400
  assert.deepEqual(liveFigures(answer, 400), { first: 200, perSecond: 10, tokens: 3 });
  assert.equal(liveFigures(newAnswer("a", 0), 50).first, null);
});
