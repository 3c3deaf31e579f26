// The charts under the tape, on the same columns. Each is a list of what it stacks and what line it draws; a column is
// drawn without looking at its neighbours, but for the line's step from the one before.
import { columnX } from "./geometry.js";
import { ground } from "./film.js";

export const PLOT = 40;
export const HEAD = 18;
const GAP = 10;
export const CHART_HEIGHT = HEAD + PLOT + GAP;

const PHASES = ["forward", "schedule", "sample", "commit"];
const column = (name) => (tape, c) => tape[name][c];

/**
 * bars and line: [key of its words, value(tape, c), fill(theme), isCut]. `top`: the least its scale spans. isCut: the scale
 * does not stretch for it (the padding of one iteration can be a hundred times what all others compute).
 */
export const CHARTS = [
  {
    name: "batch",
    bars: [
      ["batchOne", column("rows"), (theme) => theme.colour.decode],
      ["heldOne", column("idle"), (theme) => theme.ghostHatch],
    ],
    ceiling: column("seats"),
    top: 4,
  },
  {
    name: "tokens",
    bars: [
      ["decodeOne", column("decodeTokens"), (theme) => theme.colour.decode],
      ["acceptedOne", column("accepted"), (theme) => theme.colour.drafted],
      ["prefillOne", column("prefillTokens"), (theme) => theme.prefillHatch],
      ["rejectedOne", column("rejected"), (theme) => theme.colour.ghost],
      ["paddingOne", column("padding"), (theme) => theme.ghostHatch, true],
    ],
    top: 8,
  },
  {
    name: "time",
    bars: PHASES.map((phase) => [phase, column(phase), (theme) => theme.colour[`phase-${phase}`]]),
    top: 1,
  },
  { name: "queue", bars: [], line: ["queueOne", column("waiting"), (theme) => theme.colour.queue], top: 4 },
  {
    name: "kv",
    bars: [
      ["usedOne", column("kvUsed"), (theme) => theme.colour["kv-used"]],
      ["cachedOne", column("kvCached"), (theme) => theme.cachedHatch],
    ],
    ceiling: column("kvTotal"),
    top: 1,
  },
  { name: "hits", bars: [], line: ["hitsOne", (tape, c) => 100 * tape.hitRate[c], (theme) => theme.colour.hits], top: 100, unit: " %" },
];
export const CHARTS_HEIGHT = CHARTS.length * CHART_HEIGHT;

/** Where chart number i stands: the y of its floor. */
export const floorOf = (i) => i * CHART_HEIGHT + HEAD + PLOT;

/** The top of each chart's scale, into `tops`: a round number over all that is shown, or its ceiling. True if one changed. */
export function scaleTops({ tape, until, geometry }, tops) {
  const first = Math.max(until - geometry.columns, tape.oldest);
  let changed = false;
  CHARTS.forEach((chart, i) => {
    let most = chart.top;
    for (let at = first; at < until; at++) {
      const c = at % tape.capacity;
      let stack = 0;
      for (const [, value, , isCut] of chart.bars) if (!isCut) stack += value(tape, c);
      if (stack > most) most = stack;
      if (chart.line && chart.line[1](tape, c) > most) most = chart.line[1](tape, c);
      if (chart.ceiling && chart.ceiling(tape, c) > most) most = chart.ceiling(tape, c);
    }
    const top = chart.ceiling ? most : roundUp(most);
    changed ||= top !== tops[i];
    tops[i] = top;
  });
  return changed;
}

export function roundUp(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 1.5, 2, 3, 4, 5, 6, 8]) if (value <= step * unit) return step * unit;
  return 10 * unit;
}

/** Columns from..to-1 of every chart, on their ground. */
export function paintCharts(ctx, scene, from, to) {
  const { tape, theme } = scene;
  const [x, width] = ground(ctx, scene, from, to, 0, CHARTS_HEIGHT);
  const first = Math.max(from, tape.oldest);
  CHARTS.forEach((chart, i) => {
    ctx.fillStyle = theme.colour.line;
    ctx.fillRect(x, floorOf(i), width, 1);
    if (chart.bars.length) bars(ctx, scene, chart, i, first, to);
    if (chart.line) line(ctx, scene, chart, i, first, to);
  });
}

/** One pass a series: the colour is set once for all its bars. */
function bars(ctx, { tape, geometry, theme, until, tops, base }, chart, i, from, to) {
  base.fill(0);
  const [floor, scale] = [floorOf(i), PLOT / tops[i]];
  for (const [, value, fill] of chart.bars) {
    ctx.fillStyle = fill(theme);
    for (let at = from; at < to; at++) {
      const amount = value(tape, at % tape.capacity);
      if (!(amount > 0)) continue;
      const low = base[at - from];
      const high = Math.min(PLOT, low + amount * scale);
      base[at - from] = high;
      ctx.fillRect(columnX(geometry, at, until), floor - high, geometry.pitch - geometry.gap, Math.max(high - low, 0.5));
    }
  }
}

const LINE = 2;

function line(ctx, { tape, geometry, theme, until, tops }, chart, i, from, to) {
  const [, value, colour] = chart.line;
  const floor = floorOf(i) - 1;
  const yOf = (at) => floor - Math.min(PLOT - LINE, (value(tape, at % tape.capacity) / tops[i]) * (PLOT - LINE));
  ctx.fillStyle = colour(theme);
  for (let at = from; at < to; at++) {
    const y = yOf(at);
    if (Number.isNaN(y)) continue;
    const x = columnX(geometry, at, until);
    ctx.fillRect(x, y - LINE / 2, geometry.pitch, LINE);
    const before = at > tape.oldest ? yOf(at - 1) : Number.NaN;
    if (before !== y && !Number.isNaN(before)) ctx.fillRect(x, Math.min(y, before) - LINE / 2, Math.min(LINE, geometry.pitch), Math.abs(y - before) + LINE);
  }
}
