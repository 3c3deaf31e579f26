// The state of a Socket in words and a mark; the colour only repeats what the words say.
import { signal } from "@preact/signals";
import { t } from "../i18n/index.js";
import { LATER } from "./socket.js";

const now = signal(Date.now());
let ticker = null;

function tick(needed) {
  if (needed && ticker === null) ticker = setInterval(() => (now.value = Date.now()), 500);
  if (!needed && ticker !== null) {
    clearInterval(ticker);
    ticker = null;
  }
}

function words(state) {
  switch (state.name) {
    case "live":
      return t("connection.live");
    case "waiting": {
      const seconds = Math.max(1, Math.ceil((state.until - now.value) / 1000));
      return t(state.code === LATER ? "connection.full" : "connection.waiting", { seconds });
    }
    case "offline":
      return t("connection.offline");
    case "closed":
      return t("connection.closed");
    default:
      return t("connection.connecting");
  }
}

export function Connection({ socket }) {
  const state = socket.state.value;
  tick(state.name === "waiting");
  const canRetry = state.name === "waiting" || state.name === "offline";
  return (
    <div class="connection" data-state={state.name}>
      <span class="connection-mark" aria-hidden="true" />
      <span title={state.code === LATER ? t("connection.news.full") : undefined}>{words(state)}</span>
      {canRetry && (
        <button type="button" class="link" onClick={() => socket.retryNow()}>
          {t("connection.retry")}
        </button>
      )}
      {state.name === "closed" && <a href="/login/">{t("connection.signIn")}</a>}
    </div>
  );
}

/** For screen readers: only changes that matter, never the seconds counting down. */
export function connectionNews(state) {
  if (state.name === "connecting") return "";
  if (state.name === "live") return t("connection.live");
  return state.code === LATER ? t("connection.news.full") : t(`connection.news.${state.name}`);
}
