// What a new chat shows: what this is, and things one could ask.
import { t } from "../i18n/index.js";
import { send } from "./actions.js";
import * as store from "./store.js";

const EXAMPLES = ["capital", "haiku", "code", "batching"];

export function Empty() {
  return (
    <div class="empty">
      <svg class="empty-mark" viewBox="0 0 64 40" aria-hidden="true">
        <path class="mark-a" d="M2 8h14v8H2zM18 11h30v2H18z" />
        <path class="mark-b" d="M10 20h8v8h-8zM20 23h42v2H20z" />
        <path class="mark-c" d="M26 32h20v8H26zM48 35h14v2H48z" />
      </svg>
      <h2>{t("empty.title")}</h2>
      <p class="muted">{store.model.value ? t("empty.text", { model: store.model.value }) : t("empty.textPlain")}</p>
      <ul class="examples">
        {EXAMPLES.map((name) => (
          <li key={name}>
            <button type="button" class="example" onClick={() => void send(t(`example.${name}`))}>
              {t(`example.${name}`)}
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}
