// How long to wait before trying a lost connection again.

export const FIRST_MS = 500;
export const LONGEST_MS = 15_000;

/** Exponential, with jitter so that a restarted server is not met by everyone at once. `attempt` counts from 0. */
export function retryDelay(attempt, random = Math.random) {
  const ceiling = Math.min(LONGEST_MS, FIRST_MS * 2 ** Math.min(attempt, 10));
  return Math.round(ceiling * (0.5 + random() / 2));
}
