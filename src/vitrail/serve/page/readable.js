// Tokens as a reader sees them. A token may hold only a part of a character (U+FFFD); where the whole text tells what
// a run of such tokens makes, the first of them shows it and the others are empty.

import { isSpecial } from "./dom.js";

const PART = "\uFFFD";
const MOST_BYTES = 4;

/**
 * @param {{text: string}[]} tokens
 * @param {string} whole the text that they make together; control tokens are not in it
 * @returns {string[]} one text a token, unchanged where it cannot be told
 */
export function readable(tokens, whole) {
  const texts = tokens.map((token) => token.text);
  const isPart = (text) => text.includes(PART);
  const shown = [];
  let at = 0;
  while (shown.length < texts.length) {
    const start = shown.length;
    const stop = runEnd(texts, start, isPart);
    if (stop === start) {
      const found = isSpecial(texts[start]) ? -1 : whole.indexOf(texts[start], at);
      if (found >= 0) at = found + texts[start].length;
      shown.push(texts[start]);
      continue;
    }
    const after = texts.slice(
      stop,
      runEnd(texts, stop, (text) => !isPart(text)),
    );
    const next = after.filter((text) => !isSpecial(text)).join("");
    const end = next ? whole.indexOf(next, at + 1) : whole.length;
    const run = whole.slice(at, Math.max(end, at));
    const isTold = run && !isPart(run) && run.length <= MOST_BYTES * (stop - start);
    shown.push(...texts.slice(start, stop).map((text, place) => (!isTold ? text : place ? "" : run)));
  }
  return shown;
}

function runEnd(texts, start, is) {
  let stop = start;
  while (stop < texts.length && is(texts[stop])) stop += 1;
  return stop;
}
