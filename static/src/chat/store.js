// All state of the chat page. Views read the signals; session.js and conversations.js write them.
import { batch, computed, effect, signal } from "@preact/signals";
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
/** A turn: `latest` is the answer as it stands, `answer` (a signal) the same as far as it is shown. */
export function makeTurn(user, answer, extra = {}) {
  return { key: ++lastKey, user, latest: answer, answer: signal(answer), ...extra };
}

const unshown = new Set();

/** Gives a turn a new answer. With `soon` it shows at the next frame: many deltas, one render. */
export function setAnswer(turn, answer, { soon = false } = {}) {
  turn.latest = answer;
  if (!soon) {
    unshown.delete(turn);
    turn.answer.value = answer;
    return;
  }
  if (unshown.size === 0) nextFrame(showAll);
  unshown.add(turn);
}

function showAll() {
  batch(() => {
    for (const turn of unshown) turn.answer.value = turn.latest;
  });
  unshown.clear();
}

/** A hidden tab has no frames; a timer stands in. */
const nextFrame = (work) => (document.hidden ? setTimeout(work, 200) : requestAnimationFrame(work));

export function setPanel(name, open) {
  panels.value = { ...panels.value, [name]: open };
}
