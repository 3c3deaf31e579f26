// Ties the tape and the charts to their box: density, size, and one draw a frame while something changes.
import { t } from "../i18n/index.js";
import { onThemeChange } from "../lib/colours.js";
import { figures, scales } from "./chart_words.js";
import { CHARTS, CHARTS_HEIGHT, paintCharts, scaleTops } from "./charts.js";
import { tapeHeight } from "./draw.js";
import { Film, fit } from "./film.js";
import { names, paintFilm, REACH, seatNumbers, tapeWords } from "./frame.js";
import { layout, rowsToShow } from "./geometry.js";
import { onFrame, wake } from "./loop.js";
import { drawChartMarks, drawTapeMarks } from "./overlay.js";
import { seatsUsed } from "./readings.js";
import * as store from "./store.js";
import { readTheme } from "./theme.js";

const WORDS_MS = 100; // names and figures beside the columns change no more often: nobody can read faster
const SERIES = ["batch", "held", "queue", "prefill", "decode", "accepted", "rejected", "padding", "used", "cached", "hits"];
const words = () => ({
  ...tapeWords(),
  ...Object.fromEntries(["schedule", "forward", "sample", "commit"].map((phase) => [phase, t(`phase.${phase}`)])),
  ...Object.fromEntries(SERIES.map((name) => [`${name}One`, t(`chart.${name}One`)])),
});

export class Stage {
  /** canvases: {tape, tapeOver, charts, chartsOver}; films: {tape, charts}, the boxes between them. */
  constructor(boxes, canvases, films) {
    this.canvases = canvases;
    this.words = words();
    this.paintTape = paintFilm(this.words);
    this.films = { tape: new Film(films.tape), charts: new Film(films.charts) };
    this.beside = { tape: canvases.tape.getContext("2d", { alpha: false }), charts: canvases.charts.getContext("2d", { alpha: false }) };
    this.over = { tape: canvases.tapeOver.getContext("2d"), charts: canvases.chartsOver.getContext("2d") };
    this.tops = new Float64Array(CHARTS.length);
    this.rows = this.width = 0;
    this.key = this.saidFor = "";
    this.saidAt = this.shown = -1;
    this.isFramed = false; // what stands beside the columns and changes with the size alone is drawn
    this.isStale = false; // what stands there is of older columns
    this.scene = { marks: { hover: null, pinned: null, seat: null, spot: null }, tops: this.tops, base: new Float64Array(1024) };
    this.observer = new ResizeObserver(([entry]) => {
      this.width = Math.floor(entry.contentRect.width);
      wake();
    });
    this.observer.observe(boxes);
    this.leaveLoop = onFrame((now) => this.#draw(now));
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

  /** True while there is more to do, though nothing else asks for a frame. */
  #draw(now) {
    const engine = store.engine.value;
    const tape = store.shownTape();
    if (!engine || !tape || this.width === 0) return false;
    const until = Math.min(store.until(), tape.total);
    const isNew = until !== this.shown || tape !== this.scene.tape;
    this.shown = until;
    this.#measure(tape, engine.settings.max_num_seqs ?? 0, devicePixelRatio || 1);
    Object.assign(this.scene, { tape, geometry: this.geometry, theme: this.theme, rows: this.rows, until });
    this.#mark(tape);
    if (scaleTops(this.scene, this.tops)) {
      this.films.charts.spoil();
      this.isFramed = false;
    }
    this.films.tape.show(this.scene, tapeHeight(this.geometry, this.rows), this.paintTape, REACH);
    this.films.charts.show(this.scene, CHARTS_HEIGHT, paintCharts);
    const isLate = this.#beside(isNew, now);
    this.#marks();
    return isLate;
  }

  /** What stands beside the columns. True if some of it still waits for its time. */
  #beside(isNew, now) {
    const { scene } = this;
    const { tape, charts } = this.beside;
    const { hover, pinned, spot } = scene.marks;
    const looksAt = `${hover} ${pinned} ${spot}`;
    this.isStale ||= isNew;
    if (this.isFramed && looksAt === this.saidFor) {
      if (!this.isStale) return false;
      if (now - this.saidAt < WORDS_MS) return true;
    }
    if (!this.isFramed) this.#frame();
    names(tape, scene, this.words);
    figures(charts, scene, this.words);
    Object.assign(this, { isFramed: true, isStale: false, saidFor: looksAt, saidAt: now });
    return false;
  }

  #frame() {
    const { scene, geometry, ratio } = this;
    for (const [name, height] of [["tape", tapeHeight(geometry, this.rows)], ["charts", CHARTS_HEIGHT]]) {
      const ctx = this.beside[name];
      fit(this.canvases[name], geometry.width, height, ratio);
      ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
      ctx.fillStyle = this.theme.colour.surface;
      ctx.fillRect(0, 0, geometry.width, height);
    }
    seatNumbers(this.beside.tape, scene);
    scales(this.beside.charts, scene);
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
    this.films.tape.spoil();
    this.films.charts.spoil();
    this.isFramed = false;
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

  /** The canvases above the columns: shown only while there is something to mark, since laying them over costs time. */
  #marks() {
    const { hover, pinned, spot } = this.scene.marks;
    const isMarked = hover !== null || pinned !== null;
    this.#over("tapeOver", this.over.tape, tapeHeight(this.geometry, this.rows), isMarked || spot !== null, drawTapeMarks);
    this.#over("chartsOver", this.over.charts, CHARTS_HEIGHT, isMarked, drawChartMarks);
  }

  #over(name, ctx, height, isShown, draw) {
    const canvas = this.canvases[name];
    fit(canvas, this.geometry.width, height, this.ratio);
    canvas.style.opacity = isShown ? "" : "0"; // not hidden: it hears the pointer
    if (!isShown) return;
    ctx.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    ctx.clearRect(0, 0, this.geometry.width, height);
    draw(ctx, this.scene);
  }
}
