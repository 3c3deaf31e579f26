// Runs before the first paint: applies the theme a person chose, so that no page flashes in the wrong one.
(() => {
  try {
    const chosen = localStorage.getItem("batchscope.theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage may be forbidden; the system's scheme applies then.
  }
})();
