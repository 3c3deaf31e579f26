// What lies under the pointer, in words.
import { t } from "../i18n/index.js";
import { count, duration, shortId } from "../lib/format.js";
import * as store from "./store.js";

export function Tooltip() {
  const hover = store.hover.value;
  const engine = store.engine.value;
  if (!hover || !engine) return null;
  const { tape } = engine;
  const c = hover.column % tape.capacity;
  const row = hover.seat === null ? null : tape.rowsOf(c).find((candidate) => candidate.seat === hover.seat);
  const below = hover.y < 120;
  return (
    <div
      class="tooltip"
      role="presentation"
      data-side={hover.x > 260 ? "left" : "right"}
      style={{ left: `${hover.x}px`, top: `${hover.y + (below ? 18 : -14)}px` }}
      data-vertical={below ? "below" : "above"}
    >
      <p>
        <b>{t("inspector.title", { n: count(tape.n[c]) })}</b> {duration(tape.spent(c))}
      </p>
      {row ? (
        <>
          <p>
            {shortId(row.id)} · {t("inspector.seat", { n: row.seat })}
          </p>
          <p>
            {row.prefill ? t("inspector.prefill", { n: count(row.tokens) }) : t("inspector.decode")}
            {row.finished && ` · ${t("inspector.finished")}`}
            {row.preempted && ` · ${t("inspector.preempted")}`}
          </p>
          <p class="muted">
            {t("inspector.context")} {count(row.context)} · {t("inspector.blocks")} {count(row.blocks)}
          </p>
        </>
      ) : (
        <p class="muted">
          {t("chart.prefillOne")} {count(tape.prefillTokens[c])} · {t("chart.decodeOne")} {count(tape.decodeTokens[c])} ·{" "}
          {t("chart.queueOne")} {count(tape.waiting[c])}
        </p>
      )}
    </div>
  );
}
