// The chat page: list, thread, composer, settings.
import { useEffect } from "preact/hooks";
import { t, tCode } from "../i18n/index.js";
import { Connection, connectionNews } from "../lib/connection.jsx";
import { Icon } from "../lib/icons.jsx";
import { Composer } from "./composer.jsx";
import { ConversationList } from "./list.jsx";
import { socket, stop } from "./session.js";
import { SettingsPanel } from "./settings.jsx";
import * as store from "./store.js";
import { Thread } from "./thread.jsx";

function closeOrStop(event) {
  if (event.key !== "Escape" || event.isComposing || event.defaultPrevented) return;
  if (document.querySelector("dialog[open]")) return;
  const { list } = store.panels.value;
  if (list) store.setPanel("list", false);
  else if (store.running.value) stop(store.running.value);
}

function Toolbar() {
  const { list, settings } = store.panels.value;
  const title = store.conversations.value?.find((row) => row.id === store.currentId.value)?.title;
  return (
    <div class="toolbar">
      <button
        type="button"
        class="icon-button only-narrow"
        aria-expanded={list}
        aria-controls="conversations"
        aria-label={t("chat.showList")}
        onClick={() => store.setPanel("list", !list)}
      >
        <Icon name="menu" />
      </button>
      <h1 class="toolbar-title">{title || t("chat.new")}</h1>
      <Connection socket={socket} />
      <button
        type="button"
        class="icon-button"
        aria-expanded={settings}
        aria-controls="settings"
        aria-label={t("settings.title")}
        title={t("settings.title")}
        onClick={() => store.setPanel("settings", !settings)}
      >
        <Icon name="sliders" />
      </button>
    </div>
  );
}

function Notice() {
  const notice = store.notice.value;
  if (!notice) return null;
  return (
    <div class="notice" role="alert">
      <p>{notice.message || tCode("error", notice.code, t("error.internal"))}</p>
      {notice.code === "unauthorized" && <a href="/login/">{t("connection.signIn")}</a>}
      <button type="button" class="icon-button" aria-label={t("close")} onClick={() => (store.notice.value = null)}>
        <Icon name="close" />
      </button>
    </div>
  );
}

export function Chat() {
  useEffect(() => {
    addEventListener("keydown", closeOrStop);
    return () => removeEventListener("keydown", closeOrStop);
  }, []);
  const { list, settings } = store.panels.value;
  return (
    <div class={`chat ${list ? "show-list" : ""} ${settings ? "show-settings" : ""}`}>
      <ConversationList />
      <div class="backdrop" onClick={() => (store.panels.value = { list: false, settings: false })} />
      <section class="chat-main" aria-label={t("chat.conversation")}>
        <Toolbar />
        <Notice />
        <Thread />
        <Composer />
      </section>
      <SettingsPanel />
      <p class="sr-only" role="status">
        {connectionNews(socket.state.value)}
      </p>
      <p class="sr-only" aria-live="polite">
        {store.news.value}
      </p>
    </div>
  );
}
