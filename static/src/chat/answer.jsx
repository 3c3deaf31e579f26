// One answer: its text as Markdown, what it is doing now, and, when it is over, where its time went.
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { t, tCode } from "../i18n/index.js";
import { copyText } from "../lib/clipboard.js";
import { count, duration, rate } from "../lib/format.js";
import { Icon } from "../lib/icons.jsx";
import { isOver, liveFigures } from "./answer.js";
import { clock } from "./clock.js";
import { toBlocks } from "./markdown.js";
import { Receipt } from "./receipt.jsx";
import { toNodes } from "./sanitise.js";
import { regenerate } from "./actions.js";

/** A Markdown block. Made again only when its source changes, so that a selection in a finished block stays. */
function Block({ html }) {
  const box = useRef(null);
  useLayoutEffect(() => box.current.replaceChildren(toNodes(html)), [html]);
  return <div class="block" ref={box} />;
}

function Markdown({ text }) {
  const previous = useRef([]);
  const blocks = useMemo(() => (previous.current = toBlocks(text, previous.current)), [text]);
  return blocks.map((block, i) => <Block key={i} html={block.html} />);
}

function queueWords(answer) {
  const parts = [answer.position ? t("answer.position", { n: answer.position }) : t("answer.waiting")];
  if (answer.reason) parts.push(tCode("reason", answer.reason));
  if (answer.etaMs) parts.push(t("answer.eta", { time: duration(answer.etaMs) }));
  return parts.join(" · ");
}

function Progress({ answer }) {
  clock.value; // re-render as time goes
  const now = performance.now();
  const { first, perSecond, tokens } = liveFigures(answer, now);
  if (answer.phase === "streaming") {
    return (
      <p class="progress" data-phase="streaming">
        <span class="pulse" aria-hidden="true" />
        {answer.stopping ? t("answer.stopping") : t("answer.streaming")}
        <Figures first={first} perSecond={perSecond} tokens={tokens} />
      </p>
    );
  }
  return (
    <p class="progress" data-phase={answer.phase}>
      <span class="pulse" aria-hidden="true" />
      {answer.stopping ? t("answer.stopping") : answer.phase === "queued" ? queueWords(answer) : t("answer.sending")}
      {answer.sentAt !== null && <span class="figure">{duration(Math.max(0, now - answer.sentAt))}</span>}
    </p>
  );
}

export function Figures({ first, perSecond, tokens }) {
  return (
    <>
      {tokens > 0 && <span class="figure">{t("answer.tokens", { n: count(tokens) })}</span>}
      {perSecond !== null && <span class="figure">{t("answer.rate", { n: rate(perSecond) })}</span>}
      {first !== null && <span class="figure">{t("answer.first", { time: duration(first) })}</span>}
    </>
  );
}

function ending(answer) {
  if (answer.finishReason === "length") return t("answer.endedLength", { n: count(answer.tokens) });
  if (answer.finishReason === "cancelled") return t("answer.endedCancelled");
  if (answer.finishReason === "expired") return t("answer.endedExpired");
  return answer.text === "" && answer.phase === "finished" ? t("answer.endedEmpty") : null;
}

function Failure({ error }) {
  const known = tCode("error", error?.code, "");
  return (
    <div class="failure" role="group" aria-label={t("answer.failed")}>
      <p>{known || error?.message || t("error.internal")}</p>
      {known && error?.message && error.message !== known && <p class="muted">{error.message}</p>}
    </div>
  );
}

function Tools({ turn, answer, last }) {
  const [copied, setCopied] = useState(null);
  const copy = async () => {
    setCopied((await copyText(answer.text)) ? "copied" : "copyFailed");
    setTimeout(() => setCopied(null), 1500);
  };
  return (
    <div class="tools">
      {answer.text && (
        <button type="button" class="tool" onClick={copy}>
          <Icon name={copied === "copied" ? "check" : "copy"} />
          {t(copied ?? "answer.copy")}
        </button>
      )}
      {last && (
        <button type="button" class="tool" onClick={() => regenerate(turn)}>
          <Icon name="refresh" />
          {t(answer.phase === "failed" ? "answer.retry" : "answer.regenerate")}
        </button>
      )}
    </div>
  );
}

export function Answer({ turn, last }) {
  const answer = turn.answer.value;
  const over = isOver(answer);
  const end = over ? ending(answer) : null;
  return (
    <div class="answer" aria-busy={!over}>
      <div class="markdown">
        <Markdown text={answer.text} />
      </div>
      {!over && <Progress answer={answer} />}
      {end && <p class="ending">{end}</p>}
      {answer.phase === "failed" && <Failure error={answer.error} />}
      {over && answer.receipt && <Receipt answer={answer} />}
      {over && <Tools turn={turn} answer={answer} last={last} />}
    </div>
  );
}
