// The receipt under an answer: a thin strip of its time; its parts in words on hover or focus, a table when opened.
import { Fragment } from "preact";
import { t, tCode } from "../i18n/index.js";
import { count, duration, percent, rate, shortId } from "../lib/format.js";
import { liveFigures } from "./answer.js";
import { queueReasons, receiptDetails, receiptFigures, receiptParts } from "./receipt.js";
import { isStaff } from "./staff.js";
import { iterationLink, requestLink } from "./words.js";

function Swatch({ name }) {
  return <span class={`swatch part-${name}`} aria-hidden="true" />;
}

function Strip({ parts }) {
  return (
    <span class="receipt-bar" aria-hidden="true">
      {parts.map((part) => (
        <span key={part.name} class={`part part-${part.name}`} style={{ flexGrow: part.share }} />
      ))}
    </span>
  );
}

function Legend({ parts }) {
  return (
    <span class="receipt-legend">
      {parts.map((part) => (
        <span key={part.name}>
          <Swatch name={part.name} />
          {t(`receipt.${part.name}`)} <b>{duration(part.ms)}</b>
        </span>
      ))}
    </span>
  );
}

function Iteration({ n, place }) {
  const words = t("receipt.iteration", { n });
  return isStaff && place ? <a href={iterationLink(place, n)}>{words}</a> : words;
}

function Table({ receipt, total, parts }) {
  return (
    <table class="receipt-table">
      <caption class="sr-only">{t("receipt.title")}</caption>
      <tbody>
        {parts.map((part) => (
          <Fragment key={part.name}>
            <tr>
              <th scope="row">
                <Swatch name={part.name} />
                {t(`receipt.${part.name}`)}
                <span class="muted receipt-help">{t(`receipt.${part.name}.help`)}</span>
              </th>
              <td>{duration(part.ms)}</td>
              <td class="muted">{percent(part.ms, total)}</td>
            </tr>
            {part.name === "queue" &&
              queueReasons(receipt).map(({ reason, ms }) => (
                <tr key={reason} class="receipt-sub">
                  <th scope="row">{tCode("reason", reason)}</th>
                  <td>{duration(ms)}</td>
                  <td />
                </tr>
              ))}
          </Fragment>
        ))}
        <tr class="receipt-sum">
          <th scope="row">{t("receipt.total")}</th>
          <td>{duration(total)}</td>
          <td />
        </tr>
      </tbody>
    </table>
  );
}

/** "Who cost me most", and what this one cost others. */
function Others({ details }) {
  const { batchmates, caused, preemptions, first, last, place } = details;
  return (
    <>
      {batchmates.length > 0 && (
        <>
          <h3>{t("receipt.dearest")}</h3>
          <ol class="receipt-dearest">
            {batchmates.map(({ request_id, ms }) => (
              <li key={request_id}>
                {isStaff ? <a href={requestLink(request_id)}>{shortId(request_id)}</a> : <span>{shortId(request_id)}</span>} <b>{duration(ms)}</b>
              </li>
            ))}
          </ol>
        </>
      )}
      <ul class="receipt-notes">
        {caused >= 0.05 && <li>{t("receipt.caused", { time: duration(caused) })}</li>}
        {preemptions > 0 && <li>{t("receipt.preemptions", { n: count(preemptions) })}</li>}
        {first && (
          <li>
            <Iteration n={first} place={place} /> – <Iteration n={last} place={place} />
          </li>
        )}
      </ul>
    </>
  );
}

function Usage({ answer }) {
  const engine = receiptFigures(answer.receipt, answer.tokens);
  const seen = liveFigures(answer, answer.lastAt);
  const first = seen.first ?? engine.first;
  const perSecond = engine.perSecond ?? seen.perSecond;
  const usage = answer.usage;
  return (
    <ul class="receipt-usage">
      {first !== null && <li>{t("answer.first", { time: duration(first) })}</li>}
      {perSecond !== null && <li>{t("answer.rate", { n: rate(perSecond) })}</li>}
      {usage && <li>{t("receipt.tokens", { prompt: count(usage.prompt_tokens), answer: count(usage.completion_tokens) })}</li>}
      {usage?.cached_tokens > 0 && <li>{t("receipt.cached", { n: count(usage.cached_tokens) })}</li>}
    </ul>
  );
}

export function Receipt({ answer }) {
  const { receipt } = answer;
  const { total, parts } = receiptParts(receipt);
  return (
    <section class="receipt" aria-label={t("receipt.title")}>
      {parts.length > 0 && (
        <details>
          <summary>
            <Strip parts={parts} />
            <span class="receipt-total">
              <span class="sr-only">{t("receipt.total")} </span>
              {duration(total)}
            </span>
            <Legend parts={parts} />
          </summary>
          <div class="receipt-body">
            <Table receipt={receipt} total={total} parts={parts} />
            <Others details={receiptDetails(receipt)} />
          </div>
        </details>
      )}
      <Usage answer={answer} />
    </section>
  );
}
