// Moves the picture through time: holds it, scrubs, jumps, and fetches what the page does not hold.
import { signal } from "@preact/signals";
import { t } from "../i18n/index.js";
import { clampZoom } from "./geometry.js";
import * as history from "./history.js";
import { wake } from "./loop.js";
import * as store from "./store.js";
import { tapeOf } from "./tape.js";
import { Timeline } from "./timeline.js";

export const loading = signal(false);
/** A sentence where a jump failed, else "". */
export const problem = signal("");

/** Where a jump is on its way to while it is being fetched, else null: further steps and the time bar go on from there. */
const heading = signal(null);
let wanted = null; // the newest jump asked for while one is being fetched

const MOST = 2000; // records the server hands out at once

export function hold(auto = false) {
  const engine = store.engine.value;
  if (!engine || store.view.value) return;
  store.view.value = { tape: engine.tape, until: engine.shown, auto };
  learnTimeline(engine);
  wake();
}

export function follow() {
  arrive();
  store.view.value = store.pinned.value = null;
  problem.value = "";
  wake();
}

/** No jump is on its way any more. */
function arrive() {
  heading.value = wanted = null;
}

/** Closes the card of the request, and takes with it what was said of it. */
export function closeRequest() {
  store.request.value = null;
  problem.value = "";
}

/** Lets go of the iteration chosen; the picture runs on if it stood still only for that. */
export function release() {
  if (store.view.value?.auto) follow();
  store.pinned.value = null;
  wake();
}

/** Chooses an absolute column of the tape shown. */
export function pin(column) {
  const tape = store.shownTape();
  if (!tape?.holds(column)) return;
  hold(true);
  store.pinned.value = placeOf(tape, column);
  wake();
}

export const placeOf = (tape, column) => ({ epoch: tape.epoch[column % tape.capacity], n: tape.n[column % tape.capacity] });

/** Chooses the iteration `by` columns further; the picture moves only as far as it must. */
export function step(by) {
  const now = store.inspected();
  if (!now) return;
  hold(true);
  const column = now.column + by;
  if (!heading.value && now.tape.holds(column)) {
    pin(column);
    const { columns } = store.extent.value;
    const { until } = store.view.value;
    show(now.tape, Math.min(Math.max(until, column + 1), column + columns));
    return;
  }
  const { timeline } = store.engine.value;
  const { epoch, n } = heading.value ?? placeOf(now.tape, now.column);
  const place = timeline.at(timeline.ordinalOf(epoch, n) + by);
  if (place) goTo(place, { choose: true });
}

function show(tape, until) {
  store.view.value = { tape, until: Math.min(until, tape.total), auto: store.view.value?.auto ?? true };
  store.hover.value = null;
  wake();
}

/** Where the newest column shown stands in all that is kept: an ordinal of the timeline. */
export function position(engine) {
  if (heading.value && store.view.value) return engine.timeline.ordinalOf(heading.value.epoch, heading.value.n);
  const tape = store.shownTape();
  const column = Math.min(store.until(), tape.total) - 1;
  if (!tape.holds(column)) return Math.max(0, engine.timeline.total - 1);
  const { epoch, n } = placeOf(tape, column);
  return engine.timeline.ordinalOf(epoch, n);
}

/** Shows iteration {epoch, n} as the newest column, or in the middle and chosen. */
export async function goTo(place, { choose = false } = {}) {
  hold(choose);
  const engine = store.engine.value;
  if (!engine) return;
  if (choose) store.pinned.value = place;
  const half = choose ? Math.ceil(store.extent.value.columns / 2) : 0;
  for (const tape of [store.shownTape(), engine.tape]) {
    const column = tape.columnOf(place.epoch, place.n);
    if (column < 0 || !isCovered(engine, tape, column + half - store.extent.value.columns)) continue;
    problem.value = "";
    arrive();
    show(tape, column + half + 1);
    return;
  }
  if (history.offers.history) heading.value = place;
  await fetchAround(engine, place, half);
}

