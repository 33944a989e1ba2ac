// Faults as a reader sees them: one plain line, how to mend it, and a way to try again.

import { Problem } from "./api.js";
import { el } from "./dom.js";

/** A fault in one line. @param {unknown} error @returns {[string, string]} what happened, how to mend it */
export function inWords(error) {
  return error instanceof Problem
    ? [error.message, error.mend]
    : [`Something on this page failed (${error}).`, "Reload the page."];
}

/** A fault in a box, with a button. @param {unknown} error @param {() => void} onRetry @returns {HTMLElement} */
export function problemBox(error, onRetry) {
  const [message, mend] = inWords(error);
  return el(
    "div",
    { class: "problem", role: "alert" },
    el("p", {}, el("b", {}, message), " ", mend),
    el("button", { type: "button", class: "plain", onclick: onRetry }, "Retry"),
  );
}
