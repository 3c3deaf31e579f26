// Ties the canvases to their box: density, size, pointer and keys, and one draw a frame when something changed.
import { t } from "../i18n/index.js";
import { onThemeChange } from "../lib/colours.js";
import { CHART_HEIGHT, CHARTS, drawCharts } from "./charts.js";
import { drawTape, tapeHeight, TOP } from "./draw.js";
import { columnAt, layout, rowsToShow } from "./geometry.js";
import * as store from "./store.js";
import { readTheme } from "./theme.js";

const WORDS = {
  idle: t("tape.idle"),
  missed: t("tape.gap"),
  restarted: t("tape.restarted"),
  ...Object.fromEntries(CHARTS.map(({ name }) => [name, t(`chart.${name}`)])),
  ...Object.fromEntries(["schedule", "forward", "sample", "commit"].map((phase) => [phase, t(`phase.${phase}`)])),
  ...Object.fromEntries(
    ["batchOne", "queueOne", "prefillOne", "decodeOne", "usedOne", "cachedOne"].map((key) => [key, t(`chart.${key}`)]),
  ),
};

export class Stage {
  constructor(box, tapeCanvas, chartCanvas) {
    Object.assign(this, { box, tapeCanvas, chartCanvas });
    this.rows = 0;
    this.hiddenSeats = 0;
    this.frame = null;
    this.markDirty = () => (this.frame ??= requestAnimationFrame(() => this.#draw()));
    this.observer = new ResizeObserver(this.markDirty);
    this.observer.observe(box);
    store.onChange(this.markDirty);
    onThemeChange(() => {
      this.theme = null;
      this.markDirty();
    });
    for (const canvas of [tapeCanvas, chartCanvas]) {
      canvas.addEventListener("pointermove", (event) => this.#point(event));
      canvas.addEventListener("pointerleave", () => this.#leave());
      canvas.addEventListener("click", (event) => this.#pin(event));
    }
    tapeCanvas.parentElement.addEventListener("keydown", (event) => this.#key(event));
    this.markDirty();
  }

  close() {
    this.observer.disconnect();
    cancelAnimationFrame(this.frame);
    this.frame = -1; // nothing is drawn after this
  }

  #draw() {
    this.frame = null;
    const engine = store.engine.value;
    if (!engine) return;
    const { tape } = engine;
    const ratio = devicePixelRatio || 1;
    if (!this.theme || this.ratio !== ratio) {
      this.ratio = ratio;
      this.theme = readTheme(ratio);
    }
    this.#measure(tape, engine.settings.max_num_seqs ?? 0);
    const { geometry, theme, rows } = this;
    const marks = { hover: store.hover.value?.column ?? null, seat: store.hover.value?.seat ?? null, pinned: store.pinned.value };
    const scene = { tape, geometry, theme, rows, until: store.until(), marks, words: WORDS };
    drawTape(this.#context(this.tapeCanvas, tapeHeight(geometry, rows)), scene);
    drawCharts(this.#context(this.chartCanvas, CHARTS.length * CHART_HEIGHT), scene);
  }

  /** Rows only grow while a picture is up, so that it does not jump when a seat empties. */
  #measure(tape, configured) {
    const width = Math.floor(this.box.clientWidth);
    const latest = tape.newest();
    const seats = (latest >= 0 && tape.seats[latest]) || configured;
    this.rows = Math.max(Math.min(this.rows, seats || this.rows), rowsToShow(tape.seatsUsed(tape.capacity), seats));
    this.hiddenSeats = Math.max(0, seats - this.rows);
    this.geometry = layout(width, this.rows);
  }

  #context(canvas, height) {
    const { width } = this.geometry;
    const [w, h] = [Math.round(width * this.ratio), Math.round(height * this.ratio)];
    if (canvas.width !== w || canvas.height !== h) {
      canvas.width = w;
      canvas.height = h;
      canvas.style.height = `${height}px`;
    }
    const ctx = canvas.getContext("2d");
    ctx.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    return ctx;
  }

  #columnOf(event) {
    const { tape } = store.engine.value;
    return this.geometry ? columnAt(this.geometry, event.offsetX, store.until(), tape.total - tape.length) : null;
  }

  #point(event) {
    const column = this.#columnOf(event);
    if (column === null) {
      this.#leave();
      return;
    }
    const onTape = event.target === this.tapeCanvas;
    const row = Math.floor((event.offsetY - TOP) / this.geometry.rowHeight);
    const seat = onTape && row >= 0 && row < this.rows ? row : null;
    const bounds = this.box.getBoundingClientRect();
    store.hover.value = { column, seat, x: event.clientX - bounds.left, y: event.clientY - bounds.top };
    this.markDirty();
  }

  #leave() {
    if (store.hover.value === null) return;
    store.hover.value = null;
    this.markDirty();
  }

  #pin(event) {
    const column = this.#columnOf(event);
    store.pinned.value = column === store.pinned.value ? null : column;
    this.markDirty();
  }

  #key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (!step) return;
    event.preventDefault();
    const { tape } = store.engine.value;
    const oldest = Math.max(tape.total - tape.length, store.until() - this.geometry.columns);
    const from = store.pinned.value ?? store.until() - 1;
    store.pinned.value = Math.min(store.until() - 1, Math.max(oldest, from + step));
    this.markDirty();
  }
}
