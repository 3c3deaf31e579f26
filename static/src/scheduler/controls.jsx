// The teaching controls. They act on the engine, for everybody who uses it; holding the picture is another matter.
import { useEffect, useRef, useState } from "preact/hooks";
import { t } from "../i18n/index.js";
import { clock } from "../lib/format.js";
import { Icon } from "../lib/icons.jsx";
import { command, demo, order, refusal } from "./control.js";
import { Choice } from "./parts.jsx";
import * as store from "./store.js";

const POLICIES = ["static", "dynamic", "continuous"];
const SLOW = [0, 200, 1000];
const LIMITS = ["max_num_seqs", "max_num_batched_tokens", "kv_blocks"];

const busy = () => order.value?.state === "busy";

function Limits({ engine }) {
  store.beat.value; // an engine's settings change under the same object
  const now = { ...engine.settings, kv_blocks: engine.settings.kv_blocks ?? engine.kv?.total };
  const [wanted, setWanted] = useState({});
  const sent = useRef({}); // what the engine refuses stands in the fields again
  const refusedAt = refusal(engine)?.action === "set" ? refusal(engine).at : null;
  useEffect(() => {
    if (refusedAt) setWanted((now) => ({ ...sent.current, ...now }));
  }, [refusedAt]);
  const changed = LIMITS.filter((name) => wanted[name] !== undefined && wanted[name] !== "" && Number(wanted[name]) !== now[name]);
  const apply = async (event) => {
    event.preventDefault();
    sent.current = wanted;
    await command("set", Object.fromEntries(changed.map((name) => [name, Number(wanted[name])])));
    if (order.value?.state === "done") setWanted({});
  };
  return (
    <form class="limits" onSubmit={apply}>
      {LIMITS.map((name) => (
        <label key={name}>
          {t(`control.${name}`)}
          <input type="number" min="1" step="1" value={wanted[name] ?? now[name] ?? ""} onInput={(event) => setWanted({ ...wanted, [name]: event.target.value })} />
        </label>
      ))}
      <button type="submit" class="button" disabled={changed.length === 0 || busy()}>
        {t("control.apply")}
      </button>
    </form>
  );
}

/** What came of the newest order: the web server's answer, or, later, the engine's own refusal. */
function Feedback({ engine }) {
  store.beat.value; // it changes under the same object
  const refused = refusal(engine);
  if (refused) return <Refusal {...refused} />;
  const { value } = order;
  return (
    <p class={value?.state === "error" ? "warn feedback" : "muted feedback"} role="status" data-state={value?.state ?? "none"}>
      {value?.words ?? ""}
    </p>
  );
}

function Refusal({ text, at }) {
  return (
    <p class="warn feedback" role="status" data-state="refused">
      {t("control.refused", { time: clock(at).slice(0, 8) })} <span lang="en">{text}</span>
    </p>
  );
}

const ROOMY_PX = 640;

export function Controls() {
  const [isOpen] = useState(innerWidth > ROOMY_PX); // on a phone the tape comes first
  return (
    <details class="card controls" open={isOpen} data-testid="controls">
      <summary>
        <h2>{t("control.title")}</h2>
      </summary>
      <Orders />
    </details>
  );
}

function Orders() {
  store.beat.value;
  const engine = store.engine.value;
  const policy = engine.settings.next_policy ?? engine.settings.policy;
  const slow = SLOW.includes(engine.slowMs) ? SLOW : [...SLOW, engine.slowMs];
  return (
    <div class="orders">
      <Choice label={t("control.policy")} value={policy} disabled={busy()} onChoose={(name) => command("policy", { policy: name })} options={POLICIES.map((name) => [name, t(`policy.${name}`)])} />
      <div class="control-group">
        <button type="button" class="button" aria-pressed={engine.paused} disabled={busy()} onClick={() => command(engine.paused ? "resume" : "pause")}>
          <Icon name={engine.paused ? "play" : "pause"} />
          {t(engine.paused ? "control.resume" : "control.pause")}
        </button>
        <button type="button" class="button" disabled={busy() || !engine.paused} onClick={() => command("step")}>
          <Icon name="step" />
          {t("control.step")}
        </button>
      </div>
      <Choice label={t("control.slow")} value={engine.slowMs} disabled={busy()} onChoose={(ms) => command("slow", { ms })} options={slow.map((ms) => [ms, ms ? t("control.slowMs", { n: ms }) : t("control.fullSpeed")])} />
      <button type="button" class="button primary" disabled={busy()} onClick={demo} title={t("control.demoHint")}>
        <Icon name="people" />
        {t("control.demo")}
      </button>
      <Limits engine={engine} key={engine.name} />
      <Feedback engine={engine} />
    </div>
  );
}
