// The scheduler page: figures, controls, tape with lane and charts, one iteration in detail, a request, the KV cache.
import { useEffect } from "preact/hooks";
import { t } from "../i18n/index.js";
import { Connection, connectionNews } from "../lib/connection.jsx";
import { followAddress } from "./address.js";
import { Controls } from "./controls.jsx";
import { GONE } from "./feed.js";
import { offers } from "./history.js";
import { Inspector } from "./inspector.jsx";
import { KVMap } from "./kv.jsx";
import { Overview } from "./overview.jsx";
import { EngineNotes } from "./parts.jsx";
import { Picture } from "./picture.jsx";
import { RequestCard } from "./request.jsx";
import { Stats } from "./stats.jsx";
import * as store from "./store.js";
import { problem, release } from "./travel.js";

function EngineChoice() {
  const names = [...store.engines.value.keys()];
  const { value: engine } = store.engine;
  if (names.length < 2) return engine ? <p class="engine-name">{engine.name}</p> : null;
  return (
    <label class="engine-choice">
      <span class="sr-only">{t("engine.choose")}</span>
      <select value={store.isAll.value ? store.ALL : engine.name} onChange={(event) => store.choose(event.target.value)}>
        {names.map((name) => (
          <option key={name}>{name}</option>
        ))}
        <option value={store.ALL}>{t("engine.all")}</option>
      </select>
    </label>
  );
}

function Bar() {
  const { value: engine } = store.engine;
  store.beat.value;
  const one = engine && !store.isAll.value;
  return (
    <div class="scheduler-bar">
      <h1>{t("scheduler.title")}</h1>
      <EngineChoice />
      {one && <EngineNotes engine={engine} />}
      <span class="spring" />
      <Connection socket={store.socket} />
    </div>
  );
}

function NoEngine() {
  return (
    <div class="card nothing">
      <h2>{t("engine.none")}</h2>
      <p class="muted">{t("engine.noneText")}</p>
      {problem.value && <p class="warn" role="alert">{problem.value}</p>}
    </div>
  );
}

function OneEngine({ engine }) {
  return (
    <>
      {offers.controls && engine.state !== GONE && <Controls />}
      <Stats />
      <div class="scheduler-grid">
        <Picture key={engine.name} />
        <aside class="details">
          <RequestCard />
          <Inspector />
          <KVMap key={engine.name} />
        </aside>
      </div>
    </>
  );
}

export function Scheduler() {
  useEffect(() => {
    followAddress();
    const letGo = (event) => event.key === "Escape" && !event.defaultPrevented && release();
    addEventListener("keydown", letGo);
    return () => removeEventListener("keydown", letGo);
  }, []);
  const { value: engine } = store.engine;
  return (
    <div class="scheduler">
      <Bar />
      {engine ? store.isAll.value ? <Overview /> : <OneEngine engine={engine} /> : store.known.value && <NoEngine />}
      <p class="sr-only" role="status">
        {connectionNews(store.socket.state.value)}
      </p>
    </div>
  );
}
