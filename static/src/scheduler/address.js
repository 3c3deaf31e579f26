// The page's address and what is looked at follow each other.
import { effect } from "@preact/signals";
import { readLink, writeLink } from "./links.js";
import * as store from "./store.js";
import { goTo, learnTimeline, openRequest } from "./travel.js";

/** Opens at what the address names, once the engines are known; after that the address follows what is looked at. */
export function followAddress() {
  const link = readLink(location.search);
  let opened = false;
  effect(() => {
    const [engine, place, request] = [store.engine.value?.name, store.pinned.value, store.request.value];
    if (store.known.value && engine && !opened) {
      opened = true;
      queueMicrotask(() => openLink(link));
    } else if (opened) history.replaceState(null, "", location.pathname + writeLink({ engine, place, request }));
  });
}

async function openLink({ engine, epoch, n, request }) {
  if (engine && store.engines.value.has(engine)) store.choose(engine);
  if (request) await openRequest(request, { travel: n === null });
  if (n === null) return;
  await learnTimeline(store.engine.value);
  const newest = store.engine.value.timeline.epochs.at(-1)?.epoch;
  await goTo({ epoch: epoch ?? newest, n }, { choose: true });
}
