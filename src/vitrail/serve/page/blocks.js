// Where the diffusion blocks of an answer lie. The server fills one block before it opens the next; the first is what
// the prompt leaves open of its last block. Where the prompt's length is not told, the commits tell: a token can only
// stand in a new block once everything before that block is there.

/** The blocks of one answer. */
export class Blocks {
  /**
   * @param {number} size tokens in a block
   * @param {number} longest tokens of the answer at most
   * @param {number|undefined} promptTokens where it is known
   */
  constructor(size, longest, promptTokens) {
    Object.assign(this, { size, longest });
    const all = Array.from({ length: size }, (_, at) => at + 1);
    this.firsts = promptTokens === undefined ? all : [size - (promptTokens % size)];
  }

  /** The end of the first block, as far as is known. @returns {number} */
  get first() {
    return Math.min(this.firsts.at(-1), this.longest);
  }

  /**
   * The end of the block that a commit falls into.
   * @param {number} pos of the committed token
   * @param {number} whole how many tokens from the first on are there before it
   * @returns {number}
   */
  edgeAt(pos, whole) {
    const fits = this.firsts.filter((first) => this.#startOf(pos, first) <= whole);
    if (fits.length) this.firsts = fits;
    const first = this.firsts.at(-1);
    return Math.min(pos < first ? first : this.#startOf(pos, first) + this.size, this.longest);
  }

  #startOf(pos, first) {
    return pos < first ? 0 : first + Math.floor((pos - first) / this.size) * this.size;
  }
}
