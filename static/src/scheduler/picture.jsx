// The tape, the waiting lane and the charts, one above another on one time axis; drawing itself is in stage.js.
import { useEffect, useRef } from "preact/hooks";
import { t } from "../i18n/index.js";
import { count, percent } from "../lib/format.js";
import { CHART_HEIGHT, CHARTS, CHARTS_HEIGHT } from "./charts.js";
import { GONE } from "./feed.js";
import { Legend } from "./legend.jsx";
import { listen } from "./pointer.js";
import { Stage } from "./stage.js";
import * as store from "./store.js";
import { TimeBar } from "./time_bar.jsx";
import { Tooltip } from "./tooltip.jsx";
import { Standing, Transport } from "./transport.jsx";
import { keepInSight, learnTimeline } from "./travel.js";
import { WaitingLane } from "./waiting.jsx";

function summary() {
  const found = store.inspected();
  if (found === null) return t("inspector.empty");
  const { tape } = found;
  const c = found.column % tape.capacity;
  return t("tape.summary", {
    n: count(tape.n[c]),
    running: tape.rows[c] + tape.kept[c],
    seats: tape.seats[c] || "?",
    prefill: tape.prefillRows[c],
    decode: tape.rows[c] - tape.prefillRows[c],
    waiting: tape.waiting[c],
    kv: percent(tape.kvUsed[c], tape.kvTotal[c]),
  });
}

/** Marks that can be seen under this policy; those of drafts and padding only where there are some. */
function marksOf(tape) {
  const last = tape.newest();
  const lately = (name) => {
    for (let back = 0; back < Math.min(tape.length, 400); back++) if (tape[name][tape.at(back)] > 0) return true;
    return false;
  };
  const drafts = last >= 0 && (lately("accepted") || lately("rejected"));
  return ["prefill", "decode", ...(drafts ? ["drafts"] : []), "finished", "preempted", ...(lately("idle") ? ["held"] : []), ...(lately("kept") ? ["kept"] : []), ...(lately("padding") ? ["padding"] : [])];
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

function Gone() {
  return (
    <div class="idle">
      <h3>{t("gone.title")}</h3>
      <p class="muted">{t("gone.text")}</p>
    </div>
  );
}

export function Picture() {
  const box = useRef(null);
  const canvases = { tape: useRef(null), tapeOver: useRef(null), charts: useRef(null), chartsOver: useRef(null) };
  const films = { tape: useRef(null), charts: useRef(null) };
  store.beat.value;
  const tape = store.shownTape();

  useEffect(() => {
    learnTimeline(store.engine.value);
    const found = Object.fromEntries(Object.entries(canvases).map(([name, ref]) => [name, ref.current]));
    const stage = new Stage(found.tape.parentElement, found, { tape: films.tape.current, charts: films.charts.current });
    const deafen = listen(box.current, stage, found.tapeOver, found.chartsOver);
    return () => {
      deafen();
      stage.close();
    };
  }, []);

  useEffect(keepInSight); // at each beat
  const { hiddenSeats } = store.extent.value;
  return (
    <div class="picture" ref={box}>
      <section class="card" aria-labelledby="tape-title">
        <header class="card-head tape-head">
          <h2 id="tape-title">{t("tape.title")}</h2>
          <Standing />
          <Transport />
        </header>
        <div class="canvas-box" data-testid="tape" tabIndex={0} role="group" aria-label={t("tape.label")} aria-describedby="tape-summary" data-canvas="tape">
          <canvas ref={canvases.tape} aria-hidden="true" width={1} height={1} />
          <div ref={films.tape} class="film" aria-hidden="true" />
          <canvas ref={canvases.tapeOver} class="over" aria-hidden="true" />
          {tape.length === 0 && (store.engine.value.state === GONE ? <Gone /> : <Idle />)}
        </div>
        <div class="tape-foot">
          <Legend shown={marksOf(tape)} />
          {hiddenSeats > 0 && <p class="muted hidden-seats">{t("tape.hidden", { n: hiddenSeats })}</p>}
        </div>
        <p class="sr-only" id="tape-summary">
          {summary()}
        </p>
      </section>
      <WaitingLane />
      <section class="card" aria-labelledby="charts-title">
        <header class="card-head">
          <h2 id="charts-title">{t("charts.title")}</h2>
          <p class="muted">{t("charts.hint")}</p>
        </header>
        <div class="canvas-box" data-canvas="charts" role="img" aria-label={`${t("charts.title")}: ${CHARTS.map((c) => t(`chart.${c.name}`)).join("; ")}`}>
          <canvas ref={canvases.charts} aria-hidden="true" width={1} height={CHARTS_HEIGHT} />
          <div ref={films.charts} class="film" aria-hidden="true" />
          {CHARTS.map(({ name }, i) => (
            <span key={name} class="chart-title" style={{ top: `${i * CHART_HEIGHT}px` }} aria-hidden="true">
              {t(`chart.${name}`)}
            </span>
          ))}
          <canvas ref={canvases.chartsOver} class="over" aria-hidden="true" />
        </div>
        <TimeBar />
      </section>
      <Tooltip />
    </div>
  );
}
