// Why a request waits, in the reader's language. The engine says it in English with its numbers; a sentence this page
// knows is said again in its own words, any other one stands as it came. Pure.
import { t, tCode } from "../i18n/index.js";

const KNOWN = [
  ["seats", /^seats (\d+) of (\d+)$/, ["taken", "seats"]],
  ["seatsIdle", /^seats (\d+) of (\d+), (\d+) of them idle$/, ["taken", "seats", "idle"]],
  ["blocks", /^needs (\d+) blocks, (\d+) free$/, ["need", "free"]],
  ["blocksKept", /^needs (\d+) blocks, (\d+) free, (\d+) of them kept for those running$/, ["need", "free", "kept"]],
  ["blocksLost", /^(\d+) lost their blocks in this iteration$/, ["preempted"]],
  ["budget", /^budget (\d+) of (\d+)$/, ["used", "limit"]],
  ["pace", /^(\d+) tokens fit ([\d.]+) ms between the tokens of (\d+) decoding$/, ["tokens", "ms", "decoding"]],
  ["behind", /^(\d+) ahead$/, ["ahead"]],
  ["paused", /^the engine is paused; (\d+) ahead$/, ["ahead"]],
  ["slow", /^the engine runs slowly, an iteration every ([\d.]+) ms; (\d+) ahead$/, ["ms", "ahead"]],
  ["cap", /^its user has (\d+) running$/, ["running"]],
  ["runs", /^(\w+) batch: (\d+) still run, (\d+) iterations left at most$/, ["policy", "running", "left"]],
  ["full", /^(\w+) batch of (\d+) is full$/, ["policy", "size"]],
  ["fills", /^(\w+) batch fills: (\d+) of (\d+), (\d+) ms left at most$/, ["policy", "there", "size", "ms"]],
  ["switching", /^switching to the (\w+) policy: (\d+) running requests end first$/, ["policy", "running"]],
];

export const reasonWords = (reason) => tCode("reason", reason);

/** Reason and numbers in one short sentence. */
export function whyWords({ reason, detail }) {
  for (const [name, pattern, places] of KNOWN) {
    const found = pattern.exec(detail);
    if (!found) continue;
    const values = Object.fromEntries(places.map((place, i) => [place, found[i + 1]]));
    if (values.policy) values.policy = tCode("policy", values.policy);
    return t(`why.${name}`, values);
  }
  return detail ? `${reasonWords(reason)}: ${detail}` : reasonWords(reason);
}
