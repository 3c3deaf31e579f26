// The panel of generation settings. They apply to the next message and stay in this browser.
import { useState } from "preact/hooks";
import { t } from "../i18n/index.js";
import { Icon } from "../lib/icons.jsx";
import { cleanSettings, DEFAULTS, FIELDS, MAX_STOPS } from "./params.js";
import * as store from "./store.js";

const change = (name, value) => (store.settings.value = cleanSettings({ ...store.settings.value, [name]: value }));

function Slider({ name }) {
  const field = FIELDS[name];
  const value = store.settings.value[name];
  const set = (event) => change(name, event.target.value);
  const id = `setting-${name}`;
  return (
    <div class="setting">
      <label for={id}>{t(`settings.${name}`)}</label>
      <input class="setting-number" id={id} type="number" {...field} value={value} onChange={set} aria-describedby={`${id}-help`} />
      <input type="range" {...field} value={value} onInput={set} aria-label={t(`settings.${name}`)} />
      <p class="help" id={`${id}-help`}>
        {t(`settings.${name}.help`)}
      </p>
    </div>
  );
}

function Stops() {
  const [text, setText] = useState("");
  const { stop } = store.settings.value;
  const add = () => {
    if (text) change("stop", [...stop, text.replaceAll("\\n", "\n")]);
    setText("");
  };
  return (
    <div class="setting">
      <label for="setting-stop">{t("settings.stop")}</label>
      {stop.length > 0 && (
        <ul class="chips">
          {stop.map((word) => (
            <li class="chip" key={word}>
              <code>{word.replaceAll("\n", "\\n")}</code>
              <button type="button" class="chip-remove" aria-label={t("settings.stopRemove", { word })} onClick={() => change("stop", stop.filter((s) => s !== word))}>
                <Icon name="close" />
              </button>
            </li>
          ))}
        </ul>
      )}
      {stop.length < MAX_STOPS && (
        <input
          id="setting-stop"
          type="text"
          class="wide"
          value={text}
          maxLength={256}
          placeholder={t("settings.stopAdd")}
          onInput={(event) => setText(event.target.value)}
          onBlur={add}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.isComposing) return;
            event.preventDefault();
            add();
          }}
        />
      )}
    </div>
  );
}

export function SettingsPanel() {
  if (!store.panels.value.settings) return null;
  const { seed, system } = store.settings.value;
  return (
    <aside class="side settings-panel" id="settings" aria-label={t("settings.title")}>
      <div class="side-head">
        <h2>{t("settings.title")}</h2>
        <button type="button" class="icon-button" aria-label={t("settings.hide")} onClick={() => store.setPanel("settings", false)}>
          <Icon name="close" />
        </button>
      </div>
      <Slider name="temperature" />
      <Slider name="max_tokens" />
      <Slider name="top_p" />
      <Slider name="top_k" />
      <div class="setting">
        <label for="setting-seed">{t("settings.seed")}</label>
        <input class="setting-number" id="setting-seed" inputMode="numeric" value={seed} placeholder={t("settings.seedRandom")} onChange={(event) => change("seed", event.target.value)} aria-describedby="seed-help" />
        <p class="help" id="seed-help">
          {t("settings.seed.help")}
        </p>
      </div>
      <Stops />
      <div class="setting">
        <label for="setting-system">{t("settings.system")}</label>
        <textarea id="setting-system" class="wide" rows={4} value={system} placeholder={t("settings.systemPlaceholder")} onChange={(event) => change("system", event.target.value)} />
      </div>
      <button type="button" class="button" onClick={() => (store.settings.value = { ...DEFAULTS })}>
        {t("settings.reset")}
      </button>
    </aside>
  );
}
