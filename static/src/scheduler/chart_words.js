// The words and figures around the charts: what each shows, its scale, and the values in the column looked at.
import { count } from "../lib/format.js";
import { CHARTS, CHARTS_HEIGHT, floorOf, HEAD, PLOT } from "./charts.js";
import { columnX } from "./geometry.js";

export function drawChartWords(ctx, scene, words) {
  const { geometry, theme, marks, tape, until } = scene;
  ctx.clearRect(0, 0, geometry.width, CHARTS_HEIGHT);
  ctx.font = `11px ${theme.font}`;
  ctx.textBaseline = "middle";
  const at = marks.hover ?? marks.pinned ?? until - 1;
  CHARTS.forEach((chart, i) => {
    frame(ctx, scene, chart, i, words);
    if (!geometry.narrow && tape.holds(at)) figures(ctx, scene, chart, i, at % tape.capacity, words);
    mark(ctx, scene, floorOf(i), marks.pinned, 2);
    mark(ctx, scene, floorOf(i), marks.hover, 1);
  });
}

function frame(ctx, { geometry, theme, tops }, chart, i, words) {
  const floor = floorOf(i);
  ctx.textAlign = "left";
  ctx.fillStyle = theme.colour.text;
  ctx.fillText(words[chart.name], geometry.left, floor - PLOT - HEAD / 2);
  ctx.fillStyle = theme.colour.muted;
  ctx.textAlign = "right";
  ctx.fillText(shortNumber(tops[i]), geometry.left - 6, floor - PLOT + 5);
  ctx.fillText("0", geometry.left - 6, floor - 4);
}

/** The series' colours, names and values, at the right edge; the ones that are nothing now leave room to the others. */
function figures(ctx, { tape, geometry, theme }, chart, i, c, words) {
  const series = chart.line ? [...chart.bars, chart.line] : chart.bars;
  let row = floorOf(i) - PLOT + 4;
  for (const one of series) {
    const [key, value, fill] = one;
    const amount = value(tape, c);
    if (series.length > 2 && chart.name === "tokens" && amount === 0 && !["decodeOne", "prefillOne"].includes(key)) continue;
    ctx.fillStyle = fill(theme);
    if (one === chart.line) ctx.fillRect(geometry.end + 8, row - 1, 8, 2);
    else ctx.fillRect(geometry.end + 8, row - 4, 8, 8);
    ctx.fillStyle = theme.colour.muted;
    ctx.textAlign = "left";
    ctx.fillText(words[key], geometry.end + 21, row);
    ctx.fillStyle = theme.colour.text;
    ctx.textAlign = "right";
    ctx.fillText(Number.isNaN(amount) ? "–" : figure(amount) + (chart.unit ?? ""), geometry.width - 4, row);
    row += 12;
  }
}

const figure = (value) => (Number.isInteger(value) ? count(value) : value.toFixed(1));
const shortNumber = (value) => (value >= 1000 ? `${Number((value / 1000).toPrecision(2))}k` : String(Number(value.toPrecision(3))));

function mark(ctx, { geometry, theme, until }, floor, column, width) {
  if (column === null || column < until - geometry.columns || column >= until) return;
  ctx.strokeStyle = theme.colour.accent;
  ctx.lineWidth = width;
  ctx.strokeRect(columnX(geometry, column, until) - 1, floor - PLOT - 2, geometry.pitch + 1, PLOT + 3);
}
