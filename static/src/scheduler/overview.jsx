// All engines at once: a small tape each, one above another. A click picks one.
import { useEffect, useRef } from "preact/hooks";
import { t } from "../i18n/index.js";
import { onThemeChange } from "../lib/colours.js";
import { count, percent } from "../lib/format.js";
import { tapeHeight } from "./draw.js";
import { Film } from "./film.js";
import { paintFilm, REACH, tapeWords } from "./frame.js";
import { layout } from "./geometry.js";
import { onFrame, wake } from "./loop.js";
import { EngineNotes } from "./parts.jsx";
import * as store from "./store.js";
import { readTheme } from "./theme.js";

/** Of all tapes together, and of one at least. */
const HEIGHT_PX = 600;
const LEAST_PX = 110;
const ROW_PX = 18;

function useSmallTape(box, engine) {
  useEffect(() => {
    const film = new Film(box.current);
    const paint = paintFilm(tapeWords());
    let [theme, width, key] = [null, 0, ""];
    const observer = new ResizeObserver(([entry]) => {
      width = Math.floor(entry.contentRect.width);
      wake();
    });
    observer.observe(box.current.parentElement);
    const leaveTheme = onThemeChange(() => {
      theme = null;
      wake();
    });
    const leaveLoop = onFrame(() => {
      if (width === 0) return false;
      const { tape } = engine;
      const ratio = devicePixelRatio || 1;
      const last = tape.newest();
      const rows = Math.max(1, (last >= 0 && tape.seats[last]) || engine.settings.max_num_seqs || 8);
      const room = Math.max(LEAST_PX, HEIGHT_PX / store.engines.value.size);
      const geometry = { ...layout(width, rows, 3, ratio, true), rowHeight: Math.max(1.5, Math.min(ROW_PX, room / rows)) };
      const now = `${width} ${rows} ${ratio} ${theme !== null}`;
      if (now !== key) film.spoil();
      key = now;
      theme ??= readTheme(ratio);
      film.show({ tape, geometry, theme, rows, until: engine.shown }, tapeHeight(geometry, rows), paint, REACH);
      return false;
    });
    wake();
    return () => {
      observer.disconnect();
      leaveTheme();
      leaveLoop();
    };
  }, [engine]);
}

function SmallTape({ engine }) {
  const box = useRef(null);
  useSmallTape(box, engine);
  const { kv } = engine;
  return (
    <section class="card small-tape" data-engine={engine.name}>
      <header class="card-head">
        <h2>
          <button type="button" class="link" onClick={() => store.choose(engine.name)}>
            {engine.name}
          </button>
        </h2>
        <EngineNotes engine={engine} />
        <p class="muted overview-line">{t("overview.line", { running: count(engine.running), waiting: count(engine.waiting), kv: kv ? percent(kv.used, kv.total) : "–" })}</p>
      </header>
      <div class="canvas-box" data-canvas="tape">
        <div ref={box} class="film" role="img" aria-label={t("overview.tape", { name: engine.name })} onClick={() => store.choose(engine.name)} />
      </div>
    </section>
  );
}

export function Overview() {
  store.beat.value;
  return [...store.engines.value.values()].map((engine) => <SmallTape key={engine.name} engine={engine} />);
}
