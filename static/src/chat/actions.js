// What a person can do in a thread: send words, ask again.
import { ensure } from "./conversations.js";
import { isOver } from "./answer.js";
import { ask } from "./session.js";
import * as store from "./store.js";

let sending = false;

/** Sends `text` in the open conversation. False when nothing was sent; the words then stay in the composer. */
export async function send(text) {
  if (sending || !text.trim() || store.running.value) return false;
  sending = true;
  try {
    const id = await ensure(text);
    if (!id) return false;
    store.notice.value = null;
    const before = store.turns.value;
    store.turns.value = [...before, ask(id, before, text)];
    return true;
  } finally {
    sending = false;
  }
}

/** Asks again for the last answer, with the settings of now. */
export function regenerate(turn) {
  const turns = store.turns.value;
  if (turn !== turns.at(-1) || !isOver(turn.latest)) return;
  const before = turns.slice(0, -1);
  store.turns.value = [...before, ask(store.currentId.value, before, turn.user)];
}
