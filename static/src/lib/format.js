// Numbers for people. One place, so that the same figure looks the same on every page.
import { locale } from "../i18n/index.js";

const whole = new Intl.NumberFormat(locale, { maximumFractionDigits: 0 });

export const count = (n) => whole.format(n);

/** Milliseconds: "0.4 ms", "18.4 ms", "184 ms", "2.41 s", "3 min 5 s". */
export function duration(ms) {
  if (!Number.isFinite(ms)) return "–";
  const size = Math.abs(ms);
  if (size < 99.95) return `${ms.toFixed(1)} ms`;
  if (size < 999.5) return `${ms.toFixed(0)} ms`;
  if (size < 59_995) return `${(ms / 1000).toFixed(size < 9_995 ? 2 : 1)} s`;
  const seconds = Math.round(ms / 1000);
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

/** A rate: one decimal below ten. */
export function rate(perSecond) {
  if (!Number.isFinite(perSecond)) return "–";
  return perSecond > 0 && perSecond < 9.95 ? perSecond.toFixed(1) : whole.format(perSecond);
}

export function percent(part, all) {
  if (!all) return "0 %";
  const value = (100 * part) / all;
  return value > 0 && value < 1 ? "<1 %" : `${Math.round(value)} %`;
}

/** The wall-clock time of Unix seconds, to the millisecond. */
export function clock(unixSeconds) {
  const date = new Date(unixSeconds * 1000);
  const two = (n) => String(n).padStart(2, "0");
  const ms = String(date.getMilliseconds()).padStart(3, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${ms}`;
}

/** A request id short enough for a label: the end differs, since ids made close together share their start. */
export function shortId(id) {
  const bare = id.replace(/[^0-9a-zA-Z]/g, "");
  return `#${bare.slice(-5)}`;
}
