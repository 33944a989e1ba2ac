// Day, night, or as the system has it; the choice is kept where the browser allows it.

import { byId } from "./dom.js";

const KEY = "vitrail-theme";
const ORDER = ["auto", "light", "dark"];
const NAMES = { auto: "as the system", light: "day", dark: "night" };
const SIGNS = { auto: "◐", light: "☀", dark: "☾" };

function kept() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function keep(theme) {
  try {
    if (theme === "auto") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    // Storage is closed to us: the choice holds until the page is closed.
  }
}

function apply(theme) {
  document.documentElement.dataset.theme = theme;
  const button = byId("theme");
  button.firstElementChild.textContent = SIGNS[theme];
  button.setAttribute("aria-label", `Light: ${NAMES[theme]}. Change`);
  button.title = `Light: ${NAMES[theme]}`;
}

/** Set up the button. */
export function startTheme() {
  let theme = ORDER.includes(kept()) ? kept() : "auto";
  apply(theme);
  byId("theme").addEventListener("click", () => {
    theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
    keep(theme);
    apply(theme);
  });
}
