// localStorage that never throws: storage may be full, forbidden, or hold what another version wrote.

const PREFIX = "batchscope.";

export function load(key, fallback = null) {
  try {
    const raw = localStorage.getItem(PREFIX + key);
    return raw === null ? fallback : JSON.parse(raw);
  } catch {
    return fallback;
  }
}

export function save(key, value) {
  try {
    localStorage.setItem(PREFIX + key, JSON.stringify(value));
  } catch {
    // What is not kept is chosen again.
  }
}

/** Plain strings, as theme.js reads them before any module is loaded. */
export function saveText(key, value) {
  try {
    if (value === null) localStorage.removeItem(PREFIX + key);
    else localStorage.setItem(PREFIX + key, value);
  } catch {
    // As above.
  }
}
