// What stands behind a choice in the explanation document: its parts, its heat, its heading, its numbers.

import { counted, el, isSpecial, own, percent, tokenName } from "./dom.js";

/** @typedef {import("./permalink.js").Place} Place */

const ROUNDING = 5e-3;

/**
 * What one choice rests on; null where it was not measured.
 * @param {any} doc
 * @param {Place} place
 * @returns {{inputs: any, concepts: any, sources: any, chunk: any, token: any}}
 */
export function partsOf(doc, place) {
  const isToken = place.kind === "token";
  const chunk =
    doc.chunks.find((one) => (isToken ? one.start <= place.at && place.at < one.stop : one.chunk === place.at)) ?? null;
  const kind = isToken ? "tokens" : "chunks";
  const field = isToken ? "pos" : "chunk";
  const find = (part) => doc[part][kind].find((one) => one[field] === place.at) ?? null;
  const sources = chunk && (doc.sources.chunks.find((one) => one.chunk === chunk.chunk) ?? null);
  return {
    inputs: find("inputs"),
    concepts: find("concepts"),
    sources,
    chunk,
    token: isToken ? doc.tokens[place.at] : null,
  };
}

/** The scores behind the heat. @param {any} inputs @returns {Map<string, number>} */
export function heatOf(inputs) {
  const scores = new Map();
  for (const entry of inputs?.ranked ?? []) scores.set(entry.where + entry.pos, entry.score);
  (inputs?.scores ?? []).forEach((score, pos) => scores.set(`prompt${pos}`, score));
  return scores;
}

/** The heading over the panels. @param {any} doc @param {Place} place @returns {Node[]} */
export function headingOf(doc, place) {
  const { token, chunk } = partsOf(doc, place);
  if (!token)
    return [
      `Passage ${place.at + 1}, `,
      el("small", {}, `all its ${counted((chunk?.stop ?? 0) - (chunk?.start ?? 0), "token")} together`),
    ];
  const name = isSpecial(token.text) ? `The ${tokenName(token.text)}` : `“${tokenName(token.text)}”`;
  return [
    own(name),
    " ",
    el(
      "small",
      {},
      `token ${place.at + 1} of ${doc.tokens.length}, written at step ${token.step + 1}; the model gave it ${percent(token.prob)}`,
    ),
  ];
}

/**
 * The numbers of one choice, counted raw or centred. Concepts that are not listed are summed by themselves.
 * @param {any} item
 * @param {"raw"|"centred"} mode
 * @returns {{sums: Record<string, number>, ranked: any[], others: {name: string, head: string, value: number}[]}}
 */
export function countingOf(item, mode) {
  const end = mode === "raw" ? "" : "_centred";
  const sums = { known: item[`known${end}`], discovered: item[`discovered${end}`], residual: item[`residual${end}`] };
  const ranked = item.ranked.map((entry) => ({ ...entry, value: mode === "raw" ? entry.contribution : entry.centred }));
  ranked.sort((one, other) => Math.abs(other.value) - Math.abs(one.value));
  const others = ["known", "discovered"].map((head) => {
    const listed = ranked.filter((entry) => entry.head === head).reduce((sum, entry) => sum + entry.value, 0);
    return { name: `other ${head}`, head, value: sums[head] - listed };
  });
  return { sums, ranked, others: others.filter((entry) => Math.abs(entry.value) >= ROUNDING) };
}

/**
 * The passage that a token between passages stands behind; an answer without words counts as one.
 * @param {any} doc
 * @param {Place} place
 * @returns {{chunk: number, start: number, stop: number}}
 */
export function nearest(doc, place) {
  return (
    doc.chunks.findLast((chunk) => chunk.stop <= place.at) ??
    doc.chunks[0] ?? { chunk: 0, start: 0, stop: doc.tokens.length }
  );
}

/** The word that shows most: the one whose largest concept pushes hardest. @param {any} doc @returns {Place} */
export function strongest(doc) {
  let [best, size] = [0, -Infinity];
  for (const item of doc.concepts.tokens) {
    const { text } = doc.tokens[item.pos];
    const isWord = /\p{L}{3}/u.test(text) && !isSpecial(text);
    const push = (item.ranked[0]?.centred ?? 0) - (isWord ? 0 : 1e6);
    if (push > size) [best, size] = [item.pos, push];
  }
  return { kind: "token", at: best };
}
