// What the marks of the tape mean.
import { t } from "../i18n/index.js";

const MARKS = {
  prefill: (
    <>
      <path class="legend-block" d="M1.5 1.5h15v11h-15z" />
      <path class="legend-line" d="M2 12L12 2M7 12L16 3M2 7l5-5M12 12l4-4" />
    </>
  ),
  decode: <path class="legend-fill" d="M0 5h5v4H0zM6.5 5h5v4h-5zM13 5h5v4h-5z" />,
  drafts: (
    <>
      <path class="legend-fill" d="M3 10h5v3H3zM3 6h5v3H3zM10 10h5v3h-5z" />
      <path class="legend-fill faint" d="M3 2h5v3H3zM10 6h5v3h-5z" />
    </>
  ),
  finished: <path class="legend-end" d="M8 0h2v14H8z" />,
  preempted: <path class="legend-dash" d="M1.5 1.5h15v11h-15z" />,
  held: (
    <>
      <path class="legend-ghost" d="M0 4.500h18M0 9.500h18" />
      <path class="legend-ghost" d="M1 9l4-4M6 9l4-4M11 9l4-4" />
    </>
  ),
  kept: <path class="legend-fill faint" d="M0 6h3v2H0zM5 6h3v2H5zM10 6h3v2h-3zM15 6h3v2h-3z" />,
  padding: <path class="legend-ghost" d="M2 13V8h14v5zM2 7l5-5M7 7l5-5M12 7l4-4" />,
};

/** `shown`: names of the marks that need telling now. */
export function Legend({ shown }) {
  return (
    <ul class="legend">
      {shown.map((name) => (
        <li key={name}>
          <svg viewBox="0 0 18 14" aria-hidden="true">
            {MARKS[name]}
          </svg>
          {t(`tape.${name}`)}
        </li>
      ))}
    </ul>
  );
}
