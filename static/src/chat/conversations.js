// The conversations on the server: list, open, make, rename, delete. Errors become the page's notice.
import { batch } from "@preact/signals";
import { api } from "../lib/api.js";
import { isOver } from "./answer.js";
import { titleFrom, toConversation, toTurns } from "./records.js";
import * as store from "./store.js";

const BASE = "/api/conversations/";
const path = (id) => `${BASE}${encodeURIComponent(id)}/`;

/** Turns of conversations that were left while their answer was still coming. */
const kept = new Map();

async function guarded(work) {
  try {
    return await work();
  } catch (error) {
    store.notice.value = { code: error.code ?? "internal", message: error.message };
    return undefined;
  }
}

export const loadList = () =>
  guarded(async () => {
    const data = await api("GET", BASE);
    store.conversations.value = (data.conversations ?? data).map(toConversation);
  });

export async function fetchTurns(id) {
  const data = await api("GET", path(id));
  return toTurns(data.turns ?? []);
}

/** The open conversation's id stands in the address, so that a reload comes back to it. */
export const idInAddress = () => new URLSearchParams(location.search).get("c");

function showInAddress(id, replace = false) {
  const address = id ? `/?c=${encodeURIComponent(id)}` : "/";
  if (address === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", address);
}

function leave() {
  const id = store.currentId.value;
  if (id && store.turns.value.some((turn) => !isOver(turn.latest))) kept.set(id, store.turns.value);
}

function show(id, turns) {
  batch(() => {
    store.currentId.value = id;
    store.turns.value = turns;
    store.notice.value = null;
  });
  store.setPanel("list", false);
}

export function openNew({ address = true } = {}) {
  leave();
  show(null, []);
  if (address) showInAddress(null);
}

/** Opens a conversation; `onUnfinished` gets each turn whose answer is still being made. */
export async function open(id, onUnfinished, { address = true } = {}) {
  leave();
  if (address) showInAddress(id);
  if (kept.has(id)) {
    show(id, kept.get(id));
    kept.delete(id);
    return;
  }
  store.opening.value = true;
  show(id, []);
  const rows = await guarded(() => fetchTurns(id));
  store.opening.value = false;
  if (store.currentId.value !== id) return; // another one was opened meanwhile
  if (!rows) {
    show(null, []);
    showInAddress(null, true);
    store.notice.value = { code: "not_found", message: "" };
    return;
  }
  const turns = rows.map((row) => store.makeTurn(row.user, row.answer, { message: { conversation: id } }));
  store.turns.value = turns;
  for (const turn of turns) if (!isOver(turn.latest)) onUnfinished(turn);
}

/** The open conversation's id; a new chat gets one here, at its first message. */
export async function ensure(text) {
  if (store.currentId.value) return store.currentId.value;
  const made = await guarded(() => api("POST", BASE, { title: titleFrom(text) }));
  if (!made) return null;
  const row = toConversation(made);
  batch(() => {
    store.currentId.value = row.id;
    store.conversations.value = [row, ...(store.conversations.value ?? [])];
  });
  showInAddress(row.id, true);
  return row.id;
}

/** A conversation that was just used goes to the top. */
export function touch(id) {
  store.conversations.value = (store.conversations.value ?? []).map((row) =>
    row.id === id ? { ...row, updatedAt: Date.now() } : row,
  );
}

export const rename = (id, title) =>
  guarded(async () => {
    const clean = titleFrom(title, 200);
    if (!clean) return;
    await api("PATCH", path(id), { title: clean });
    store.conversations.value = store.conversations.value.map((row) => (row.id === id ? { ...row, title: clean } : row));
  });

export const remove = (id) =>
  guarded(async () => {
    await api("DELETE", path(id));
    kept.delete(id);
    store.conversations.value = store.conversations.value.filter((row) => row.id !== id);
    if (store.currentId.value === id) openNew();
  });
