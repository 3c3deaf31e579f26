// Where the time of an iteration went.
import { t } from "../i18n/index.js";

const PHASES = ["schedule", "forward", "sample", "commit"];

export function Phases({ tape, c }) {
  const spent = Math.max(tape.spent(c), 0.001);
  return (
    <>
      <div class="phase-bar" aria-hidden="true">
        {PHASES.map((phase) => (
          <span key={phase} class={`phase-${phase}`} style={{ flexGrow: tape[phase][c] / spent }} />
        ))}
      </div>
      <ul class="phase-list">
        {PHASES.map((phase) => (
          <li key={phase}>
            <span class={`swatch phase-${phase}`} aria-hidden="true" />
            {t(`phase.${phase}`)} <b>{tape[phase][c].toFixed(tape[phase][c] < 10 ? 2 : 1)}</b>
          </li>
        ))}
      </ul>
    </>
  );
}
