import assert from "node:assert/strict";
import test from "node:test";
import { FIRST_MS, LONGEST_MS, retryDelay } from "../../static/src/lib/backoff.js";
import { colourIndex, PALETTE_SIZE } from "../../static/src/lib/colours.js";
import { duration, percent, rate, shortId } from "../../static/src/lib/format.js";
import { cleanSettings, DEFAULTS, toMessages, toParams } from "../../static/src/chat/params.js";
import { receiptFigures, receiptParts } from "../../static/src/chat/receipt.js";
import { byDay, titleFrom, toTurns } from "../../static/src/chat/records.js";

test("retries wait longer and longer, up to a bound, with jitter below it", () => {
  assert.deepEqual([0, 1, 2].map((attempt) => retryDelay(attempt, () => 1)), [FIRST_MS, FIRST_MS * 2, FIRST_MS * 4]);
  assert.equal(retryDelay(1000, () => 1), LONGEST_MS);
  assert.equal(retryDelay(3, () => 0), (FIRST_MS * 8) / 2);
});

test("durations, rates and shares for people", () => {
  assert.deepEqual([0.42, 18.44, 184.2, 2410, 61_000, Number.NaN].map(duration), ["0.4 ms", "18.4 ms", "184 ms", "2.41 s", "1 min 1 s", "–"]);
  assert.deepEqual([99.97, 999.7, 9999].map(duration), ["100 ms", "1.00 s", "10.0 s"]);
  assert.deepEqual([0, 3.14, 31.4, 1796].map(rate), ["0", "3.1", "31", "1,796"]);
  assert.deepEqual([percent(1, 1000), percent(1, 2), percent(0, 5), percent(1, 0)], ["<1 %", "50 %", "0 %", "0 %"]);
  assert.equal(shortId("0190a1b2-c3d4-7e5f-8a9b-0123456789ab"), "#789ab");
});

test("colours: the same for an id always, and all of them used", () => {
  const ids = Array.from({ length: 400 }, (_, i) => `request-${i}`);
  const seen = new Map();
  for (const id of ids) seen.set(colourIndex(id), (seen.get(colourIndex(id)) ?? 0) + 1);
  assert.equal(seen.size, PALETTE_SIZE);
  assert.ok(Math.max(...seen.values()) < 80);
  assert.equal(colourIndex("abc"), colourIndex("abc"));
});

test("settings from anywhere come out in bounds", () => {
  assert.deepEqual(cleanSettings(null), DEFAULTS);
  assert.deepEqual(cleanSettings("junk"), DEFAULTS);
  const wild = cleanSettings({ temperature: "99", max_tokens: -5, top_p: Number.NaN, top_k: 3.7, seed: "-1", stop: ["a", "a", "", 7, "b"], system: 4, extra: 1 });
  assert.deepEqual(wild, { ...DEFAULTS, temperature: 2, max_tokens: 1, top_k: 4, stop: ["a", "b"] });
  assert.equal(cleanSettings({ seed: "0042" }).seed, "42");
  assert.equal(cleanSettings({ seed: "99999999999999999999" }).seed, "");
  assert.deepEqual(cleanSettings(cleanSettings(wild)), wild);
});

test("params hold what was chosen and nothing that is off", () => {
  assert.deepEqual(toParams({ ...DEFAULTS, top_p: 1 }), { temperature: 0.7, max_tokens: 512 });
  assert.deepEqual(toParams(cleanSettings({ temperature: 0, max_tokens: 8, top_p: 0.9, top_k: 5, seed: "0", stop: ["\n"] })), {
    temperature: 0,
    max_tokens: 8,
    top_p: 0.9,
    top_k: 5,
    seed: 0,
    stop: ["\n"],
  });
});

test("messages: the system prompt, the turns so far, the new words", () => {
  const turns = [
    { user: "a", answer: { text: "b" } },
    { user: "c", answer: { text: "" } },
  ];
  assert.deepEqual(toMessages({ system: " s " }, turns, "d"), [
    { role: "system", content: "s" },
    { role: "user", content: "a" },
    { role: "assistant", content: "b" },
    { role: "user", content: "c" },
    { role: "user", content: "d" },
  ]);
  assert.deepEqual(toMessages({ system: "  " }, [], "d"), [{ role: "user", content: "d" }]);
});

test("a receipt's parts are in order, with shares that make a whole", () => {
  const { total, parts } = receiptParts({ decode: 60, queue: 20, prefill: 20, deliver: 0, total: 100 });
  assert.equal(total, 100);
  assert.deepEqual(parts.map(({ name, ms }) => [name, ms]), [["queue", 20], ["prefill", 20], ["decode", 60]]);
  assert.equal(parts.reduce((sum, part) => sum + part.share, 0), 1);
  assert.deepEqual(receiptFigures({ queue: 20, prefill: 20, decode: 100 }, 11), { first: 40, perSecond: 100 });
  const shared = { queue: 20, prefill: 20, decode: 50, batchmates: 60, deliver: 10, total: 160, details: { ttft: 50 } };
  assert.deepEqual(receiptFigures(shared, 11), { first: 50, perSecond: 100 });
  assert.deepEqual(receiptParts({}), { total: 0, parts: [] });
});

test("turns from rows: over ones are whole, others are resumed; an answer made again hides the older one", () => {
  const raw = (request_id, depth, state, text = "") => ({ request_id, ref: request_id, depth, user: `q${depth}`, text, state, finish_reason: null, error: null, usage: null, receipt: null });
  const turns = toTurns([raw("1", 1, "completed", "x"), raw("2", 3, "completed", "old"), raw("3", 3, "completed", "new"), raw("4", 5, "running")]);
  assert.deepEqual(turns.map(({ answer }) => [answer.requestId, answer.phase, answer.text]), [
    ["1", "finished", "x"],
    ["3", "finished", "new"],
    ["4", "queued", ""],
  ]);
  const [failed] = toTurns([{ ...raw("5", 1, "failed"), error: { code: "numerical_error", message: "m" } }]);
  assert.deepEqual([failed.answer.phase, failed.answer.error.code], ["failed", "numerical_error"]);
});

test("the list by day, newest first, in local days", () => {
  const now = new Date(2026, 4, 10, 0, 30);
  const at = (day, hour) => new Date(2026, 4, day, hour).getTime();
  const rows = [
    { id: "a", updatedAt: at(10, 0) },
    { id: "b", updatedAt: at(9, 23) },
    { id: "c", updatedAt: at(9, 1) },
    { id: "d", updatedAt: at(1, 1) },
  ];
  assert.deepEqual(byDay(rows.reverse(), now).map(([group, members]) => [group, members.map(({ id }) => id)]), [
    ["today", ["a"]],
    ["yesterday", ["b", "c"]],
    ["older", ["d"]],
  ]);
});

test("a title is one line and never half a character", () => {
  assert.equal(titleFrom("  a\n b  "), "a b");
  assert.equal(titleFrom("👋".repeat(80)), `${"👋".repeat(59)}…`);
});
