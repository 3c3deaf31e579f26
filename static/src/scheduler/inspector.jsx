// One iteration in detail: where its time went, what went through the model together, who waited and why.
import { t, tCode } from "../i18n/index.js";
import { clock, count, duration } from "../lib/format.js";
import { RequestName } from "./parts.jsx";
import { Phases } from "./phases.jsx";
import { rowsOf } from "./readings.js";
import { KEPT } from "./ring.js";
import { SelectiveBatching } from "./selective.jsx";
import * as store from "./store.js";
import { release } from "./travel.js";

function Sentence({ tokens, rows, kept }) {
  if (rows === 0) return <p class="sentence muted">{kept ? t("inspector.sentenceKept", { n: count(kept) }) : t("inspector.sentenceNone")}</p>;
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
  const height = (Math.min(Math.max(seats, 4), 10) + 1) * ROW_PX;
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
            <tr key={row.seat} class={store.spot.value === row.id ? "spotted" : ""}>
              <td>
                <RequestName id={row.id} />
              </td>
              <td>
                <Work row={row} />
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

/** One token, or with drafts that were right several. */
function Decode({ row }) {
  if (row.drafted === 0) return t("inspector.decode");
  return (
    <>
      {row.accepted > 0 ? t("inspector.decodeMany", { n: 1 + row.accepted }) : t("inspector.decode")}
      <span class="muted" title={t("inspector.drafts", { accepted: row.accepted, drafted: row.drafted })}>
        {" "}
        · {t("inspector.draftsShort", { accepted: row.accepted, drafted: row.drafted })}
      </span>
    </>
  );
}

export function Work({ row }) {
  return (
    <>
      {row.prefill ? <span class="work-prefill">{t("inspector.prefill", { n: count(row.tokens) })}</span> : row.kept ? <span class="muted">{t("inspector.kept")}</span> : <Decode row={row} />}
      {row.finished && <span class="muted"> · {t("inspector.finished")}</span>}
      {row.preempted && <span class="warn"> · {t("inspector.preempted")}</span>}
    </>
  );
}

/** Budget, seats, padding, blocks: the iteration in figures. */
function Figures({ tape, c }) {
  const figures = [
    ["budget", t("inspector.ofBudget", { used: count(tape.budgetUsed[c]), limit: count(tape.budgetLimit[c]) })],
    ["seats", t("inspector.ofSeats", { used: count(tape.rows[c] + tape.kept[c]), seats: count(tape.seats[c]), idle: count(tape.idle[c]) })],
    ["padding", t("inspector.tokens", { n: count(tape.padding[c]) })],
    ["waiting", count(tape.waiting[c])],
    ["kv", t("inspector.ofBlocks", { used: count(tape.kvUsed[c]), cached: count(tape.kvCached[c]), free: count(tape.kvFree[c]) })],
    ["policy", tCode("policy", tape.policies[c])],
  ];
  return (
    <dl class="figures">
      {figures.map(([name, words]) => (
        <div key={name} data-figure={name}>
          <dt>{t(`inspector.figure.${name}`)}</dt>
          <dd>{words}</dd>
        </div>
      ))}
    </dl>
  );
}

/** Prices the engine has learnt for its own iterations, and how far off they are. */
function Costs({ costs }) {
  if (!costs) return null;
  const price = (ms) => (ms >= 0.1 ? ms.toFixed(2) : (1000 * ms).toFixed(1));
  const unit = (ms) => (ms >= 0.1 ? "ms" : "µs");
  const words = Object.fromEntries(["fixed", "token", "read", "sample"].map((name) => [name, `${price(costs[name] ?? 0)} ${unit(costs[name] ?? 0)}`]));
  return <p class="muted costs">{t("costs.line", { ...words, error: (100 * (costs.error ?? 0)).toFixed(1), n: count(costs.observed ?? 0) })}</p>;
}

function Head({ tape, column }) {
  const c = column % tape.capacity;
  const { value: pinned } = store.pinned;
  const held = pinned !== null && tape.epoch[c] === pinned.epoch && tape.n[c] === pinned.n;
  return (
    <header class="card-head">
      <h2>{t("inspector.title", { n: count(tape.n[c]) })}</h2>
      {held ? (
        <button type="button" class="link" onClick={release}>
          {t("inspector.follow")}
        </button>
      ) : (
        !store.view.value && column === store.until() - 1 && <span class="badge">{t("inspector.latest")}</span>
      )}
      <p class="muted">
        {duration(tape.spent(c))} · {clock(tape.startedAt[c])}
      </p>
    </header>
  );
}

export function Inspector() {
  store.slowBeat.value;
  const found = store.inspected();
  if (found === null) {
    return (
      <section class="card inspector">
        <h2>{t("inspector.heading")}</h2>
        <p class="muted">{t("inspector.empty")}</p>
      </section>
    );
  }
  const { tape, column } = found;
  const c = column % tape.capacity;
  const rows = rowsOf(tape, c);
  const kept = rows.length ? [] : rowsOf(tape, c, KEPT);
  const tokens = rows.reduce((sum, row) => sum + row.tokens, 0);
  return (
    <section class="card inspector" data-testid="inspector" data-n={tape.n[c]} data-epoch={tape.epoch[c]}>
      <Head tape={tape} column={column} />
      <Phases tape={tape} c={c} />
      <Sentence tokens={tokens} rows={rows.length} kept={kept.length} />
      <SelectiveBatching rows={rows} padding={tape.padding[c]} />
      <Figures tape={tape} c={c} />
      <Rows rows={[...rows, ...kept]} seats={tape.seats[c]} />
      <Costs costs={store.engine.value.costs} />
    </section>
  );
}
