// Where a passage and the answer share words: the stretch that the server found, marked in the passage.

import { el } from "./dom.js";

/**
 * The passage with the shared stretch marked, whatever its case and white space.
 * @param {string} text
 * @param {string} shared
 * @returns {Array<Node|string>}
 */
export function overlapSpans(text, shared) {
  const words = shared.trim();
  if (!words) return [text];
  const pattern = words
    .split(/\s+/)
    .map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"))
    .join("\\s+");
  const found = new RegExp(pattern, "u").exec(text) ?? new RegExp(pattern, "iu").exec(text);
  if (!found) return [text];
  const stop = found.index + found[0].length;
  return [text.slice(0, found.index), el("mark", { class: "shared" }, found[0]), text.slice(stop)];
}
