// The page's one animation loop. It runs while somebody asks for it and sleeps else.

const drawers = new Set();
let frame = null;

/** `draw(now)` is called in the next frame after each `wake`, in the order of registration; true asks for one more. now: ms. */
export function onFrame(draw) {
  drawers.add(draw);
  return () => drawers.delete(draw);
}

export function wake() {
  frame ??= requestAnimationFrame(run);
}

function run(now) {
  frame = null;
  let more = false;
  for (const draw of drawers) if (draw(now)) more = true;
  if (more) wake();
}
