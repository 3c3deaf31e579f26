// What every page has: the theme toggle, the language switch, the menus of the header.
import { t } from "./i18n/index.js";
import { saveText } from "./lib/storage.js";

const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");

function describe(button) {
  const label = t(root.dataset.theme === "dark" ? "shell.toLight" : "shell.toDark");
  button.setAttribute("aria-label", label);
  button.title = label;
}

for (const button of document.querySelectorAll("[data-theme-toggle]")) {
  describe(button);
  addEventListener("themechange", () => describe(button));
  button.addEventListener("click", () => {
    const next = root.dataset.theme === "dark" ? "light" : "dark";
    root.dataset.theme = next;
    // The system's own scheme needs no memory: the page goes on following it.
    saveText("theme", next === (dark.matches ? "dark" : "light") ? null : next);
    dispatchEvent(new CustomEvent("themechange"));
  });
}

for (const select of document.querySelectorAll("[data-language-form] select")) {
  select.addEventListener("change", () => select.form.submit());
}

// A <details> menu closes on Escape and on a click elsewhere.
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details[data-menu][open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const menu of document.querySelectorAll("details[data-menu][open]")) {
    menu.open = false;
    menu.querySelector("summary").focus();
  }
});
