// Small pieces that several cards use: the name of a request, of an iteration, how an engine stands, a button with an icon.
import { useEffect } from "preact/hooks";
import { t, tCode } from "../i18n/index.js";
import { colourIndex } from "../lib/colours.js";
import { count, shortId } from "../lib/format.js";
import { Icon } from "../lib/icons.jsx";
import * as store from "./store.js";
import { goTo, openRequest } from "./travel.js";

export const Swatch = ({ id }) => <span class={`swatch request-${colourIndex(id)}`} aria-hidden="true" />;

/** A request's name: points at it everywhere while the pointer or the focus is on it, opens its card on a click. */
export function RequestName({ id, children }) {
  const point = () => store.pointAt(id);
  const leave = () => store.pointAt(null);
  useEffect(() => () => store.spot.peek() === id && leave(), [id]); // it may go from under the pointer
  return (
    <button type="button" class="request-name" title={id} onClick={() => openRequest(id)} onMouseEnter={point} onMouseLeave={leave} onFocus={point} onBlur={leave}>
      <Swatch id={id} />
      {shortId(id)}
      {children}
    </button>
  );
}

export function IterationLink({ place }) {
  const [epoch, n] = place;
  return (
    <button type="button" class="link" onClick={() => goTo({ epoch, n }, { choose: true })}>
      {count(n)}
    </button>
  );
}

/** Its model, its policy, and what is not as usual: it loads, is paused, runs slowly. */
export function EngineNotes({ engine }) {
  const { policy, next_policy: following } = engine.settings;
  return (
    <>
      {engine.model && <p class="muted">{engine.model}</p>}
      {engine.state !== "ready" && <p class="warn">{tCode("engine.state", engine.state)}</p>}
      {policy && <p class="policy">{t("scheduler.policy", { policy: tCode("policy", policy) })}</p>}
      {following && <p class="policy warn">{t("engine.switching", { policy: tCode("policy", following) })}</p>}
      {engine.paused && <p class="policy warn">{t("engine.paused")}</p>}
      {engine.slowMs > 0 && <p class="policy">{t("engine.slow", { n: engine.slowMs })}</p>}
    </>
  );
}

/** A button that shows only an icon; its words are its name. */
export function IconButton({ icon, words, ...rest }) {
  return (
    <button type="button" class="icon-button" aria-label={words} title={words} {...rest}>
      <Icon name={icon} />
    </button>
  );
}

/** Buttons of which one is pressed. `options`: [[value, words]]. */
export function Choice({ label, value, options, onChoose, disabled }) {
  return (
    <div class="choice" role="group" aria-label={label} title={label}>
      {options.map(([option, words]) => (
        <button key={option} type="button" aria-pressed={option === value} disabled={disabled} onClick={() => onChoose(option)}>
          {words ?? t(option)}
        </button>
      ))}
    </div>
  );
}
