import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import test from "node:test";
import { t, tCode } from "../../static/src/i18n/index.js";
import en from "../../static/src/i18n/en.js";
import zhHans from "../../static/src/i18n/zh-Hans.js";

const source = fileURLToPath(new URL("../../static/src/", import.meta.url));
const placeholders = (words) => [...words.matchAll(/\{(\w+)\}/g)].map((match) => match[1]).sort();

test("both languages have the same keys", () => {
  assert.deepEqual(Object.keys(zhHans).sort(), Object.keys(en).sort());
});

test("both languages fill the same places, and no words are empty", () => {
  for (const key of Object.keys(en)) {
    assert.deepEqual(placeholders(zhHans[key]), placeholders(en[key]), key);
    assert.ok(en[key].trim() && zhHans[key].trim(), key);
  }
});

test("every key the source names exists", () => {
  const files = readdirSync(source, { recursive: true }).filter((name) => /\.jsx?$/.test(name) && !name.startsWith("i18n"));
  let named = 0;
  for (const file of files) {
    for (const [, key] of readFileSync(source + file, "utf8").matchAll(/\bt\("([\w.]+)"/g)) {
      named += 1;
      assert.ok(key in en, `${file} names ${key}`);
    }
  }
  assert.ok(named > 50);
});

test("every wait reason and every error code of the contract has words", () => {
  for (const reason of ["no_seat", "no_kv", "no_budget", "policy", "behind", "user_cap", "paused"]) {
    assert.ok(`reason.${reason}` in en, reason);
  }
  for (const code of ["prompt_too_long", "too_large", "queue_full", "rate_limited", "unauthorized", "forbidden", "not_found", "conflict", "numerical_error", "engine_unavailable", "draining", "internal"]) {
    assert.ok(`error.${code}` in en, code);
  }
});

test("values are filled in, unknown codes show themselves", () => {
  assert.equal(t("chat.turn", { n: 3 }), "Turn 3");
  assert.equal(t("chat.turn"), "Turn {n}");
  assert.equal(tCode("reason", "no_seat"), "no seat free");
  assert.equal(tCode("reason", "brand_new"), "brand_new");
});
