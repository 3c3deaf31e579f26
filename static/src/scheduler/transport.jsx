// Hold the picture, zoom, jump to an iteration, take the visible span home. None of it touches the engine.
import { useState } from "preact/hooks";
import { t } from "../i18n/index.js";
import { count } from "../lib/format.js";
import { Icon } from "../lib/icons.jsx";
import { PITCHES } from "./geometry.js";
import { exportAddress, offers } from "./history.js";
import { IconButton } from "./parts.jsx";
import * as store from "./store.js";
import { follow, goTo, hold, loading, placeOf, position, problem, zoomBy } from "./travel.js";

/** One line that says where the picture stands; it takes no more room in one state than in another. */
export function Standing() {
  store.beat.value;
  const { value: view } = store.view;
  const { timeline } = store.engine.value;
  if (problem.value) return <p class="warn standing" role="alert">{problem.value}</p>;
  if (loading.value) return <p class="muted standing">{t("travel.loading")}</p>;
  if (!view) return <p class="muted standing">{t("tape.hint")}</p>;
  const since = Math.max(0, timeline.total - 1 - position(store.engine.value));
  return <p class="muted standing held-since">{t(since > 1 ? "tape.since" : since ? "tape.sinceOne" : "tape.sinceNone", { n: count(since) })}</p>;
}

export function Transport() {
  store.beat.value;
  const { value: view } = store.view;
  return (
    <div class="transport">
      <Jump />
      <IconButton icon="minus" words={t("travel.zoomOut")} disabled={store.zoom.value === 0} onClick={() => zoomBy(-1)} />
      <IconButton icon="plus" words={t("travel.zoomIn")} disabled={store.zoom.value === PITCHES.length - 1} onClick={() => zoomBy(1)} />
      {offers.history && <Exports />}
      <button type="button" class="button" aria-pressed={view !== null} onClick={() => (view ? follow() : hold())}>
        <Icon name={view ? "play" : "pause"} />
        {t(view ? "tape.follow" : "tape.hold")}
      </button>
    </div>
  );
}

/** To iteration n of the epoch shown. */
function Jump() {
  const [text, setText] = useState("");
  const jump = (event) => {
    event.preventDefault();
    const n = Number(text);
    const now = store.inspected();
    if (!text || !Number.isInteger(n) || !now) return;
    goTo({ epoch: placeOf(now.tape, now.column).epoch, n }, { choose: true });
    setText("");
  };
  return (
    <form class="jump" onSubmit={jump}>
      <label class="sr-only" for="jump">
        {t("travel.jump")}
      </label>
      <input id="jump" type="number" min="0" step="1" inputMode="numeric" placeholder={t("travel.jumpHint")} value={text} onInput={(event) => setText(event.target.value)} />
    </form>
  );
}

/** The span on the screen, of the epoch at its right edge. */
function spanShown() {
  const tape = store.shownTape();
  const until = Math.min(store.until(), tape.total);
  if (!tape.holds(until - 1)) return null;
  const { epoch, n } = placeOf(tape, until - 1);
  const from = Math.max(tape.oldest, until - store.extent.value.columns, tape.columnAfter(epoch, 0));
  return { epoch, first: placeOf(tape, from).n, last: n };
}

function Exports() {
  store.beat.value;
  const span = spanShown();
  if (!span) return null;
  const { name } = store.engine.value;
  return (
    <details class="menu" data-menu>
      <summary class="icon-button" aria-label={t("travel.export")} title={t("travel.export")}>
        <Icon name="down" />
      </summary>
      <div class="menu-body exports">
        <p class="muted">{t("travel.exportSpan", { first: count(span.first), last: count(span.last) })}</p>
        <a class="button" download href={exportAddress(name, span, "json")}>
          JSON
        </a>
        <a class="button" download href={exportAddress(name, span, "perfetto")}>
          {t("travel.perfetto")}
        </a>
      </div>
    </details>
  );
}
