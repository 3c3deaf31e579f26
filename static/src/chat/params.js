// The generation settings a person can choose: their bounds, their defaults, and the `params` of a message.

export const FIELDS = {
  temperature: { min: 0, max: 2, step: 0.1, fallback: 0.7 },
  max_tokens: { min: 1, max: 4096, step: 1, fallback: 512, whole: true },
  top_p: { min: 0.05, max: 1, step: 0.05, fallback: 0.95 },
  top_k: { min: 0, max: 200, step: 1, fallback: 0, whole: true },
};

export const DEFAULTS = {
  temperature: 0.7,
  max_tokens: 512,
  top_p: 0.95,
  top_k: 0,
  seed: "",
  stop: [],
  system: "",
};

export const MAX_STOPS = 4;
const MAX_SEED = 2 ** 53 - 1;

function number(value, field, fallback) {
  const parsed = typeof value === "number" ? value : Number.parseFloat(value);
  if (!Number.isFinite(parsed)) return fallback;
  const bounded = Math.min(field.max, Math.max(field.min, parsed));
  return field.whole ? Math.round(bounded) : Math.round(bounded * 1000) / 1000;
}

/** Whatever storage or a form holds, made into settings that are in bounds. */
export function cleanSettings(raw) {
  const given = raw && typeof raw === "object" ? raw : {};
  const settings = { ...DEFAULTS };
  for (const [name, field] of Object.entries(FIELDS)) settings[name] = number(given[name], field, field.fallback);
  const seed = String(given.seed ?? "").trim();
  settings.seed = /^\d{1,16}$/.test(seed) && Number(seed) <= MAX_SEED ? String(Number(seed)) : "";
  settings.stop = Array.isArray(given.stop)
    ? [...new Set(given.stop.filter((s) => typeof s === "string" && s !== ""))].slice(0, MAX_STOPS)
    : [];
  settings.system = typeof given.system === "string" ? given.system.slice(0, 8000) : "";
  return settings;
}

/** The contract's `params`: only what differs from "not set" is sent. */
export function toParams(settings) {
  const params = { temperature: settings.temperature, max_tokens: settings.max_tokens };
  if (settings.top_p < 1) params.top_p = settings.top_p;
  if (settings.top_k > 0) params.top_k = settings.top_k;
  if (settings.seed !== "") params.seed = Number(settings.seed);
  if (settings.stop.length) params.stop = settings.stop;
  return params;
}

/** The messages of a request: the system prompt, what was said before, and the new words. */
export function toMessages(settings, turns, text) {
  const messages = settings.system.trim() ? [{ role: "system", content: settings.system.trim() }] : [];
  for (const turn of turns) {
    messages.push({ role: "user", content: turn.user });
    if (turn.answer.text) messages.push({ role: "assistant", content: turn.answer.text });
  }
  messages.push({ role: "user", content: text });
  return messages;
}
