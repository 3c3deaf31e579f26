// What the address says is looked at: an iteration, or a request. Pure.

/** {engine, epoch, n, request} of a query string; what is missing or no number is null. */
export function readLink(search) {
  const query = new URLSearchParams(search);
  const whole = (name) => (/^\d{1,15}$/.test(query.get(name) ?? "") ? Number(query.get(name)) : null);
  return { engine: query.get("engine"), epoch: whole("epoch"), n: whole("n"), request: query.get("request") };
}

/** The query string for what is looked at; "" where the picture just runs. */
export function writeLink({ engine, place, request }) {
  const query = new URLSearchParams();
  if (request) query.set("request", request);
  if (place) {
    if (engine) query.set("engine", engine);
    query.set("epoch", place.epoch);
    query.set("n", place.n);
  }
  const words = query.toString();
  return words && `?${words}`;
}
