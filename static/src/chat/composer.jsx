// Where one writes. Enter sends, Shift+Enter breaks the line; an input method's own Enter is left to it.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { t } from "../i18n/index.js";
import { Icon } from "../lib/icons.jsx";
import { send } from "./actions.js";
import { stop } from "./session.js";
import * as store from "./store.js";

const TALLEST_PX = 220;

export function Composer() {
  const [text, setText] = useState("");
  const area = useRef(null);
  const composing = useRef(false);
  const running = store.running.value;

  useLayoutEffect(() => {
    const { style, scrollHeight } = area.current;
    style.height = "auto";
    style.height = `${Math.min(area.current.scrollHeight || scrollHeight, TALLEST_PX)}px`;
  }, [text]);

  useLayoutEffect(() => {
    // On a touch screen the keyboard would cover half of what one came to read.
    if (matchMedia("(hover: hover)").matches) area.current.focus();
  }, [store.currentId.value]);

  const submit = async () => {
    const words = area.current.value;
    if (!words.trim() || store.running.value) return;
    setText("");
    if (!(await send(words))) setText((now) => now || words);
  };

  const onKeyDown = (event) => {
    // keyCode 229 and the flag of our own: Safari ends a composition before its Enter arrives.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || composing.current || event.keyCode === 229) return;
    event.preventDefault();
    void submit();
  };

  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        void submit();
      }}
    >
      <div class="composer-box">
        <textarea
          id="composer-text"
          ref={area}
          rows={1}
          value={text}
          placeholder={t("composer.placeholder")}
          aria-label={t("composer.label")}
          aria-describedby="composer-hint"
          onInput={(event) => setText(event.target.value)}
          onCompositionStart={() => (composing.current = true)}
          onCompositionEnd={() => setTimeout(() => (composing.current = false))}
          onKeyDown={onKeyDown}
        />
        {running ? (
          <button type="button" class="send stop" data-testid="stop" aria-label={t("composer.stop")} title={t("composer.stop")} onClick={() => stop(running)}>
            <Icon name="stop" />
          </button>
        ) : (
          <button type="submit" class="send" data-testid="send" disabled={!text.trim()} aria-label={t("composer.send")} title={t("composer.send")}>
            <Icon name="send" />
          </button>
        )}
      </div>
      <p class="composer-hint" id="composer-hint">
        {t("composer.hint")}
      </p>
    </form>
  );
}
