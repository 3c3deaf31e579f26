// State of the scheduler page. The tapes are plain arrays; `beat` tells the views, a few times a second, that they moved,
// `slowBeat` those that are long.
import { computed, signal } from "@preact/signals";
import { Socket } from "../lib/socket.js";
import { applyBlocks, applyIterations, applySnapshot, goneEngine } from "./feed.js";
import { pace, zoomAtStart } from "./geometry.js";
import { onFrame, wake } from "./loop.js";

const CAPACITY = 2048;
const BEAT_MS = 200;
const SLOW_BEAT_MS = 500; // for long tables: what changes faster in them nobody reads
export const ALL = "*"; // chosen: every engine, small

export const engines = signal(new Map());
export const chosen = signal(null);
export const known = signal(false); // a snapshot has come
export const beat = signal(0);
export const slowBeat = signal(0);
/** {tape, until, auto} while the picture stands still (`auto`: because an iteration was chosen), else null. */
export const view = signal(null);
/** {column, seat, x, y} under the pointer, or null. */
export const hover = signal(null);
/** {epoch, n} of the iteration chosen, or null. */
export const pinned = signal(null);
/** Id of the request pointed at, anywhere on the page, or null. */
export const spot = signal(null);
/** Id of the request whose card is open, or null. */
export const request = signal(null);
export const zoom = signal(zoomAtStart(globalThis.innerWidth ?? 1200));
/** What the canvases last found: how many columns fit, how many seats are not shown. */
export const extent = signal({ columns: 100, hiddenSeats: 0 });

export const isAll = computed(() => chosen.value === ALL && engines.value.size > 1);
export const engine = computed(() => engines.value.get(chosen.value) ?? engines.value.values().next().value ?? null);

let beating = null;
let beatingSlowly = null;
export function beatSoon() {
  beatingSlowly ??= setTimeout(() => {
    beatingSlowly = null;
    slowBeat.value += 1;
  }, SLOW_BEAT_MS);
  beating ??= setTimeout(() => {
    beating = null;
    if (document.hidden) for (const one of engines.value.values()) one.shown = one.tape.total; // no frames are drawn
    beat.value += 1;
  }, BEAT_MS);
}

/** Whether the engine on the page stays there when it goes. A page that just runs moves on to one that runs, if any does. */
const stays = (running) => !isAll.value && (view.value !== null || chosen.value !== null || running.length === 0);

function hear(message) {
  if (message.type === "snapshot") {
    const lookedAt = stays(message.engines) ? engine.value?.name : null;
    const next = applySnapshot(engines.value, message, CAPACITY, lookedAt);
    if (lookedAt && view.value) chosen.value = lookedAt; // the picture that is held is of this one, whichever comes first
    engines.value = next;
    known.value = true;
  } else if (message.type === "iterations") {
    const before = engines.value.size;
    applyIterations(engines.value, message, CAPACITY);
    if (engines.value.size !== before) engines.value = new Map(engines.value);
  } else if (message.type === "blocks") {
    applyBlocks(engines.value, message);
  } else {
    return;
  }
  beatSoon();
  wake();
}

export const socket = new Socket("/ws/scheduler/", { onMessage: hear });

/** Moves every engine's picture on towards its newest column; true while there is more to come. */
const calm = matchMedia("(prefers-reduced-motion: reduce)");
onFrame(() => {
  let more = false;
  for (const one of engines.value.values()) {
    const due = one.tape.total - one.shown;
    one.shown += calm.matches ? due : pace(due);
    more ||= one.shown < one.tape.total;
  }
  return more;
});

export const shownTape = () => view.value?.tape ?? engine.value?.tape ?? null;

/** One more than the newest column the picture shows, on `shownTape()`. */
export const until = () => view.value?.until ?? engine.value?.shown ?? 0;

export function choose(name) {
  chosen.value = name;
  view.value = hover.value = pinned.value = spot.value = request.value = null;
  wake();
}

/** Chooses an engine that runs no more, to look at its history. */
export function chooseGone(name, epochs) {
  engines.value = new Map(engines.value).set(name, goneEngine(name, CAPACITY, epochs));
  choose(name);
}

export function setZoom(level) {
  zoom.value = level;
  wake();
}

export function pointAt(id) {
  if (spot.value === id) return;
  spot.value = id;
  wake();
}

/** {tape, column} the inspector shows: chosen, under the pointer, or the newest shown. Null if there is none. */
export function inspected() {
  const tape = shownTape();
  if (!tape || tape.length === 0) return null;
  if (hover.value && pinned.value === null && tape.holds(hover.value.column)) return { tape, column: hover.value.column };
  const column = pinned.value ? tape.columnOf(pinned.value.epoch, pinned.value.n) : -1;
  if (column >= 0) return { tape, column };
  const newest = Math.min(until(), tape.total) - 1;
  return newest >= tape.oldest ? { tape, column: newest } : null;
}
