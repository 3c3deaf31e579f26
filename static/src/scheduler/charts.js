// The charts under the tape, on the same columns: time by phase, tokens, batch and queue, KV blocks.
import { count } from "../lib/format.js";
import { columnX } from "./geometry.js";

const PLOT = 46;
const HEAD = 18;
const GAP = 12;
export const CHART_HEIGHT = HEAD + PLOT + GAP;

const PHASES = ["forward", "schedule", "sample", "commit"];

/** What each chart stacks as bars and draws as lines: [key, value(tape, c), fill(theme)]. `top`: the least it spans. */
export const CHARTS = [
  {
    name: "time",
    bars: PHASES.map((phase) => [phase, (tape, c) => tape[phase][c], (theme) => theme.colour[`phase-${phase}`]]),
    top: 1,
  },
  {
    name: "tokens",
    bars: [
      ["decodeOne", (tape, c) => tape.decodeTokens[c], (theme) => theme.colour.decode],
      ["prefillOne", (tape, c) => tape.prefillTokens[c], (theme) => theme.prefillHatch],
    ],
    top: 8,
  },
  {
    name: "batch",
    bars: [["batchOne", (tape, c) => tape.rows[c], (theme) => theme.colour.decode]],
    line: ["queueOne", (tape, c) => tape.waiting[c], (theme) => theme.colour.queue],
    top: 4,
  },
  {
    name: "kv",
    bars: [
      ["usedOne", (tape, c) => tape.kvUsed[c], (theme) => theme.colour["kv-used"]],
      ["cachedOne", (tape, c) => tape.kvCached[c], (theme) => theme.cachedHatch],
    ],
    ceiling: (tape, c) => tape.kvTotal[c],
    top: 1,
  },
];

export function drawCharts(ctx, { tape, geometry, theme, until, marks, words }) {
  const first = Math.max(until - geometry.columns, tape.total - tape.length, 0);
  ctx.clearRect(0, 0, geometry.width, CHARTS.length * CHART_HEIGHT);
  ctx.font = `11px ${theme.font}`;
  ctx.textBaseline = "middle";
  CHARTS.forEach((chart, i) => {
    const scene = { ctx, tape, geometry, theme, until, first, chart, floor: i * CHART_HEIGHT + HEAD + PLOT };
    scene.top = scaleTop(scene);
    head(scene, words);
    bars(scene);
    if (chart.line) line(scene, chart.line);
    for (const [column, width] of [[marks.pinned, 2], [marks.hover, 1]]) mark(scene, column, width);
  });
}

/** The top of the scale: a round number over everything shown, or the ceiling where there is one. */
function scaleTop({ tape, until, first, chart }) {
  let most = chart.top;
  for (let column = first; column < until; column++) {
    const c = column % tape.capacity;
    const stack = chart.bars.reduce((sum, [, value]) => sum + value(tape, c), 0);
    most = Math.max(most, stack, chart.line ? chart.line[1](tape, c) : 0, chart.ceiling ? chart.ceiling(tape, c) : 0);
  }
  return chart.ceiling ? most : roundUp(most);
}

export function roundUp(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 1.5, 2, 3, 4, 5, 6, 8]) if (value <= step * unit) return step * unit;
  return 10 * unit;
}

function head({ ctx, tape, geometry, theme, until, chart, floor, top }, words) {
  const y = floor - PLOT - HEAD / 2;
  ctx.textAlign = "left";
  ctx.fillStyle = theme.colour.text;
  ctx.fillText(words[chart.name], geometry.left, y);
  ctx.fillStyle = theme.colour.muted;
  ctx.textAlign = "right";
  ctx.fillText(shortNumber(top), geometry.left - 6, floor - PLOT + 5);
  ctx.fillText("0", geometry.left - 6, floor - 4);
  ctx.fillStyle = theme.colour.line;
  ctx.fillRect(geometry.left, floor, geometry.end - geometry.left, 1);
  if (geometry.narrow || until === 0) return;
  const c = (until - 1) % tape.capacity;
  const series = [...chart.bars.filter(([, value]) => chart.name !== "time" || value(tape, c) >= 0), ...(chart.line ? [chart.line] : [])];
  series.forEach(([key, value, fill], i) => {
    const row = floor - PLOT + 6 + i * 12.5;
    ctx.fillStyle = fill(theme);
    if (chart.line?.[0] === key) ctx.fillRect(geometry.end + 8, row - 1, 8, 2);
    else ctx.fillRect(geometry.end + 8, row - 4, 8, 8);
    ctx.fillStyle = theme.colour.muted;
    ctx.textAlign = "left";
    ctx.fillText(words[key], geometry.end + 21, row);
    ctx.fillStyle = theme.colour.text;
    ctx.textAlign = "right";
    ctx.fillText(figure(value(tape, c)), geometry.width - 4, row);
  });
}

const figure = (value) => (Number.isInteger(value) ? count(value) : value.toFixed(1));
const shortNumber = (value) => (value >= 1000 ? `${Number((value / 1000).toPrecision(2))}k` : String(Number(value.toPrecision(3))));

function bars({ ctx, tape, geometry, theme, until, first, chart, floor, top }) {
  const base = new Float64Array(Math.max(0, until - first));
  for (const [, value, fill] of chart.bars) {
    const path = new Path2D();
    for (let column = first; column < until; column++) {
      const amount = value(tape, column % tape.capacity);
      if (amount <= 0) continue;
      const low = (base[column - first] / top) * PLOT;
      base[column - first] += amount;
      const high = (base[column - first] / top) * PLOT;
      path.rect(columnX(geometry, column, until), floor - high, geometry.pitch - 1, Math.max(high - low, 0.5));
    }
    ctx.fillStyle = fill(theme);
    ctx.fill(path);
  }
}

function line({ ctx, tape, geometry, theme, until, first, floor, top }, [, value, colour]) {
  ctx.strokeStyle = colour(theme);
  ctx.lineWidth = 2;
  ctx.lineJoin = "round";
  ctx.beginPath();
  for (let column = first; column < until; column++) {
    const x = columnX(geometry, column, until);
    const y = floor - (value(tape, column % tape.capacity) / top) * PLOT - 1;
    if (column === first) ctx.moveTo(x, y);
    else ctx.lineTo(x, y);
    ctx.lineTo(x + geometry.pitch, y);
  }
  ctx.stroke();
}

function mark({ ctx, geometry, theme, until, first, floor }, column, width) {
  if (column === null || column < first || column >= until) return;
  ctx.strokeStyle = theme.colour.accent;
  ctx.lineWidth = width;
  ctx.strokeRect(columnX(geometry, column, until) - 1, floor - PLOT - 2, geometry.pitch + 1, PLOT + 3);
}
