// The turns of the open conversation, and the scroll that follows them while one is at the bottom.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { t } from "../i18n/index.js";
import { copyText } from "../lib/clipboard.js";
import { Icon } from "../lib/icons.jsx";
import { Answer } from "./answer.jsx";
import { Empty } from "./empty.jsx";
import * as store from "./store.js";

const NEAR_PX = 80; // so close to the end counts as "at the bottom"

async function copyCode(event) {
  const button = event.target.closest?.("[data-copy-code]");
  if (!button) return;
  const copied = await copyText(button.closest("figure").querySelector("code").textContent);
  button.textContent = t(copied ? "copied" : "copyFailed");
  setTimeout(() => (button.textContent = t("chat.copyCode")), 1500);
}

export function Thread() {
  const box = useRef(null);
  const content = useRef(null);
  const atEnd = useRef(true);
  const [away, setAway] = useState(false);
  const turns = store.turns.value;

  const toEnd = (behavior = "instant") => box.current.scrollTo({ top: box.current.scrollHeight, behavior });

  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => atEnd.current && toEnd());
    observer.observe(content.current);
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);

  // A new message or another conversation is read from its end.
  useLayoutEffect(() => {
    atEnd.current = turns.length > 0;
    setAway(false);
    if (atEnd.current) toEnd();
    else box.current.scrollTo({ top: 0 });
  }, [store.currentId.value, turns.length]);

  const onScroll = () => {
    const { scrollHeight, scrollTop, clientHeight } = box.current;
    atEnd.current = scrollHeight - scrollTop - clientHeight < NEAR_PX;
    setAway(!atEnd.current);
  };

  return (
    <div class="thread-box">
      <div class="thread" ref={box} onScroll={onScroll} onClick={copyCode} tabIndex={0} aria-label={t("chat.messages")} role="region">
        <div class="thread-content" ref={content}>
          {turns.length === 0 && !store.opening.value && !store.currentId.value && <Empty />}
          {turns.map((turn, i) => (
            <article class="turn" key={turn.key} aria-label={t("chat.turn", { n: i + 1 })}>
              <h2 class="sr-only">{t("chat.you")}</h2>
              <p class="question">{turn.user}</p>
              <h2 class="sr-only">{t("chat.model")}</h2>
              <Answer turn={turn} last={i === turns.length - 1} />
            </article>
          ))}
        </div>
      </div>
      {away && (
        <button type="button" class="icon-button to-end" aria-label={t("chat.toEnd")} onClick={() => toEnd("smooth")}>
          <Icon name="down" />
        </button>
      )}
    </div>
  );
}
