// The KV map: every block of the cache, who holds it, what is shared, what can be found again.
import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { t } from "../i18n/index.js";
import { onThemeChange } from "../lib/colours.js";
import { count, percent, shortId } from "../lib/format.js";
import { CACHED, FREE, HELD, SHARED } from "./blocks.js";
import { GONE } from "./feed.js";
import { offers } from "./history.js";
import { blockAt, KVCanvas } from "./kv_canvas.js";
import { catchUp, lookAt, lookAway, still } from "./kv_feed.js";
import { onFrame, wake } from "./loop.js";
import { Choice } from "./parts.jsx";
import * as store from "./store.js";
import { readTheme } from "./theme.js";
import { openRequest } from "./travel.js";

const MAP_HEIGHT = 300;
const DRAWN_EVERY_MS = 50; // a running engine's map: a few blocks more or less need no 60 frames a second
const NOTHING = new Set();
const side = signal("after"); // of the iteration looked at

/** The map to draw: the running engine's, or that of the iteration looked at. Null where none is known. */
function mapShown() {
  if (!store.view.value) return store.engine.value?.blocks.map ?? null;
  return still.value?.[side.value] ?? still.value?.after ?? null;
}

function wordsOf(map, block) {
  const words = [t("kv.block", { n: count(block) }), t(`kv.${map.stateOf(block)}`)];
  const [owner, references] = [map.ownerOf(block), map.references[block]];
  if (owner) words.push(t("kv.owner", { id: shortId(owner) }));
  if (references > 1) words.push(t("kv.references", { n: references }));
  return words.join(" · ");
}

/** Draws in the page's loop; what it needs is read from the store, not from properties. */
function useMapCanvas(canvas, drawing, block) {
  useEffect(() => {
    const kv = new KVCanvas(canvas.current);
    drawing.current = kv;
    let [theme, width, drawnAt, drawnFor] = [null, 0, 0, ""];
    const observer = new ResizeObserver(([entry]) => {
      width = Math.floor(entry.contentRect.width);
      wake();
    });
    observer.observe(canvas.current.parentElement);
    const leaveTheme = onThemeChange(() => {
      theme = null;
      wake();
    });
    const leaveLoop = onFrame((now) => {
      const map = mapShown();
      if (!map || width === 0) return false;
      const ratio = devicePixelRatio || 1;
      theme ??= readTheme(ratio);
      const changed = store.view.value && still.value ? still.value.changed : NOTHING;
      const spot = store.spot.value ?? store.request.value;
      const looksAt = `${width} ${spot} ${block.current} ${still.value?.key} ${side.value}`;
      if (map === kv.map && theme === kv.theme && looksAt === drawnFor && now - drawnAt < DRAWN_EVERY_MS) return map.isDirty;
      [drawnAt, drawnFor] = [now, looksAt];
      kv.show(map, theme, width, MAP_HEIGHT, ratio, { changed, spot, block: block.current, key: `${still.value?.key} ${side.value}` });
      return false;
    });
    wake();
    return () => {
      observer.disconnect();
      leaveTheme();
      leaveLoop();
    };
  }, []);
}

/** While the picture stands still the maps around the iteration looked at are fetched; else the running one is followed. */
function useMaps(engine) {
  useEffect(() => {
    wake(); // whatever made this render may have changed the map
    if (!store.view.value) {
      lookAway();
      catchUp(engine);
      return;
    }
    const found = store.inspected();
    if (!found) return;
    const c = found.column % found.tape.capacity;
    lookAt(engine, found.tape.epoch[c], found.tape.n[c], found.tape.extras[c].blocks);
  });
}

/** The block under the pointer or chosen by keys, -1 for none, and what listens for it. `block`: the same for the drawing. */
function usePointing(map, drawing, block) {
  const [pointed, setPointed] = useState(-1);
  const point = (next) => {
    block.current = next;
    setPointed(next);
    store.pointAt(next >= 0 && map ? map.ownerOf(next) : null);
    wake();
  };
  const onKeyDown = (event) => {
    const { columns = 1, per = 1 } = drawing.current.grid ?? {};
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (!step || !map) return;
    event.preventDefault();
    point(Math.min(map.total - 1, Math.max(0, pointed < 0 ? 0 : pointed + step * per)));
  };
  const onPointerMove = (event) => {
    const { grid } = drawing.current;
    point(grid && map ? blockAt(grid, event.offsetX, event.offsetY, map.total) : -1);
  };
  const onClick = () => map && pointed >= 0 && map.ownerOf(pointed) && openRequest(map.ownerOf(pointed));
  const leave = () => point(-1);
  return { pointed: map && pointed < map.total ? pointed : -1, onKeyDown, leave, onPointerMove, onClick };
}

export function KVMap() {
  store.beat.value;
  const engine = store.engine.value;
  const [canvas, drawing, block] = [useRef(null), useRef(null), useRef(-1)];
  const map = mapShown();
  const { pointed, onKeyDown, leave, ...onCanvas } = usePointing(map, drawing, block);
  useMapCanvas(canvas, drawing, block);
  useMaps(engine);
  return (
    <section class="card kv" aria-labelledby="kv-title" data-testid="kv" hidden={!offers.history && !map}>
      <header class="card-head">
        <h2 id="kv-title">{t("kv.title")}</h2>
        {map && <Counts map={map} size={engine.settings.block_size} />}
        {store.view.value && still.value?.before && (
          <Choice label={t("kv.side")} value={side.value} onChoose={(next) => (side.value = next)} options={[["before", t("kv.before")], ["after", t("kv.after")]]} />
        )}
      </header>
      <div class="kv-box" tabIndex={0} role="group" aria-label={t("kv.label")} aria-describedby="kv-words" onKeyDown={onKeyDown} onBlur={leave}>
        <canvas ref={canvas} aria-hidden="true" hidden={!map} onPointerLeave={leave} {...onCanvas} />
      </div>
      <p class="kv-words" id="kv-words" aria-live="polite">
        {pointed >= 0 ? wordsOf(map, pointed) : <Note map={map} />}
      </p>
      <KVLegend />
    </section>
  );
}

function Counts({ map, size }) {
  const counts = map.counts();
  const held = counts[HELD] + counts[SHARED];
  const words = { held: percent(held, map.total), cached: percent(counts[CACHED], map.total), n: count(map.total), size };
  return <p class="muted">{t(size ? "kv.counts" : "kv.countsOnly", words)}</p>;
}

function Note({ map }) {
  if (!map && !store.view.value && store.engine.value.state === GONE) return null; // nothing more is to come
  if (!map) return <span class="muted">{t(still.value?.problem ? "kv.gone" : store.view.value ? "travel.loading" : "kv.coming")}</span>;
  if (!store.view.value || !still.value) return <span class="muted">{t("kv.hint")}</span>;
  const { size } = still.value.changed;
  return <span class="muted">{t(size > 1 ? "kv.changed" : size ? "kv.changedOne" : "kv.changedNone", { n: count(size) })}</span>;
}

function KVLegend() {
  return (
    <ul class="legend kv-legend">
      {[HELD, SHARED, CACHED, FREE].map((state) => (
        <li key={state}>
          <span class={`kv-swatch kv-${state}`} aria-hidden="true" />
          {t(`kv.${state}`)}
        </li>
      ))}
    </ul>
  );
}
