// The tape and its charts on two canvases: size, pointer, keys; drawing itself is in draw.js and charts.js.
import { useEffect, useRef } from "preact/hooks";
import { t } from "../i18n/index.js";
import { count, percent } from "../lib/format.js";
import { CHART_HEIGHT, CHARTS } from "./charts.js";
import { Stage } from "./stage.js";
import * as store from "./store.js";
import { Tooltip } from "./tooltip.jsx";

function summary() {
  const engine = store.engine.value;
  const column = store.inspected();
  if (column === null) return t("inspector.empty");
  const { tape } = engine;
  const c = column % tape.capacity;
  return t("tape.summary", {
    n: count(tape.n[c]),
    running: tape.rows[c],
    seats: tape.seats[c] || "?",
    prefill: tape.prefillRows[c],
    decode: tape.rows[c] - tape.prefillRows[c],
    waiting: tape.waiting[c],
    kv: percent(tape.kvUsed[c], tape.kvTotal[c]),
  });
}

function Legend() {
  return (
    <ul class="legend">
      <li>
        <svg viewBox="0 0 18 14" aria-hidden="true">
          <path class="legend-block" d="M1.5 1.5h15v11h-15z" />
          <path class="legend-line" d="M2 12L12 2M7 12L16 3M2 7l5-5M12 12l4-4" />
        </svg>
        {t("tape.prefill")}
      </li>
      <li>
        <svg viewBox="0 0 18 14" aria-hidden="true">
          <path class="legend-fill" d="M0 5h5v4H0zM6.5 5h5v4h-5zM13 5h5v4h-5z" />
        </svg>
        {t("tape.decode")}
      </li>
      <li>
        <svg viewBox="0 0 18 14" aria-hidden="true">
          <path class="legend-end" d="M8 0h2v14H8z" />
        </svg>
        {t("tape.finished")}
      </li>
      <li>
        <svg viewBox="0 0 18 14" aria-hidden="true">
          <path class="legend-dash" d="M1.5 1.5h15v11h-15z" />
        </svg>
        {t("tape.preempted")}
      </li>
    </ul>
  );
}

function Idle() {
  return (
    <div class="idle">
      <h3>{t("idle.title")}</h3>
      <p class="muted">{t("idle.text")}</p>
      <a class="button primary" href="/" target="_blank" rel="noopener">
        {t("idle.open")}
      </a>
    </div>
  );
}

export function Picture() {
  const tapeCanvas = useRef(null);
  const chartCanvas = useRef(null);
  const box = useRef(null);
  const stage = useRef(null);
  store.beat.value;
  const engine = store.engine.value;
  const empty = engine.tape.length === 0;

  useEffect(() => {
    stage.current = new Stage(box.current, tapeCanvas.current, chartCanvas.current);
    return () => stage.current.close();
  }, []);

  const hidden = stage.current?.hiddenSeats ?? 0;
  return (
    <section class="card picture" aria-labelledby="tape-title">
      <header class="card-head">
        <h2 id="tape-title">{t("tape.title")}</h2>
        <p class="muted">{t("tape.hint")}</p>
      </header>
      <div class="picture-box" ref={box}>
        <div class="canvas-box" data-testid="tape" tabIndex={0} role="group" aria-label={t("tape.label")} aria-describedby="tape-summary" data-canvas="tape">
          <canvas ref={tapeCanvas} aria-hidden="true" />
          {empty && <Idle />}
        </div>
        <div class="tape-foot">
          <Legend />
          {hidden > 0 && <p class="muted hidden-seats">{t("tape.hidden", { n: hidden })}</p>}
        </div>
        <div class="canvas-box" data-canvas="charts" role="img" aria-label={`${t("charts.title")}: ${CHARTS.map((c) => t(`chart.${c.name}`)).join("; ")}`}>
          <canvas ref={chartCanvas} aria-hidden="true" height={CHARTS.length * CHART_HEIGHT} />
        </div>
        <Tooltip />
      </div>
      <p class="sr-only" id="tape-summary">
        {summary()}
      </p>
    </section>
  );
}
