// Where the KV map of the page comes from: the running engine's, followed by its records, or one out of history.
import { signal } from "@preact/signals";
import { BlockMap } from "./blocks.js";
import { blocksAfter, offers } from "./history.js";
import * as store from "./store.js";

const RETRY_MS = 1000;
const SETTLED_MS = 120; // an iteration is looked at for so long before its map is fetched

/** {key, before, after, changed, problem} of the iteration looked at while the picture stands still, or null. */
export const still = signal(null);

let fetching = null;
let triedAt = 0;

/** Fetches a running engine's whole map where its thread is lost. */
export async function catchUp(engine) {
  if (!offers.history || !engine.blocks.lost || !engine.blocks.hears || fetching || performance.now() - triedAt < RETRY_MS) return;
  fetching = engine;
  triedAt = performance.now();
  try {
    const found = await blocksAfter(engine.name);
    engine.blocks.take(BlockMap.of(found), found.epoch, found.n);
  } catch {
    // The newest iteration may not be kept yet: tried again at a later beat.
  } finally {
    fetching = null;
    store.beatSoon();
  }
}

let timer = null;

/** Gets the maps before and after iteration (epoch, n) of `engine`, once it has been looked at for a moment. */
export function lookAt(engine, epoch, n, changes) {
  const key = `${engine.name} ${epoch} ${n}`;
  if (still.value?.key === key) return;
  still.value = { key, before: null, after: null, changed: new Set(), problem: false };
  clearTimeout(timer);
  timer = setTimeout(async () => {
    const found = await fetchAround(engine, epoch, n, changes).catch(() => ({ problem: true }));
    if (still.value?.key === key) still.value = { ...still.value, ...found };
  }, SETTLED_MS);
}

export function lookAway() {
  clearTimeout(timer);
  if (still.value) still.value = null;
}

/** The map before is that after the iteration before, where that one is kept. */
async function fetchAround(engine, epoch, n, changes) {
  const after = BlockMap.of(await blocksAfter(engine.name, epoch, n));
  const first = engine.timeline.epochs.find((span) => span.epoch === epoch)?.first ?? n;
  const before = n > first ? BlockMap.of(await blocksAfter(engine.name, epoch, n - 1)) : null;
  return { before, after, changed: new Set((changes ?? []).map(([block]) => block)) };
}
