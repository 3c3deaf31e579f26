// One iteration in detail: where its time went, and what went through the model together.
import { t } from "../i18n/index.js";
import { colourIndex } from "../lib/colours.js";
import { clock, count, duration, shortId } from "../lib/format.js";
import * as store from "./store.js";

const PHASES = ["schedule", "forward", "sample", "commit"];

function Phases({ tape, c }) {
  const spent = Math.max(tape.spent(c), 0.001);
  return (
    <>
      <div class="phase-bar" aria-hidden="true">
        {PHASES.map((phase) => (
          <span key={phase} class={`phase-${phase}`} style={{ flexGrow: tape[phase][c] / spent }} />
        ))}
      </div>
      <ul class="phase-list">
        {PHASES.map((phase) => (
          <li key={phase}>
            <span class={`swatch phase-${phase}`} aria-hidden="true" />
            {t(`phase.${phase}`)} <b>{tape[phase][c].toFixed(tape[phase][c] < 10 ? 2 : 1)}</b>
          </li>
        ))}
      </ul>
    </>
  );
}

function Sentence({ tokens, rows }) {
  if (rows === 0) return <p class="sentence muted">{t("inspector.sentenceNone")}</p>;
  const words = t(`inspector.sentence${tokens === 1 ? "OneToken" : rows === 1 ? "One" : ""}`, { tokens: count(tokens), rows: count(rows) });
  return (
    <p class="sentence">
      {words.split(/(\d[\d,]*)/).map((part, i) => (i % 2 ? <b key={i}>{part}</b> : part))}
      <span class="muted"> {t("inspector.selective")}</span>
    </p>
  );
}

const ROW_PX = 29;

/** Its height depends on the seats alone, so that nothing below it jumps when requests come and go. */
function Rows({ rows, seats }) {
  const height = (Math.min(Math.max(seats, 4), 13) + 1) * ROW_PX;
  return (
    <div class="table-scroll" style={{ height: `${height}px` }} tabIndex={0} role="region" aria-label={t("inspector.rows")}>
      <table class="rows">
        <thead>
          <tr>
            <th scope="col">{t("inspector.request")}</th>
            <th scope="col">{t("inspector.work")}</th>
            <th scope="col" class="number">{t("inspector.context")}</th>
            <th scope="col" class="number">{t("inspector.blocks")}</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.seat}>
              <td title={row.id}>
                <span class={`swatch request-${colourIndex(row.id)}`} aria-hidden="true" />
                {shortId(row.id)}
              </td>
              <td>
                {row.prefill ? <span class="work-prefill">{t("inspector.prefill", { n: count(row.tokens) })}</span> : t("inspector.decode")}
                {row.finished && <span class="muted"> · {t("inspector.finished")}</span>}
                {row.preempted && <span class="warn"> · {t("inspector.preempted")}</span>}
              </td>
              <td class="number">{count(row.context)}</td>
              <td class="number">{count(row.blocks)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function Inspector() {
  store.beat.value;
  const column = store.inspected();
  const engine = store.engine.value;
  if (column === null) {
    return (
      <section class="card inspector">
        <h2>{t("inspector.heading")}</h2>
        <p class="muted">{t("inspector.empty")}</p>
      </section>
    );
  }
  const { tape } = engine;
  const c = column % tape.capacity;
  const rows = tape.rowsOf(c);
  const held = store.pinned.value !== null && store.pinned.value === column;
  return (
    <section class="card inspector" data-testid="inspector">
      <header class="card-head">
        <h2>{t("inspector.title", { n: count(tape.n[c]) })}</h2>
        {held ? (
          <button type="button" class="link" onClick={() => ((store.pinned.value = null), store.changed())}>
            {t("inspector.follow")}
          </button>
        ) : (
          column === store.until() - 1 && <span class="badge">{t("inspector.latest")}</span>
        )}
        <p class="muted">
          {duration(tape.spent(c))} · {clock(tape.startedAt[c])}
        </p>
      </header>
      <Phases tape={tape} c={c} />
      <Sentence tokens={tape.prefillTokens[c] + tape.decodeTokens[c]} rows={rows.length} />
      <Rows rows={rows} seats={tape.seats[c]} />
      <p class="muted inspector-foot">
        {t("inspector.footer", { used: count(tape.budgetUsed[c]), limit: count(tape.budgetLimit[c]), policy: tape.policies[c] })}
      </p>
    </section>
  );
}
