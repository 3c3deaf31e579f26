// Words for people, in the language of <html lang>. No DOM needed: in tests the language is English.
import en from "./en.js";
import zhHans from "./zh-Hans.js";

const lang = globalThis.document?.documentElement.lang ?? "en";
const catalogue = lang.toLowerCase().startsWith("zh") ? zhHans : en;

export const locale = catalogue === zhHans ? "zh-Hans" : "en";

/** The words for `key` with `{name}` filled from `values`. An unknown key shows itself: a mistake one can see. */
export function t(key, values = {}) {
  const words = catalogue[key];
  if (words === undefined) return key;
  return words.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

/** Words for a stable code (an error code, a wait reason), or `fallback` for one this page does not know. */
export function tCode(prefix, code, fallback = code) {
  return catalogue[`${prefix}.${code}`] ?? fallback;
}
