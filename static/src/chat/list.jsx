// The conversation list: by day, with rename in place and delete after a question.
import { useRef, useState } from "preact/hooks";
import { t } from "../i18n/index.js";
import { Icon } from "../lib/icons.jsx";
import * as conversations from "./conversations.js";
import { byDay } from "./records.js";
import { follow } from "./session.js";
import * as store from "./store.js";

function startNew() {
  conversations.openNew();
  document.getElementById("composer-text")?.focus();
}

function Rename({ row, done }) {
  const settled = useRef(false);
  const finish = (keep, value) => {
    if (settled.current) return;
    settled.current = true;
    if (keep && value.trim() !== row.title) void conversations.rename(row.id, value);
    done();
  };
  return (
    <input
      class="rename"
      aria-label={t("chat.renameLabel")}
      defaultValue={row.title}
      maxLength={200}
      ref={(input) => input && !settled.current && document.activeElement !== input && (input.focus(), input.select())}
      onBlur={(event) => finish(true, event.target.value)}
      onKeyDown={(event) => {
        if (event.isComposing) return;
        if (event.key === "Enter") finish(true, event.target.value);
        if (event.key === "Escape") {
          event.preventDefault();
          finish(false, "");
        }
      }}
    />
  );
}

function Row({ row, askDelete }) {
  const [renaming, setRenaming] = useState(false);
  const current = store.currentId.value === row.id;
  if (renaming) {
    return (
      <li class="conversation">
        <Rename row={row} done={() => setRenaming(false)} />
      </li>
    );
  }
  const title = row.title || t("chat.untitled");
  return (
    <li class="conversation" data-current={current}>
      <a
        href={`/?c=${encodeURIComponent(row.id)}`}
        aria-current={current ? "page" : undefined}
        title={title}
        onClick={(event) => {
          if (event.metaKey || event.ctrlKey || event.shiftKey) return;
          event.preventDefault();
          if (!current) void conversations.open(row.id, follow);
          else store.setPanel("list", false);
        }}
      >
        {title}
      </a>
      <span class="conversation-tools">
        <button type="button" class="icon-button" aria-label={t("chat.rename", { title })} onClick={() => setRenaming(true)}>
          <Icon name="pencil" />
        </button>
        <button type="button" class="icon-button" aria-label={t("chat.delete", { title })} onClick={() => askDelete(row)}>
          <Icon name="trash" />
        </button>
      </span>
    </li>
  );
}

function DeleteDialog({ row, close }) {
  return (
    <dialog
      class="dialog"
      aria-labelledby="delete-title"
      ref={(dialog) => dialog && !dialog.open && dialog.showModal()}
      onClose={close}
    >
      <h2 id="delete-title">{t("chat.deleteQuestion")}</h2>
      <p>{t("chat.deleteText", { title: row.title || t("chat.untitled") })}</p>
      <form method="dialog" class="dialog-buttons">
        <button class="button">{t("cancel")}</button>
        <button class="button danger" onClick={() => void conversations.remove(row.id)}>
          {t("chat.deleteYes")}
        </button>
      </form>
    </dialog>
  );
}

export function ConversationList() {
  const [doomed, setDoomed] = useState(null);
  const rows = store.conversations.value;
  return (
    <nav class="side list-panel" id="conversations" aria-label={t("chat.list")}>
      <button type="button" class="button primary new-chat" onClick={startNew}>
        <Icon name="plus" />
        {t("chat.new")}
      </button>
      <div class="list-scroll">
        {rows === null ? null : rows.length === 0 ? (
          <p class="muted list-empty">{t("chat.listEmpty")}</p>
        ) : (
          byDay(rows).map(([group, members]) => (
            <section key={group} aria-labelledby={`day-${group}`}>
              <h2 class="list-day" id={`day-${group}`}>
                {t(`day.${group}`)}
              </h2>
              <ul>
                {members.map((row) => (
                  <Row key={row.id} row={row} askDelete={setDoomed} />
                ))}
              </ul>
            </section>
          ))
        )}
      </div>
      {doomed && <DeleteDialog row={doomed} close={() => setDoomed(null)} />}
    </nav>
  );
}
