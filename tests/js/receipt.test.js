import assert from "node:assert/strict";
import test from "node:test";
import { newAnswer, reduceAnswer, remaining } from "../../static/src/chat/answer.js";
import { queueReasons, receiptDetails } from "../../static/src/chat/receipt.js";
import { finder, iterationAt, iterationLink, pieces, requestLink } from "../../static/src/chat/words.js";

const MARKS = [[3, 10], [9, 11], [12, 14]];

test("a character is of the first iteration whose text reaches beyond it", () => {
  assert.deepEqual([0, 2, 3, 8, 9, 11, 12].map((offset) => iterationAt(MARKS, offset)), [10, 10, 11, 11, 14, 14, null]);
  assert.equal(iterationAt([], 0), null);
});

test("an answer remembers which iteration made what, as far as it has heard it", () => {
  const delta = (seq, text, iteration) => ({ type: "delta", request_id: "r", seq, text, tokens: 1, iteration });
  let answer = reduceAnswer(newAnswer("a"), { type: "accepted", ref: "a", request_id: "r", position: 0 });
  for (const message of [delta(1, "One", 7), delta(2, " two", 9), delta(2, " two", 9), delta(4, "x", 12)]) answer = reduceAnswer(answer, message);
  assert.deepEqual(answer.marks, [[3, 7], [7, 9]]);
});

test("shown words are found in their Markdown, in order, each once", () => {
  const source = "**the** cat and `the` dog";
  const marks = [...source].map((_, i) => [i + 1, i]);
  const find = finder(source, marks);
  assert.deepEqual(["the", "cat", "and", "the", "dog"].map(find), [2, 8, 12, 17, 22]);
  assert.equal(find("missing"), null);
});

test("a text is its pieces, with or without spaces between words", () => {
  for (const text of ["Two words.", "批处理很快。", " a  b ", ""]) {
    assert.equal(pieces(text).map((piece) => piece.text).join(""), text);
  }
  assert.deepEqual(pieces("Two words.").filter((piece) => piece.isWord).map((piece) => piece.text), ["Two", "words"]);
  assert.ok(pieces("批处理很快").filter((piece) => piece.isWord).length > 1);
});

test("links name what they lead to", () => {
  assert.equal(iterationLink({ engine: "gpu 1", epoch: 17 }, 5), "/scheduler/?engine=gpu+1&epoch=17&n=5");
  assert.equal(requestLink("a-b"), "/scheduler/?request=a-b");
});

test("why it waited, the longest first; what is too short to show is left out", () => {
  const receipt = { queue: 30.01, details: { queue: { accept: 2, no_seat: 20, behind: 8, paused: 0.01 } } };
  assert.deepEqual(queueReasons(receipt).map(({ reason }) => reason), ["no_seat", "behind", "accept"]);
  assert.deepEqual(queueReasons({ queue: 5 }), []);
});

test("a receipt without details says nothing more", () => {
  assert.deepEqual(receiptDetails({ total: 5 }), { batchmates: [], caused: 0, preemptions: 0, first: null, last: null, place: null });
  const details = { engine: "e", epoch: 3, first_iteration: 0, last_iteration: 0, batchmates: [{ request_id: "x", ms: 0.001 }], caused: 4, preemptions: 1 };
  assert.deepEqual(receiptDetails({ details }), { batchmates: [], caused: 4, preemptions: 1, first: null, last: null, place: { engine: "e", epoch: 3 } });
});

test("an estimate comes down with time, and never below zero", () => {
  const queued = { type: "queued", request_id: "r", position: 0, reason: "no_seat", eta_ms: 900 };
  const accepted = reduceAnswer(newAnswer("a"), { type: "accepted", ref: "a", request_id: "r", position: 0 });
  const answer = reduceAnswer(accepted, queued, 1000);
  assert.deepEqual([1000, 1500, 5000].map((now) => remaining(answer, now)), [900, 400, 0]);
  assert.equal(remaining(reduceAnswer(accepted, { ...queued, eta_ms: null }, 1000), 1500), null);
});
