// Selective batching as a picture: all tokens of the iteration pass the linear layers as one wide bar; attention is a
// bar of its own for each sequence, as long as the context it reads.
import { t } from "../i18n/index.js";
import { colourIndex } from "../lib/colours.js";
import { count } from "../lib/format.js";
import * as store from "./store.js";

const WIDTH = 320;
const BAR = 16;
const MOST_LANES = 64;

export function SelectiveBatching({ rows, padding }) {
  const tokens = rows.reduce((sum, row) => sum + row.tokens, 0);
  if (tokens === 0) return null;
  return (
    <figure class="selective">
      <figcaption>{t(tokens === 1 ? "selective.linearOne" : "selective.linear", { n: count(tokens) })}</figcaption>
      <LinearBar rows={rows} tokens={tokens} padding={padding} />
      <p class="selective-caption">{t(rows.length === 1 ? "selective.attentionOne" : "selective.attention", { n: count(rows.length) })}</p>
      <AttentionBars rows={rows.slice(0, MOST_LANES)} />
      {padding > 0 && <p class="muted">{t("selective.padding", { n: count(padding) })}</p>}
    </figure>
  );
}

/** One bar: each request's tokens side by side, what padding would add at the end. */
function LinearBar({ rows, tokens, padding }) {
  const scale = WIDTH / (tokens + padding);
  let x = 0;
  const place = (amount) => {
    const from = x;
    x += amount * scale;
    return { x: from, width: Math.max(amount * scale - (rows.length < 60 ? 1 : 0), 0.6) };
  };
  return (
    <svg viewBox={`0 0 ${WIDTH} ${BAR}`} preserveAspectRatio="none" class="selective-linear" aria-hidden="true">
      {rows.map((row) => (
        <rect key={row.seat} {...place(row.tokens)} y="0" height={BAR} class={look(row)} />
      ))}
      {padding > 0 && <rect {...place(padding)} y="0.5" height={BAR - 1} class="selective-padding" />}
    </svg>
  );
}

const look = (row) => {
  const { value: spot } = store.spot;
  return `fill-${colourIndex(row.id)}${row.prefill ? " is-prefill" : ""}${spot && spot !== row.id ? " faded" : ""}`;
};

/** A lane a sequence: the context it reads, and at its end the tokens that read it. */
function AttentionBars({ rows }) {
  const lane = rows.length > 24 ? 4 : rows.length > 8 ? 7 : 10;
  const longest = Math.max(...rows.map((row) => row.context), 1);
  return (
    <svg viewBox={`0 0 ${WIDTH} ${rows.length * lane}`} preserveAspectRatio="none" class="selective-attention" style={{ height: `${rows.length * lane}px` }} aria-hidden="true">
      {rows.map((row, i) => {
        const width = Math.max(3, (row.context / longest) * WIDTH);
        const own = Math.max(2, (Math.min(row.tokens, row.context) / longest) * WIDTH);
        return (
          <g key={row.seat}>
            <rect x="0" y={i * lane} width={width} height={lane - 2} class={`${look(row)} context`} />
            <rect x={width - own} y={i * lane} width={own} height={lane - 2} class={look(row)} />
          </g>
        );
      })}
    </svg>
  );
}
