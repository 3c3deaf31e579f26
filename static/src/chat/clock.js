// A signal that ticks four times a second while an answer is on its way, and rests otherwise.
import { effect, signal } from "@preact/signals";
import { running } from "./store.js";

export const clock = signal(0);

effect(() => {
  if (!running.value) return undefined;
  const timer = setInterval(() => (clock.value = clock.peek() + 1), 250);
  return () => clearInterval(timer);
});
