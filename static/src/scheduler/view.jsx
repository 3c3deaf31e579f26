// The scheduler page: figures, tape with charts, who waits, and one iteration in detail.
import { useEffect } from "preact/hooks";
import { t, tCode } from "../i18n/index.js";
import { Connection, connectionNews } from "../lib/connection.jsx";
import { Icon } from "../lib/icons.jsx";
import { count } from "../lib/format.js";
import { Inspector } from "./inspector.jsx";
import { Stats } from "./stats.jsx";
import * as store from "./store.js";
import { Picture } from "./picture.jsx";
import { WaitingTable } from "./waiting.jsx";

function EngineChoice() {
  const names = [...store.engines.value.keys()];
  const { value: engine } = store.engine;
  if (names.length < 2) return engine ? <p class="engine-name">{engine.name}</p> : null;
  return (
    <label class="engine-choice">
      <span class="sr-only">{t("engine.choose")}</span>
      <select value={engine.name} onChange={(event) => store.choose(event.target.value)}>
        {names.map((name) => (
          <option key={name}>{name}</option>
        ))}
      </select>
    </label>
  );
}

function Bar() {
  const { value: engine } = store.engine;
  const { value: paused } = store.paused;
  store.beat.value;
  const policy = engine?.latest?.policy ?? engine?.settings.policy;
  return (
    <div class="scheduler-bar">
      <h1>{t("scheduler.title")}</h1>
      <EngineChoice />
      {engine?.model && <p class="muted">{engine.model}</p>}
      {engine && engine.state !== "ready" && <p class="warn">{tCode("engine.state", engine.state)}</p>}
      {policy && <p class="policy">{t("scheduler.policy", { policy })}</p>}
      <span class="spring" />
      {paused && <p class="muted">{t("tape.paused", { n: count(engine.tape.total - paused.until) })}</p>}
      <Connection socket={store.socket} />
      <button type="button" class="button" aria-pressed={paused !== null} disabled={!engine} onClick={store.togglePause}>
        <Icon name={paused ? "play" : "pause"} />
        {t(paused ? "tape.resume" : "tape.pause")}
      </button>
    </div>
  );
}

function NoEngine() {
  return (
    <div class="card nothing">
      <h2>{t("engine.none")}</h2>
      <p class="muted">{t("engine.noneText")}</p>
    </div>
  );
}

export function Scheduler() {
  useEffect(() => {
    const letGo = (event) => event.key === "Escape" && ((store.pinned.value = null), store.changed());
    addEventListener("keydown", letGo);
    return () => removeEventListener("keydown", letGo);
  }, []);
  const { value: engine } = store.engine;
  return (
    <div class="scheduler">
      <Bar />
      {engine ? (
        <>
          <Stats />
          <div class="scheduler-grid">
            <Picture key={engine.name} />
            <Inspector />
            <WaitingTable />
          </div>
        </>
      ) : (
        store.known.value && <NoEngine />
      )}
      <p class="sr-only" role="status">
        {connectionNews(store.socket.state.value)}
      </p>
    </div>
  );
}
