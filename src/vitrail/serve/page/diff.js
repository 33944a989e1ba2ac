// Which words two texts do not share: longest common subsequence over words. And which words belong to a concept.

/** A text as words and the spaces between them; joined they are the text. @param {string} text @returns {string[]} */
export const wordsOf = (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];

const isWord = (piece) => /\S/.test(piece);

/**
 * For each piece of `text`, whether the base lacks it at this place.
 * @param {string} base
 * @param {string} text
 * @returns {{piece: string, isNew: boolean}[]}
 */
export function differing(base, text) {
  const one = wordsOf(base).filter(isWord);
  const pieces = wordsOf(text);
  const two = pieces.filter(isWord);
  const kept = common(one, two);
  let at = -1;
  return pieces.map((piece) => {
    if (!isWord(piece)) return { piece, isNew: false };
    at += 1;
    return { piece, isNew: !kept.has(at) };
  });
}

// Places in `two` of a longest common subsequence.
function common(one, two) {
  const rows = Array.from({ length: one.length + 1 }, () => new Uint16Array(two.length + 1));
  for (let i = one.length - 1; i >= 0; i--) {
    for (let j = two.length - 1; j >= 0; j--)
      rows[i][j] = one[i] === two[j] ? rows[i + 1][j + 1] + 1 : Math.max(rows[i + 1][j], rows[i][j + 1]);
  }
  const kept = new Set();
  for (let i = 0, j = 0; i < one.length && j < two.length;) {
    if (one[i] === two[j]) {
      kept.add(j);
      i += 1;
      j += 1;
    } else if (rows[i + 1][j] >= rows[i][j + 1]) i += 1;
    else j += 1;
  }
  return kept;
}

/**
 * Each single word of the concepts' characteristic words → the concept.
 * @param {any[]} cards
 * @returns {Map<string, any>}
 */
export function characteristic(cards) {
  const found = new Map();
  for (const card of cards) {
    for (const word of card.words)
      if (!/\s/.test(word)) found.set(word.toLowerCase(), found.get(word.toLowerCase()) ?? card);
  }
  return found;
}
