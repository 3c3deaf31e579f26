// State of the scheduler page. The tapes are plain arrays; `beat` tells the views, a few times a second, that they moved.
import { computed, signal } from "@preact/signals";
import { Socket } from "../lib/socket.js";
import { applyIterations, applySnapshot } from "./feed.js";

const CAPACITY = 1024;
const BEAT_MS = 200;

export const engines = signal(new Map());
export const chosen = signal(null);
export const known = signal(false); // a snapshot has come
export const beat = signal(0);
/** {until, latest} while the picture stands still, else null. */
export const paused = signal(null);
/** Absolute columns of the tape, or null. */
export const hover = signal(null);
export const pinned = signal(null);

export const engine = computed(() => engines.value.get(chosen.value) ?? engines.value.values().next().value ?? null);

/** Called at every change of what the canvases show. */
const listeners = new Set();
export const onChange = (listener) => listeners.add(listener);
export const changed = () => listeners.forEach((listener) => listener());

let beating = null;
function beatSoon() {
  beating ??= setTimeout(() => {
    beating = null;
    beat.value += 1;
  }, BEAT_MS);
}

function hear(message) {
  if (message.type === "snapshot") {
    engines.value = applySnapshot(engines.value, message, CAPACITY);
    known.value = true;
  } else if (message.type === "iterations") {
    const before = engines.value.size;
    applyIterations(engines.value, message, CAPACITY);
    if (engines.value.size !== before) engines.value = new Map(engines.value);
  } else {
    return;
  }
  beatSoon();
  if (!paused.value) changed();
}

export const socket = new Socket("/ws/scheduler/", { onMessage: hear });

/** One more than the newest column the picture shows. */
export const until = () => paused.value?.until ?? engine.value?.tape.total ?? 0;

export function togglePause() {
  const { value } = engine;
  paused.value = paused.value || !value ? null : { until: value.tape.total, latest: value.latest };
  changed();
}

export function choose(name) {
  chosen.value = name;
  paused.value = hover.value = pinned.value = null;
  changed();
}

/** The absolute column the inspector shows: under the pointer, held by a click, or the newest. Null if there is none. */
export function inspected() {
  const { value } = engine;
  if (!value || value.tape.length === 0) return null;
  const oldest = value.tape.total - value.tape.length;
  const wanted = hover.value?.column ?? pinned.value;
  return wanted !== null && wanted >= oldest && wanted < until() ? wanted : until() - 1;
}
