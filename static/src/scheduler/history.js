// Kept history over HTTP: ranges of iterations, block maps, exports. Knows the addresses, not what is shown.
import { api } from "../lib/api.js";

const root = globalThis.document?.getElementById("scheduler")?.dataset ?? {};
/** What this server offers this user; the template says so. */
export const offers = {
  history: root.history !== undefined,
  controls: root.controls !== undefined,
  admin: root.admin !== undefined,
};

const query = (values) => {
  const set = Object.entries(values).filter(([, value]) => value !== undefined && value !== null);
  return new URLSearchParams(set).toString();
};

/** {engine, epoch, records, oldest, newest, epochs}. Without a span: the newest. */
export const iterations = (engine, span = {}) => api("GET", `/scheduler/iterations/?${query({ engine, ...span })}`);

/** {engine, epoch, first, last} of a request. */
export const whereabouts = (request) => api("GET", `/scheduler/iterations/?${query({ request })}`);

/** {total, blocks, owners} after iteration (epoch, n). */
export const blocksAfter = (engine, epoch, n) => api("GET", `/scheduler/blocks/?${query({ engine, epoch, n })}`);

export const exportAddress = (engine, span, format) => `/scheduler/export/?${query({ engine, ...span, format })}`;
