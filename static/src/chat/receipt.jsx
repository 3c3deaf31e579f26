// The receipt strip under an answer: one bar, its parts in words, the token counts.
import { t } from "../i18n/index.js";
import { count, duration, rate } from "../lib/format.js";
import { liveFigures } from "./answer.js";
import { receiptFigures, receiptParts } from "./receipt.js";

export function Receipt({ answer }) {
  const { total, parts } = receiptParts(answer.receipt);
  const engine = receiptFigures(answer.receipt, answer.tokens);
  const seen = liveFigures(answer, answer.lastAt);
  const first = seen.first ?? engine.first;
  const perSecond = engine.perSecond ?? seen.perSecond;
  const usage = answer.usage;
  return (
    <section class="receipt" aria-label={t("receipt.title")}>
      <div class="receipt-bar" aria-hidden="true">
        {parts.map((part) => (
          <span key={part.name} class={`part part-${part.name}`} style={{ flexGrow: part.share }} title={`${t(`receipt.${part.name}`)} ${duration(part.ms)}`} />
        ))}
      </div>
      <ul class="receipt-parts">
        <li class="receipt-total">
          <span class="sr-only">{t("receipt.total")} </span>
          {duration(total)}
        </li>
        {parts.map((part) => (
          <li key={part.name}>
            <span class={`swatch part-${part.name}`} aria-hidden="true" />
            {t(`receipt.${part.name}`)} <b>{duration(part.ms)}</b>
          </li>
        ))}
      </ul>
      <ul class="receipt-parts receipt-usage">
        {usage && <li>{t("receipt.tokens", { prompt: count(usage.prompt_tokens), answer: count(usage.completion_tokens) })}</li>}
        {usage?.cached_tokens > 0 && <li>{t("receipt.cached", { n: count(usage.cached_tokens) })}</li>}
        {perSecond !== null && <li>{t("answer.rate", { n: rate(perSecond) })}</li>}
        {first !== null && <li>{t("answer.first", { time: duration(first) })}</li>}
      </ul>
    </section>
  );
}
