// Ties the tape and the charts to their box: density, size, and one draw a frame while something changes.
import { t } from "../i18n/index.js";
import { onThemeChange } from "../lib/colours.js";
import { drawChartWords } from "./chart_words.js";
import { CHARTS, CHARTS_HEIGHT, paintCharts, scaleTops } from "./charts.js";
import { paintTape, tapeHeight } from "./draw.js";
import { layout, rowsToShow } from "./geometry.js";
import { onFrame, wake } from "./loop.js";
import { drawOverlay } from "./overlay.js";
import { seatsUsed } from "./readings.js";
import * as store from "./store.js";
import { fit, Strip } from "./strip.js";
import { readTheme } from "./theme.js";

const SERIES = ["batch", "held", "queue", "prefill", "decode", "accepted", "rejected", "padding", "used", "cached", "hits"];
const words = () => ({
  idle: t("tape.idle"),
  held: t("tape.heldShort"),
  missed: t("tape.gap"),
  restarted: t("tape.restarted"),
  ...Object.fromEntries(CHARTS.map(({ name }) => [name, t(`chart.${name}`)])),
  ...Object.fromEntries(["schedule", "forward", "sample", "commit"].map((phase) => [phase, t(`phase.${phase}`)])),
  ...Object.fromEntries(SERIES.map((name) => [`${name}One`, t(`chart.${name}One`)])),
});

export class Stage {
  /** canvases: {tape, tapeOver, charts, chartsOver}. */
  constructor(boxes, canvases) {
    this.canvases = canvases;
    this.words = words();
    this.strips = { tape: new Strip(canvases.tape), charts: new Strip(canvases.charts) };
    this.over = { tape: canvases.tapeOver.getContext("2d"), charts: canvases.chartsOver.getContext("2d") };
    this.tops = new Float64Array(CHARTS.length);
    this.rows = this.width = 0;
    this.key = "";
    this.scene = { marks: { hover: null, pinned: null, seat: null, spot: null }, tops: this.tops };
    this.observer = new ResizeObserver(([entry]) => {
      this.width = Math.floor(entry.contentRect.width);
      wake();
    });
    this.observer.observe(boxes);
    this.leaveLoop = onFrame(() => this.#draw());
    this.leaveTheme = onThemeChange(() => {
      this.theme = null;
      wake();
    });
    wake();
  }

  close() {
    this.observer.disconnect();
    this.leaveLoop();
    this.leaveTheme();
  }

  #draw() {
    const engine = store.engine.value;
    const tape = store.shownTape();
    if (!engine || !tape || this.width === 0) return false;
    const ratio = devicePixelRatio || 1;
    this.#measure(tape, engine.settings.max_num_seqs ?? 0, ratio);
    const { scene, geometry, strips } = this;
    Object.assign(scene, { tape, geometry, theme: this.theme, rows: this.rows, until: Math.min(store.until(), tape.total) });
    this.#mark(tape);
    if (scaleTops(scene, this.tops)) strips.charts.spoil();
    strips.tape.show(scene, tapeHeight(geometry, this.rows), paintTape);
    strips.charts.show(scene, CHARTS_HEIGHT, paintCharts);
    this.#over(this.canvases.tapeOver, this.over.tape, tapeHeight(geometry, this.rows));
    drawOverlay(this.over.tape, scene, this.words);
    this.#over(this.canvases.chartsOver, this.over.charts, CHARTS_HEIGHT);
    drawChartWords(this.over.charts, scene, this.words);
    return false;
  }

  /** Rows only grow while a picture is up, so that it does not jump when a seat empties. */
  #measure(tape, configured, ratio) {
    const latest = tape.newest();
    const seats = (latest >= 0 && tape.seats[latest]) || configured;
    if (this.countedAt !== tape.total || this.counted !== tape) {
      this.used = seatsUsed(tape, this.counted === tape ? tape.total - this.countedAt : tape.length);
      [this.counted, this.countedAt] = [tape, tape.total];
    }
    this.rows = Math.max(Math.min(this.rows, seats || this.rows), rowsToShow(this.used, seats));
    const key = `${this.width} ${this.rows} ${store.zoom.value} ${ratio}`;
    if (this.theme && key === this.key) return;
    if (!this.theme || this.ratio !== ratio) this.theme = readTheme(ratio);
    this.key = key;
    this.ratio = ratio;
    this.geometry = layout(this.width, this.rows, store.zoom.value, ratio);
    this.scene.base = new Float64Array(this.geometry.columns + 8);
    this.strips.tape.spoil();
    this.strips.charts.spoil();
    const extent = { columns: this.geometry.columns, hiddenSeats: Math.max(0, seats - this.rows) };
    queueMicrotask(() => (store.extent.value = extent)); // after this frame's drawing: it renders views
  }

  #mark(tape) {
    const { marks } = this.scene;
    const { value: hover } = store.hover;
    const { value: pinned } = store.pinned;
    marks.hover = hover?.column ?? null;
    marks.seat = hover?.seat ?? null;
    marks.pinned = pinned ? tape.columnOf(pinned.epoch, pinned.n) : null;
    if (marks.pinned === -1) marks.pinned = null;
    marks.spot = store.spot.value ?? store.request.value;
  }

  #over(canvas, ctx, height) {
    fit(canvas, this.geometry.width, height, this.ratio);
    ctx.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
  }
}
