// The queue lane: a chip for each waiting request, in order: who, how long, and why not yet.
import { useEffect } from "preact/hooks";
import { t } from "../i18n/index.js";
import { count, duration } from "../lib/format.js";
import { RequestName } from "./parts.jsx";
import { whyWords } from "./reasons.js";
import * as store from "./store.js";

/** {waiting, total, waitedMs(id), lost(id)} of the newest iteration shown; nothing where the running engine's queue is empty by now. */
function queueShown() {
  const tape = store.shownTape();
  const engine = store.engine.value;
  const column = store.pinned.value ? store.inspected()?.column : Math.min(store.until(), tape.total) - 1;
  const isOver = !store.view.value && engine.waiting === 0;
  if (column === undefined || !tape.holds(column) || isOver) return { waiting: [], total: 0 };
  const c = column % tape.capacity;
  const { waiting, since, lost } = tape.extras[c];
  const now = tape.t0[c] + tape.spent(c) + sinceHeard(engine, tape, column);
  return { waiting, total: Math.max(tape.waiting[c], waiting.length), waitedMs: (id) => now - (since.get(id) ?? now), lost: (id) => lost?.get(id) ?? 0 };
}

/** While an engine makes no iterations whoever waits waits on: ms since its newest record came, where that one is shown. */
function sinceHeard(engine, tape, column) {
  const isLive = !store.view.value && engine.state === "ready" && column === tape.total - 1;
  return isLive ? Math.max(0, performance.now() - engine.heardAt) : 0;
}

function Chip({ item, waitedMs, lost }) {
  return (
    <li class="queue-chip" data-reason={item.reason}>
      <RequestName id={item.request_id} />
      {item.tokens > 0 && <span class="muted">{t("waiting.tokens", { n: count(item.tokens) })}</span>}
      {lost > 0 && <span class="queue-lost">{t("waiting.lost", { n: count(lost) })}</span>}
      <span class="warn">{whyWords(item)}</span>
      <span class="muted queue-time">{duration(waitedMs)}</span>
    </li>
  );
}

export function WaitingLane() {
  store.beat.value;
  const { waiting, total, waitedMs, lost } = queueShown();
  const isAny = waiting.length > 0;
  useEffect(() => {
    const timer = isAny && setInterval(store.beatSoon, 1000); // no frames come from a paused engine, and time goes on
    return () => clearInterval(timer);
  }, [isAny]);
  const isKnown = store.view.value || store.engine.value.state === "ready";
  const longest = waiting.reduce((most, item) => Math.max(most, waitedMs(item.request_id)), 0);
  return (
    <section class="card waiting" aria-labelledby="waiting-title" data-testid="waiting">
      <header class="card-head">
        <h2 id="waiting-title">{t("waiting.title")}</h2>
        {waiting.length > 0 && <p class="muted">{t("waiting.sum", { n: count(total), longest: duration(longest) })}</p>}
      </header>
      {waiting.length === 0 ? (
        <p class="muted queue-chips">{t(isKnown ? "waiting.none" : "waiting.unknown")}</p>
      ) : (
        <ol class="queue-chips" tabIndex={0} aria-labelledby="waiting-title">
          {waiting.map((item) => (
            <Chip key={item.request_id} item={item} waitedMs={waitedMs(item.request_id)} lost={lost(item.request_id)} />
          ))}
          {total > waiting.length && <li class="muted">{t("waiting.more", { n: count(total - waiting.length) })}</li>}
        </ol>
      )}
    </section>
  );
}
