// The time bar: all of the history that is kept, and where in it the picture stands. A range input, so that it can be
// dragged, clicked and moved by keys.
import { t } from "../i18n/index.js";
import { clock, count } from "../lib/format.js";
import * as store from "./store.js";
import { follow, goTo, placeOf, position } from "./travel.js";

export function TimeBar() {
  store.beat.value;
  const engine = store.engine.value;
  const { timeline } = engine;
  const { total } = timeline;
  if (total < 2) return null;
  const at = position(engine);
  const share = (ordinal) => `${(100 * Math.max(0, Math.min(ordinal, total - 1))) / (total - 1)}%`;
  const [oldest, newest] = [timeline.at(0), timeline.at(total - 1)];
  const scrub = (event) => {
    const ordinal = Number(event.target.value);
    if (ordinal >= total - 1) follow();
    else goTo(timeline.at(ordinal));
  };
  const vars = { "--from": share(at - store.extent.value.columns), "--to": share(at) };
  return (
    <div class="time-bar">
      <span class="muted">{count(oldest.n)}</span>
      <div class="time-track" style={vars}>
        <input type="range" min="0" max={total - 1} step="1" value={at} aria-label={t("travel.bar")} aria-valuetext={valueWords()} onInput={scrub} data-testid="time-bar" />
        {timeline.epochs.slice(1).map(({ epoch, first }) => (
          <span key={epoch} class="time-restart" style={{ left: share(timeline.ordinalOf(epoch, first)) }} title={t("tape.restarted")} />
        ))}
      </div>
      <span class="muted">{count(newest.n)}</span>
    </div>
  );
}

function valueWords() {
  const tape = store.shownTape();
  const column = Math.min(store.until(), tape.total) - 1;
  if (!tape.holds(column)) return "";
  return `${t("inspector.title", { n: count(placeOf(tape, column).n) })}, ${clock(tape.startedAt[column % tape.capacity])}`;
}
