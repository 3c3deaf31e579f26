// The figures beside the charts, on the canvas under the film: their scales, and the values in the column looked at.
import { count } from "../lib/format.js";
import { CHARTS, CHARTS_HEIGHT, floorOf, PLOT } from "./charts.js";

/** The ends of each scale, left of the plots. */
export function scales(ctx, { geometry, theme, tops }) {
  ctx.font = `11px ${theme.font}`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "right";
  ctx.fillStyle = theme.colour.surface;
  ctx.fillRect(0, 0, geometry.left, CHARTS_HEIGHT);
  ctx.fillStyle = theme.colour.muted;
  CHARTS.forEach((_, i) => {
    ctx.fillText(shortNumber(tops[i]), geometry.left - 6, floorOf(i) - PLOT + 5);
    ctx.fillText("0", geometry.left - 6, floorOf(i) - 4);
  });
}


/** The series' colours, names and values, right of the plots, in the column looked at. */
export function figures(ctx, scene, words) {
  const { geometry, theme, marks, tape, until } = scene;
  if (geometry.narrow) return;
  ctx.fillStyle = theme.colour.surface;
  ctx.fillRect(geometry.end, 0, geometry.width - geometry.end, CHARTS_HEIGHT);
  const at = marks.hover ?? marks.pinned ?? until - 1;
  if (!tape.holds(at)) return;
  ctx.font = `11px ${theme.font}`;
  ctx.textBaseline = "middle";
  CHARTS.forEach((chart, i) => figuresOf(ctx, scene, chart, i, at % tape.capacity, words));
}

/** The ones that are nothing now leave room to the others. */
function figuresOf(ctx, { tape, geometry, theme }, chart, i, c, words) {
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