/** Whether `tape` holds back to `column`, or there is nothing older to be had. */
function isCovered(engine, tape, column) {
  if (column >= tape.oldest || !history.offers.history) return true;
  const { epoch, n } = placeOf(tape, tape.oldest);
  return engine.timeline.ordinalOf(epoch, n) === 0 && engine.timeline.epochs[0]?.first === n;
}

async function fetchAround(engine, place, half) {
  if (!history.offers.history) {
    problem.value = t("travel.gone", { n: place.n });
    return;
  }
  if (loading.value) {
    wanted = [engine, place, half];
    return;
  }
  loading.value = true;
  const before = store.view.value;
  try {
    const tape = tapeOf(await recordsAround(engine, place, half));
    if (before && store.view.value === before) {
      // else the picture has moved on meanwhile
      const column = tape.columnAfter(place.epoch, place.n);
      const isKept = tape.columnOf(place.epoch, place.n) >= 0;
      problem.value = isKept ? "" : t("travel.gone", { n: place.n });
      if (!isKept && store.pinned.value === place) store.pinned.value = null; // what is shown is only near it
      if (tape.length) show(tape, Math.min(column, tape.total - 1) + half + 1);
    }
  } catch (error) {
    problem.value = error.message || t("error.offline");
  } finally {
    loading.value = false;
  }
  const next = wanted;
  wanted = null;
  if (next && store.view.value && store.engine.value === next[0]) await fetchAround(...next);
  else arrive();
}

/** Records of about three screens around a place, two of them before it, across restarts of the engine. */
async function recordsAround(engine, place, half) {
  const { columns } = store.extent.value;
  const { timeline } = engine;
  const screen = Math.min(columns, Math.floor(MOST / 3));
  const from = timeline.ordinalOf(place.epoch, place.n) + Math.min(half, screen) - 2 * screen;
  const records = [];
  for (const { epoch, first, last } of timeline.pieces(from, from + 3 * screen - 1)) {
    records.push(...(await history.iterations(engine.name, { epoch, first, last })).records);
  }
  return records;
}

/** Asks how far back the history reaches; an engine of which nothing has been heard has none. */
export async function learnTimeline(engine) {
  if (!history.offers.history || (engine.tape.length === 0 && engine.timeline.total === 0)) return;
  try {
    const { epochs } = await history.iterations(engine.name, { first: 0, last: 0 });
    if (!epochs?.length) return;
    const newest = engine.timeline.epochs.at(-1);
    engine.timeline = new Timeline(epochs);
    if (newest) engine.timeline.extend(newest.epoch, newest.last);
    store.beat.value += 1; // at once: a key pressed on the time bar must not mean an ordinal of the old one
  } catch {
    // What the page itself holds is still there to be looked at.
  }
}

/** Chooses an engine by name, also one that runs no more but whose history is kept. Throws where nothing is known of it. */
export async function reach(name) {
  if (store.engines.value.has(name)) {
    if (store.engine.value.name !== name || store.isAll.value) store.choose(name);
  } else {
    const { epochs } = await history.iterations(name, { first: 0, last: 0 });
    store.chooseGone(name, epochs ?? []);
  }
}

/** Opens the card of a request; the picture goes to its first iteration where that can be found. */
export async function openRequest(id, { travel = false } = {}) {
  store.request.value = id;
  if (!travel || !history.offers.history) return;
  try {
    const { engine, epoch, first } = await history.whereabouts(id);
    await reach(engine);
    store.request.value = id;
    await learnTimeline(store.engine.value);
    await goTo({ epoch, n: first }, { choose: true });
  } catch (error) {
    problem.value = error.message || t("error.offline");
  }
}

export const zoomBy = (steps) => store.setZoom(clampZoom(store.zoom.value + steps));

/** A still picture whose columns the running tape is about to overwrite is taken from the history instead. */
export function keepInSight() {
  const engine = store.engine.value;
  const { value: view } = store.view;
  if (!view || !engine || view.tape !== engine.tape || loading.value || problem.value || !history.offers.history) return;
  const { tape, until } = view;
  if (tape.oldest === 0 || until - store.extent.value.columns > tape.oldest + tape.capacity / 8 || !tape.holds(until - 1)) return;
  queueMicrotask(() => fetchAround(engine, placeOf(tape, until - 1), 0));
}
