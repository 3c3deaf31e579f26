// The figures at the top: one card each, renewed five times a second at most.
import { t, tCode } from "../i18n/index.js";
import { count, duration, percent, rate } from "../lib/format.js";
import * as store from "./store.js";

const QUIET_MS = 2500; // nothing new for so long: the rates are over, not frozen

let lastTotal = -1;
let movedAt = 0;

/** Whether the tape moved lately, by this page's own clock. */
function moving(tape) {
  if (tape.total !== lastTotal) {
    lastTotal = tape.total;
    movedAt = performance.now();
    if (tape.total > 0) setTimeout(() => (store.beat.value += 1), QUIET_MS + 50);
  }
  return performance.now() - movedAt < QUIET_MS;
}

function Card({ name, label, value, sub, children }) {
  return (
    <div class="card stat" data-stat={name}>
      <dt>{label}</dt>
      <dd>
        <span class="stat-value">{value}</span>
        {children}
        <span class="stat-sub">{sub}</span>
      </dd>
    </div>
  );
}

function Meter({ parts, total }) {
  return (
    <span class="meter" aria-hidden="true">
      {parts.map(([name, amount]) => (
        <span key={name} class={`meter-${name}`} style={{ width: `${total ? (100 * amount) / total : 0}%` }} />
      ))}
    </span>
  );
}

function firstReason(engine) {
  const first = engine.latest?.waiting[0];
  return first ? t("stat.first", { reason: tCode("reason", first.reason) }) : "";
}

export function Stats() {
  store.beat.value;
  const engine = store.engine.value;
  const { tape, kv, settings } = engine;
  const latest = tape.newest();
  const lively = latest >= 0 && moving(tape);
  const seats = (latest >= 0 && tape.seats[latest]) || settings.max_num_seqs || 0;
  const { decode, prefill } = lively ? tape.rates() : { decode: 0, prefill: 0 };
  const worked = tape.newestWithRows();
  const spent = worked >= 0 ? tape.spent(worked) : Number.NaN;
  const limit = latest >= 0 ? tape.budgetLimit[latest] : settings.max_num_batched_tokens;
  const used = worked >= 0 ? tape.budgetUsed[worked] : 0;
  return (
    <dl class="stats">
      <Card name="running" label={t("stat.running")} value={count(engine.running)} sub={seats ? t("stat.seats", { n: count(seats) }) : ""}>
        <Meter total={seats} parts={[["used", engine.running]]} />
      </Card>
      <Card name="waiting" label={t("stat.waiting")} value={count(engine.waiting)} sub={engine.waiting ? firstReason(engine) : t("stat.nobody")} />
      <Card name="rate" label={t("stat.rate")} value={rate(decode)} sub={t("stat.prefillRate", { n: rate(prefill) })} />
      <Card name="iteration" label={t("stat.iteration")} value={duration(spent)} sub={worked >= 0 ? t("stat.iterationSub", { share: percent(tape.forward[worked], spent) }) : ""} />
      <Card name="budget" label={t("stat.budget")} value={limit ? percent(used, limit) : "–"} sub={limit ? t("stat.budgetSub", { used: count(used), limit: count(limit) }) : ""}>
        <Meter total={limit} parts={[["used", used]]} />
      </Card>
      <Card
        name="kv"
        label={t("stat.kv")}
        value={kv ? percent(kv.used, kv.total) : "–"}
        sub={kv ? [t("stat.kvUsed", { n: count(kv.used) }), t("stat.kvCached", { n: count(kv.cached) }), t("stat.kvFree", { n: count(kv.free) })].join(" · ") : ""}
      >
        <Meter total={kv?.total ?? 0} parts={kv ? [["used", kv.used], ["cached", kv.cached]] : []} />
      </Card>
    </dl>
  );
}
