// Who waits, and why not yet: the newest iteration's list.
import { t, tCode } from "../i18n/index.js";
import { colourIndex } from "../lib/colours.js";
import { count, shortId } from "../lib/format.js";
import * as store from "./store.js";

export function WaitingTable() {
  store.beat.value;
  const engine = store.engine.value;
  const latest = store.paused.value ? store.paused.value.latest : engine.latest;
  const waiting = engine.waiting || store.paused.value ? (latest?.waiting ?? []) : [];
  const total = latest?.waiting_total ?? waiting.length;
  return (
    <section class="card waiting" aria-labelledby="waiting-title" data-testid="waiting">
      <header class="card-head">
        <h2 id="waiting-title">{t("waiting.title")}</h2>
        {waiting.length > 0 && <p class="muted">{count(total)}</p>}
      </header>
      {waiting.length === 0 ? (
        <p class="muted">{t("waiting.none")}</p>
      ) : (
        <div class="table-scroll" tabIndex={0} role="region" aria-labelledby="waiting-title">
          <table class="rows">
            <thead>
              <tr>
                <th scope="col" class="number">{t("waiting.place")}</th>
                <th scope="col">{t("waiting.request")}</th>
                <th scope="col">{t("waiting.reason")}</th>
                <th scope="col" class="detail">{t("waiting.detail")}</th>
              </tr>
            </thead>
            <tbody>
              {waiting.map((row, i) => (
                <tr key={row.request_id}>
                  <td class="number muted">{i + 1}</td>
                  <td title={row.request_id}>
                    <span class={`swatch request-${colourIndex(row.request_id)}`} aria-hidden="true" />
                    {shortId(row.request_id)}
                  </td>
                  <td class="warn">{tCode("reason", row.reason)}</td>
                  <td class="muted detail">{row.detail}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {total > waiting.length && <p class="muted">{t("waiting.more", { n: count(total - waiting.length) })}</p>}
        </div>
      )}
    </section>
  );
}
