// The figures at the top: one card each, renewed five times a second at most.
import { t } from "../i18n/index.js";
import { count, duration, percent, rate } from "../lib/format.js";
import { newestWithRows, rates } from "./readings.js";
import { reasonWords } from "./reasons.js";
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
  return first ? t("stat.first", { reason: reasonWords(first.reason) }) : "";
}

function Seats({ engine, latest }) {
  const { tape, settings } = engine;
  const seats = settings.max_num_seqs ?? 0;
  const idle = latest >= 0 && engine.running > 0 ? tape.idle[latest] : 0;
  const sub = [seats ? t("stat.seats", { n: count(seats) }) : "", idle ? t("stat.idle", { n: count(idle) }) : ""];
  return (
    <Card name="running" label={t("stat.running")} value={count(engine.running)} sub={sub.filter(Boolean).join(" · ")}>
      <Meter total={seats} parts={[["used", engine.running], ["idle", idle]]} />
    </Card>
  );
}

function Waiting({ engine }) {
  const isKnown = engine.state === "ready";
  const sub = engine.waiting ? firstReason(engine) : t("stat.nobody");
  return <Card name="waiting" label={t("stat.waiting")} value={isKnown ? count(engine.waiting) : "–"} sub={isKnown ? sub : ""} />;
}

function KV({ kv }) {
  const sub = kv ? [t("stat.kvUsed", { n: count(kv.used) }), t("stat.kvCached", { n: count(kv.cached) }), t("stat.kvFree", { n: count(kv.free) })] : [];
  return (
    <Card name="kv" label={t("stat.kv")} value={kv ? percent(kv.used, kv.total) : "–"} sub={sub.join(" · ")}>
      <Meter total={kv?.total ?? 0} parts={kv ? [["used", kv.used], ["cached", kv.cached]] : []} />
    </Card>
  );
}

export function Stats() {
  store.beat.value;
  const engine = store.engine.value;
  const { tape, kv, settings } = engine;
  const latest = tape.newest();
  const { decode, prefill } = latest >= 0 && moving(tape) ? rates(tape) : { decode: 0, prefill: 0 };
  const worked = newestWithRows(tape);
  const spent = worked >= 0 ? tape.spent(worked) : Number.NaN;
  const limit = settings.max_num_batched_tokens;
  const used = worked >= 0 ? tape.budgetUsed[worked] : 0;
  const hits = latest >= 0 ? tape.hitRate[latest] : Number.NaN;
  return (
    <dl class="stats">
      <Seats engine={engine} latest={latest} />
      <Waiting engine={engine} />
      <Card name="rate" label={t("stat.rate")} value={rate(decode)} sub={t("stat.prefillRate", { n: rate(prefill) })} />
      <Card name="iteration" label={t("stat.iteration")} value={duration(spent)} sub={worked >= 0 ? t("stat.iterationSub", { share: percent(tape.forward[worked], spent) }) : ""} />
      <Card name="budget" label={t("stat.budget")} value={limit ? percent(used, limit) : "–"} sub={limit ? t("stat.budgetSub", { used: count(used), limit: count(limit) }) : ""}>
        <Meter total={limit} parts={[["used", used]]} />
      </Card>
      <KV kv={kv} />
      <Card name="hits" label={t("stat.hits")} value={Number.isNaN(hits) ? "–" : percent(hits, 1)} sub={t("stat.hitsSub")} />
    </dl>
  );
}
