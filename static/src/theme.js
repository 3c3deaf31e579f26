// Runs before the first paint, so that no page flashes in the wrong theme. Owns <html data-theme>: the theme a person
// chose, else the system's, which is followed while the page is open. Styles know the attribute alone.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    let chosen = null;
    try {
      chosen = localStorage.getItem("batchscope.theme");
    } catch {
      // Storage may be forbidden; the system's scheme applies then.
    }
    const system = dark.matches ? "dark" : "light";
    document.documentElement.dataset.theme = chosen === "light" || chosen === "dark" ? chosen : system;
    dispatchEvent(new CustomEvent("themechange"));
  };
  apply();
  dark.addEventListener("change", apply);
})();
