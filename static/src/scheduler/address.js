// The page's address and what is looked at follow each other.
import { effect } from "@preact/signals";
import { readLink, writeLink } from "./links.js";
import * as store from "./store.js";
import { goTo, learnTimeline, openRequest, problem, reach } from "./travel.js";

/** Opens at what the address names, once the engines are known; after that the address follows what is looked at. */
export function followAddress() {
  const link = readLink(location.search);
  let state = "new"; // then "opening", then "open"
  effect(() => {
    const [engine, place, request] = [store.engine.value?.name, store.pinned.value, store.request.value];
    if (store.known.value && state === "new") {
      state = "opening"; // a page that is loaded anew meanwhile opens at the same place
      queueMicrotask(async () => {
        await openLink(link);
        state = "open";
        writeAddress(store.engine.value?.name, store.pinned.value, store.request.value);
      });
    } else if (state === "open") writeAddress(engine, place, request);
  });
}

const writeAddress = (engine, place, request) => history.replaceState(null, "", location.pathname + writeLink({ engine, place, request }));

async function openLink({ engine, epoch, n, request }) {
  try {
    if (engine) await reach(engine);
  } catch (error) {
    problem.value = error.message;
    return;
  }
  if (request) await openRequest(request, { travel: n === null });
  if (n === null || !store.engine.value) return;
  await learnTimeline(store.engine.value);
  const newest = store.engine.value.timeline.epochs.at(-1)?.epoch;
  await goTo({ epoch: epoch ?? newest, n }, { choose: true });
}
