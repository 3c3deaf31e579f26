// Orders to the engine, for teaching: pause, step, slow, policy, seats, budget, blocks, and a dozen requests.
import { signal } from "@preact/signals";
import { t } from "../i18n/index.js";
import { api } from "../lib/api.js";
import * as store from "./store.js";

/** {action, state: "busy" | "done" | "error", words} of the newest order. */
export const order = signal(null);

async function send(action, path, body, done) {
  order.value = { action, state: "busy", words: t("control.busy") };
  try {
    const answer = await api("POST", path, body);
    order.value = { action, state: "done", words: done };
    return answer ?? {};
  } catch (error) {
    const words = error.message || t(error.status === 0 ? "error.offline" : "error.internal");
    order.value = { action, state: "error", words };
    return null;
  }
}

/** Sends an order; once it is taken the page shows what it will lead to, until the engine tells itself. */
export async function command(action, fields = {}) {
  const engine = store.engine.value;
  engine.dismissed = engine.refused?.at ?? null;
  const taken = await send(action, "/scheduler/control/", { engine: engine.name, action, ...fields }, t(`control.done.${action}`));
  if (!taken) return;
  if (action === "pause") engine.paused = true;
  if (action === "resume") engine.paused = false;
  if (action === "slow") engine.slowMs = fields.ms;
  if (action === "policy") engine.settings = { ...engine.settings, next_policy: fields.policy === engine.settings.policy ? null : fields.policy };
  if (action === "set") engine.settings = { ...engine.settings, ...fields };
  store.beatSoon();
}

/** What the engine last refused, {text, at}, until the next order; null where there is nothing to tell. */
export const refusal = ({ refused, dismissed }) => (refused && refused.at !== dismissed ? refused : null);

export const demo = () => send("demo", "/scheduler/demo/", {}, t("control.done.demo"));
