// One answer: its text as Markdown, what it is doing now, and, when it is over, where its time went.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { t, tCode } from "../i18n/index.js";
import { copyText } from "../lib/clipboard.js";
import { count, duration, rate } from "../lib/format.js";
import { Icon } from "../lib/icons.jsx";
import { isOver, liveFigures, remaining } from "./answer.js";
import { clock } from "./clock.js";
import { toBlocks } from "./markdown.js";
import { receiptDetails } from "./receipt.js";
import { Receipt } from "./receipt.jsx";
import { isStaff } from "./staff.js";
import { linkWords, onWordKey } from "./wordlinks.js";
import { toNodes } from "./sanitise.js";
import { regenerate } from "./actions.js";
import { findMarks } from "./session.js";

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

/** An estimate has no milliseconds. */
const rough = (ms) => (ms < 90_000 ? `${Math.max(1, Math.round(ms / 1000))} s` : `${Math.round(ms / 60_000)} min`);

function place(position) {
  if (position === null) return t("answer.waiting");
  if (position >= 100) return t("answer.farBack", { n: count(position) });
  return position === 0 ? t("answer.next") : t("answer.position", { n: count(position) });
}

function queueWords(answer, now) {
  const parts = [place(answer.position)];
  if (answer.reason) parts.push(tCode("reason", answer.reason));
  const left = remaining(answer, now);
  if (left !== null) parts.push(left < 1000 && answer.position === 0 ? t("answer.soon") : t("answer.eta", { time: rough(left) }));
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
      <span>{answer.stopping ? t("answer.stopping") : answer.phase === "queued" ? queueWords(answer, now) : t("answer.sending")}</span>
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

/** For staff, once it is over: each word leads to the iteration that made it. After a reload, that is asked for first. */
function useWordLinks(box, turn, answer, over) {
  const place = over && isStaff && answer.receipt ? receiptDetails(answer.receipt).place : null;
  const known = place !== null && answer.marks.length > 0;
  useEffect(() => {
    if (known) linkWords(box.current, answer.text, answer.marks, place);
  }, [known]);
  return place !== null && !known ? () => findMarks(turn) : undefined;
}

export function Answer({ turn, last }) {
  const answer = turn.answer.value;
  const over = isOver(answer);
  const end = over ? ending(answer) : null;
  const box = useRef(null);
  const onCloser = useWordLinks(box, turn, answer, over);
  return (
    <div class="answer" aria-busy={!over} onPointerEnter={onCloser} onFocusIn={onCloser}>
      <div class="markdown" ref={box} onKeyDown={onWordKey}>
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
