// From the explanation to panes: which pieces a token or the whole answer has, and how large each is.
// Size is |contribution| against the average word (centred, which is what the softmax sees). Pieces too small to see
// are added to "other known" and "other discovered"; nothing is left out.

import { countingOf } from "./choice.js";
import { keyOf, styleOf } from "./colour.js";

/**
 * @typedef {{key: string, name: string, style: string, size: number, value: number, share: number, concept: any}} Pane
 */

const MAX_PETALS = 18;

/** Pieces of one place, unsorted. @param {any} item concepts of a token @returns {Pane[]} */
export function piecesOf(item) {
  const { sums, ranked, others } = countingOf(item, "centred");
  const pieces = ranked.map((entry) => piece(keyOf(entry), entry.name, styleOf(entry), entry.value, entry));
  for (const entry of others)
    pieces.push(piece(`rest-${entry.head}`, `other ${entry.head} concepts`, `rest ${entry.head}`, entry.value));
  pieces.push(piece("residual", "residual", "residual", sums.residual));
  return pieces.filter((one) => one.size > 0);
}

const piece = (key, name, style, value, concept = null) => ({
  key,
  name,
  style,
  value,
  size: Math.abs(value),
  share: 0,
  concept,
});

/** Pieces added over many places. @param {any[]} items @returns {Pane[]} */
export function summed(items) {
  const found = new Map();
  for (const one of items.flatMap(piecesOf)) {
    const before = found.get(one.key);
    found.set(one.key, before ? { ...before, size: before.size + one.size, value: before.value + one.value } : one);
  }
  return [...found.values()];
}

/**
 * Largest first, small ones folded into the others, the residual last; shares sum to 1.
 * @param {Pane[]} pieces
 * @param {number} [smallest] share below which a concept is folded
 * @returns {Pane[]}
 */
export function arranged(pieces, smallest = 0.03) {
  const total = pieces.reduce((sum, one) => sum + one.size, 0) || 1;
  const rest = new Map(pieces.filter((one) => !one.concept).map((one) => [one.key, { ...one }]));
  const kept = [];
  for (const one of pieces
    .filter((other) => other.concept)
    .sort((a, b) => b.size - a.size || (a.key < b.key ? -1 : 1))) {
    if (one.size / total >= smallest && kept.length < MAX_PETALS) kept.push(one);
    else fold(rest, one);
  }
  const order = ["rest-known", "rest-discovered", "residual"];
  return [...kept, ...order.filter((key) => rest.has(key)).map((key) => rest.get(key))].map((one) => ({
    ...one,
    share: one.size / total,
  }));
}

function fold(rest, one) {
  const { head } = one.concept;
  const key = `rest-${head}`;
  const before = rest.get(key) ?? piece(key, `other ${head} concepts`, `rest ${head}`, 0);
  rest.set(key, { ...before, size: before.size + one.size, value: before.value + one.value });
}

/** The three heads of a rose. @param {Pane[]} panes @returns {Pane[]} */
export function headsOf(panes) {
  return ["known", "discovered", "residual"].flatMap((head) => {
    const own = panes.filter((pane) => pane.style.split(" ").includes(head));
    if (!own.length) return [];
    const sum = (field) => own.reduce((total, pane) => total + pane[field], 0);
    const style = head === "residual" ? head : `head ${head}`;
    return [
      {
        key: head,
        name: head === "residual" ? head : `all ${head} concepts`,
        style,
        value: sum("value"),
        size: sum("size"),
        share: sum("share"),
        concept: null,
      },
    ];
  });
}
