// All state of the chat page. Views read the signals; session.js and conversations.js write them.
import { computed, effect, signal } from "@preact/signals";
import { load, save } from "../lib/storage.js";
import { isOver } from "./answer.js";
import { cleanSettings } from "./params.js";

export const model = signal("");
export const conversations = signal(null); // null: not loaded yet
export const currentId = signal(null);
/** [{key, user, answer: Signal<Answer>}] of the open conversation. */
export const turns = signal([]);
export const opening = signal(false);
/** {code, message} that belongs to no answer, or null. */
export const notice = signal(null);
/** Words for the polite live region. */
export const news = signal("");
export const settings = signal(cleanSettings(load("chat.settings")));
export const panels = signal({ list: false, settings: load("chat.settingsOpen", false) });

effect(() => save("chat.settings", settings.value));
effect(() => save("chat.settingsOpen", panels.value.settings));

export const running = computed(() => turns.value.find((turn) => !isOver(turn.answer.value)) ?? null);

let lastKey = 0;
export function makeTurn(user, answer, extra = {}) {
  return { key: ++lastKey, user, answer: signal(answer), ...extra };
}

export function setPanel(name, open) {
  panels.value = { ...panels.value, [name]: open };
}
