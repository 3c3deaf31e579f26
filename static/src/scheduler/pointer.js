// The pointer and the keys on the tape and the charts: what they point at, choose, and move.
import { columnAt } from "./geometry.js";
import { TOP } from "./draw.js";
import { wake } from "./loop.js";
import { SEATED } from "./ring.js";
import * as store from "./store.js";
import { pin, release, step, zoomBy } from "./travel.js";

/** Listens on `box` (it holds all of the picture) and its canvases. Returns what undoes it. */
export function listen(box, stage, tapeCanvas, chartsCanvas) {
  const undo = [];
  const on = (target, type, listener, options) => {
    target.addEventListener(type, listener, options);
    undo.push(() => target.removeEventListener(type, listener, options));
  };
  for (const canvas of [tapeCanvas, chartsCanvas]) {
    on(canvas, "pointermove", (event) => point(event, box, stage, canvas === tapeCanvas));
    on(canvas, "pointerleave", leave);
    on(canvas, "click", (event) => choose(event, stage));
    on(canvas, "wheel", zoom, { passive: false });
  }
  on(tapeCanvas.parentElement, "keydown", (event) => key(event));
  return () => undo.forEach((one) => one());
}

function columnOf(event, stage) {
  const tape = store.shownTape();
  return stage.geometry && tape ? columnAt(stage.geometry, event.offsetX, Math.min(store.until(), tape.total), tape.oldest) : null;
}

function point(event, box, stage, onTape) {
  const column = columnOf(event, stage);
  if (column === null) {
    leave();
    return;
  }
  const row = Math.floor((event.offsetY - TOP) / stage.geometry.rowHeight);
  const seat = onTape && row >= 0 && row < stage.rows ? row : null;
  const bounds = box.getBoundingClientRect();
  store.hover.value = { column, seat, x: event.clientX - bounds.left, y: event.clientY - bounds.top };
  store.pointAt(requestAt(store.shownTape(), column, seat));
  wake();
}

function requestAt(tape, column, seat) {
  if (seat === null || seat >= tape.stride) return null;
  const cell = (column % tape.capacity) * tape.stride + seat;
  return tape.flags[cell] & SEATED ? tape.requestId(tape.request[cell]) : null;
}

function leave() {
  if (store.hover.value === null) return;
  store.hover.value = null;
  store.pointAt(null);
  wake();
}

function choose(event, stage) {
  const column = columnOf(event, stage);
  if (column === null) return;
  const tape = store.shownTape();
  const { value: pinned } = store.pinned;
  if (pinned && tape.columnOf(pinned.epoch, pinned.n) === column) release();
  else pin(column);
}

let turned = 0; // of the wheel, not yet a step of zoom
const STEP_OF_WHEEL = 40;

function zoom(event) {
  if (!event.ctrlKey) return;
  event.preventDefault();
  turned += event.deltaY;
  if (Math.abs(turned) < STEP_OF_WHEEL) return;
  zoomBy(turned > 0 ? -1 : 1);
  turned = 0;
}

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const screen = Math.max(1, store.extent.value.columns - 10);
  const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -screen, PageDown: screen };
  if (event.key in moves) step(moves[event.key]);
  else if (event.key === "+" || event.key === "=") zoomBy(1);
  else if (event.key === "-") zoomBy(-1);
  else return;
  event.preventDefault();
}
