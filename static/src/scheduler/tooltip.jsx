// What lies under the pointer, in words.
import { t } from "../i18n/index.js";
import { count, duration, shortId } from "../lib/format.js";
import { Work } from "./inspector.jsx";
import { rowsOf } from "./readings.js";
import { IDLE, SEATED } from "./ring.js";
import * as store from "./store.js";

export function Tooltip() {
  const { value: hover } = store.hover;
  const tape = store.shownTape();
  if (!hover || !tape?.holds(hover.column)) return null;
  const c = hover.column % tape.capacity;
  const row = hover.seat === null ? null : rowsOf(tape, c, SEATED).find((candidate) => candidate.seat === hover.seat);
  const isHeld = hover.seat !== null && hover.seat < tape.stride && tape.flags[c * tape.stride + hover.seat] & IDLE;
  const below = hover.y < 160;
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
      {row ? <RowWords row={row} /> : isHeld ? <p>{t("tape.held")}</p> : <ColumnWords tape={tape} c={c} />}
    </div>
  );
}

function RowWords({ row }) {
  return (
    <>
      <p>
        {shortId(row.id)} · {t("inspector.seat", { n: row.seat })}
      </p>
      <p>
        <Work row={row} />
      </p>
      <p class="muted">
        {t("inspector.context")} {count(row.context)} · {t("inspector.blocks")} {count(row.blocks)}
      </p>
    </>
  );
}

function ColumnWords({ tape, c }) {
  return (
    <p class="muted">
      {t("chart.prefillOne")} {count(tape.prefillTokens[c])} · {t("chart.decodeOne")} {count(tape.decodeTokens[c] + tape.accepted[c])} · {t("chart.queueOne")} {count(tape.waiting[c])}
    </p>
  );
}
