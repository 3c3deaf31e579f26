// The card of a request: its life on the tape, what it spent its time on, and whose prefills it waited for.
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { t } from "../i18n/index.js";
import { count, duration, shortId } from "../lib/format.js";
import { iterations, offers, whereabouts } from "./history.js";
import { dearestMates, lifeOf, partsOf } from "./life.js";
import { IconButton, IterationLink, RequestName, Swatch } from "./parts.jsx";
import { reasonWords } from "./reasons.js";
import * as store from "./store.js";
import { tapeOf } from "./tape.js";
import { closeRequest } from "./travel.js";

/** {id, tape}: all iterations of the request whose card is open, once they have been fetched. */
const whole = signal(null);
const MOST = 2000;

async function fetchWhole(id) {
  if (!offers.history) return;
  try {
    const { engine, epoch, first, last } = await whereabouts(id);
    const from = Math.max(0, first - 200, last - MOST + 2); // with some of the time it waited
    const { records } = await iterations(engine, { epoch, first: from, last: last + 1 }); // who is cancelled ends in the next
    if (store.request.value === id) whole.value = { id, tape: tapeOf(records) };
  } catch {
    // It has not run yet, or is kept no more: the tape shown says what it can.
  }
}

/** The tape that tells most of a request: the running one where it reaches back as far, else what was fetched, else what is shown. */
function tapeOfLife(id) {
  const fetched = whole.value?.id === id && whole.value.tape.length > 0 ? whole.value.tape : null;
  if (!fetched) return store.shownTape();
  const { tape, missed } = store.engine.value;
  const first = fetched.oldest % fetched.capacity;
  return missed === 0 && tape.columnOf(fetched.epoch[first], fetched.n[first]) >= 0 ? tape : fetched;
}

const nameOf = (part) => (part.startsWith("waiting.") ? `${t("request.waiting")}: ${reasonWords(part.slice(8))}` : t(`request.${part}`));
const classOf = (part) => (part.startsWith("waiting") ? "part-queue" : { prefill: "part-prefill", decode: "part-decode", kept: "part-stalled", out: "part-preempted" }[part]);

function Life({ life }) {
  const sum = life.segments.reduce((all, { ms }) => all + ms, 0) || 1;
  return (
    <>
      <div class="life" aria-hidden="true">
        {life.segments.map(({ kind, ms, first }) => (
          <span key={first.join()} class={classOf(kind)} style={{ flexGrow: ms / sum }} />
        ))}
      </div>
      <table class="rows parts">
        <tbody>
          {[...partsOf(life.segments)].map(([part, ms]) => (
            <tr key={part}>
              <td>
                <span class={`swatch ${classOf(part)}`} aria-hidden="true" />
                {nameOf(part)}
              </td>
              <td class="number">{duration(ms)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="muted">
        {t("request.tokens", { computed: count(life.computed), answered: count(life.answered) })} · {t("request.from")} <IterationLink place={life.segments[0].first} /> {t("request.to")}{" "}
        <IterationLink place={life.segments.at(-1).last} />
        {life.ended ? "" : ` · ${t("request.running")}`}
      </p>
    </>
  );
}

function Mates({ mates }) {
  if (mates.length === 0) return <p class="muted">{t("request.noMates")}</p>;
  return (
    <>
      <h3>{t("request.mates")}</h3>
      <ul class="mates">
        {mates.map(({ id, ms }) => (
          <li key={id}>
            <RequestName id={id} />
            <span class="number">{duration(ms)}</span>
          </li>
        ))}
      </ul>
    </>
  );
}

export function RequestCard() {
  const { value: id } = store.request;
  store.slowBeat.value;
  useEffect(() => {
    whole.value = null;
    if (id) fetchWhole(id);
  }, [id]);
  if (!id) return null;
  const tape = tapeOfLife(id);
  const life = lifeOf(tape, id);
  return (
    <section class="card request" aria-labelledby="request-title" data-testid="request">
      <header class="card-head">
        <h2 id="request-title" title={id}>
          <Swatch id={id} />
          {t("request.title", { id: shortId(id) })}
        </h2>
        <IconButton icon="close" words={t("close")} onClick={closeRequest} />
      </header>
      {life ? (
        <>
          <Life life={life} />
          <Mates mates={dearestMates(tape, id, store.engine.value?.costs)} />
        </>
      ) : (
        <p class="muted">{t("request.unknown")}</p>
      )}
      {offers.admin && (
        <a class="request-admin" href={`/admin/playground/inferencerequest/${encodeURIComponent(id)}/change/`}>
          {t("request.admin")}
        </a>
      )}
    </section>
  );
}
