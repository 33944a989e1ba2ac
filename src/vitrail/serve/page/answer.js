// The answer as a row of panes: dark while masked, lit in the order of denoising, then something to choose from.
// Owns the prompt line, the panes, the passage marks, the choice (roving tabindex) and the heat upon them.

import { announce, el, isSpecial, splitToken, tokenName } from "./dom.js";
import { readable } from "./readable.js";

/** @typedef {import("./permalink.js").Place} Place */
/** @typedef {import("./stream.js").Commit} Commit */

const HEAT_STEPS = 5;
const TOLD_EVERY = 16;

/**
 * Where the block of a token ends: blocks are counted from the start of the prompt, so the first one of the answer is
 * what the prompt leaves open of its last.
 * @param {number} pos of the token in the answer
 * @param {number} size tokens in a block
 * @param {number} promptTokens
 * @returns {number}
 */
export const blockEnd = (pos, size, promptTokens) =>
  (Math.floor((promptTokens + pos) / size) + 1) * size - promptTokens;

/** One answer on the page. */
export class AnswerView {
  /**
   * @param {HTMLElement} promptBox
   * @param {HTMLElement} answerBox
   * @param {(place: Place, isByHand: boolean) => void} onChoose
   */
  constructor(promptBox, answerBox, onChoose) {
    Object.assign(this, { promptBox, answerBox, onChoose });
    this.reset();
    answerBox.addEventListener("keydown", (event) => this.#move(event));
  }

  reset() {
    Object.assign(this, {
      panes: [],
      promptNodes: [],
      choices: [],
      chosen: -1,
      commits: [],
      lit: 0,
    });
    this.answerBox.replaceChildren();
  }

  /**
   * Begin: the prompt as typed, and the first block of masked panes.
   * @param {import("./stream.js").Ask} ask
   * @param {number} block tokens in a block
   * @param {number} promptTokens how many the prompt has
   */
  begin(ask, block, promptTokens) {
    this.reset();
    Object.assign(this, { longest: ask.max_tokens, block, promptTokens });
    this.promptBox.replaceChildren(ask.prompt);
    this.#openFor(0);
  }

  // Open the panes of the block that a token stands in.
  #openFor(pos) {
    const edge = Math.min(blockEnd(pos, this.block, this.promptTokens), this.longest);
    while (this.panes.length < edge) {
      const hidden = { tabindex: "-1", "aria-pressed": "false", "aria-hidden": "true", disabled: true };
      const node = el("button", { type: "button", class: "token masked", ...hidden });
      const box = el("span", { class: "pane" }, node);
      this.panes.push({ box, node, text: null });
      this.answerBox.append(box);
    }
  }

  /** Light the panes of new commits. @param {Commit[]} commits */
  step(commits) {
    const before = Math.floor(this.lit / TOLD_EVERY);
    for (const commit of commits) {
      this.commits.push(commit);
      for (const [place, pos] of commit.positions.entries()) this.#light(pos, commit.tokens[place]);
    }
    if (Math.floor(this.lit / TOLD_EVERY) > before) announce(`${this.lit} of ${this.longest} tokens`);
  }

  #light(pos, text) {
    this.#openFor(pos);
    const pane = this.panes[pos];
    if (!pane) return;
    if (pane.text === null) this.lit += 1;
    write(pane, text);
    pane.node.classList.add("struck");
  }

  /**
   * The answer is written, or broke off: then what is dark stays dark.
   * @param {number} [count] tokens that count; those behind the end of the text go
   */
  end(count = this.panes.length) {
    while (this.panes.length > count) this.panes.pop().box.remove();
    for (const pane of this.panes) pane.node.classList.remove("struck");
  }

  /** @returns {boolean} whether anything is lit. */
  get hasText() {
    return this.lit > 0;
  }

  /**
   * Make every token and every passage something to choose.
   * @param {any} doc the explanation
   */
  open(doc) {
    this.#openPrompt(readable(doc.prompt_tokens, doc.prompt));
    this.end(doc.tokens.length);
    readable(doc.tokens, doc.text).forEach((text, pos) => write(this.panes[pos], text));
    this.choices = [];
    this.panes.forEach((pane, pos) => this.#openToken(pane, pos, doc.chunks));
    for (const { node, place } of this.choices)
      node.addEventListener("click", () => this.choose(place, { isByHand: true }));
    if (this.choices[0]) this.choices[0].node.tabIndex = 0;
  }

  // Tokens that hold only a part of a character share the node of the token that begins it.
  #openPrompt(texts) {
    const parts = [];
    this.promptNodes = [];
    for (const text of texts) {
      if (text) parts.push(promptToken(text));
      this.promptNodes.push(parts.at(-1)[1]);
    }
    this.promptBox.replaceChildren(...parts.flat());
  }

  // Tokens that end a passage or the text belong to no passage, and can be chosen like any other.
  #openToken({ box, node }, pos, chunks) {
    const chunk = chunks.find((one) => one.start <= pos && pos < one.stop) ?? null;
    if (chunk?.start === pos) {
      const name = `passage ${chunk.chunk + 1}`;
      const whole = el(
        "button",
        {
          type: "button",
          class: "whole",
          tabindex: "-1",
          "aria-pressed": "false",
          "aria-label": `${name}, all its words together`,
        },
        name,
      );
      box.before(pos ? " " : "", whole);
      this.choices.push({ node: whole, place: { kind: "chunk", at: chunk.chunk }, chunk });
    }
    node.disabled = false;
    node.removeAttribute("aria-hidden");
    this.choices.push({ node, place: { kind: "token", at: pos }, chunk });
  }

  /**
   * Choose a token or a passage.
   * @param {Place} place
   * @param {{isByHand?: boolean, focus?: boolean}} [how]
   */
  choose(place, { isByHand = false, focus = false } = {}) {
    const index = this.choices.findIndex((choice) => choice.place.kind === place.kind && choice.place.at === place.at);
    if (index < 0) return;
    for (const [at, { node }] of this.choices.entries()) {
      node.setAttribute("aria-pressed", String(at === index));
      node.tabIndex = at === index ? 0 : -1;
    }
    this.chosen = index;
    const { node, chunk } = this.choices[index];
    this.panes.forEach((pane, pos) =>
      pane.box.classList.toggle(
        "within",
        Boolean(chunk) && place.kind === "chunk" && pos >= chunk.start && pos < chunk.stop,
      ),
    );
    if (focus) node.focus();
    this.onChoose(place, isByHand);
  }

  #move(event) {
    const last = this.choices.length - 1;
    const at = Math.max(this.chosen, 0);
    const moves = {
      ArrowRight: at + 1,
      ArrowLeft: at - 1,
      ArrowDown: this.#passage(at, 1),
      ArrowUp: this.#passage(at, -1),
      Home: 0,
      End: last,
    };
    if (!(event.key in moves) || last < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.choose(this.choices[Math.min(Math.max(moves[event.key], 0), last)].place, { isByHand: true, focus: true });
  }

  #passage(at, step) {
    let next = at + step;
    while (next > 0 && next < this.choices.length - 1 && this.choices[next].place.kind !== "chunk") next += step;
    return next;
  }

  /**
   * Show attributions as heat.
   * @param {Map<string, number>} scores "prompt3" or "generated5" → logits
   */
  heat(scores) {
    const limit = Math.max(0, ...[...scores.values()].map(Math.abs));
    const sums = new Map();
    const add = (node, value = 0) => sums.set(node, (sums.get(node) ?? 0) + value);
    this.promptNodes.forEach((node, pos) => add(node, scores.get(`prompt${pos}`)));
    this.panes.forEach(({ node }, pos) => add(node, scores.get(`generated${pos}`)));
    for (const [node, value] of sums) warm(node, value, limit);
  }

  /**
   * The answer as it stood after some steps.
   * @param {number} step 0 is all masked
   * @param {number} last how many steps there are
   * @returns {string} what the step wrote
   */
  showStep(step, last) {
    const steps = new Map();
    this.commits.forEach((commit, at) => commit.positions.forEach((pos) => steps.set(pos, at)));
    const fresh = [];
    this.panes.forEach(({ node, text }, pos) => {
      const at = steps.get(pos) ?? 0;
      node.classList.toggle("dark", at >= step);
      node.classList.toggle("fresh", step < last && at === step - 1);
      if (at === step - 1 && text !== null) fresh.push(tokenName(text));
    });
    if (step === 0) return "all masked";
    return step >= last ? "finished" : `wrote ${fresh.join(", ")}`;
  }

  /**
   * The tokens as they stood after some steps.
   * @param {number} step
   * @returns {(string|null)[]} null where a token was still masked
   */
  textsAt(step) {
    const written = new Set(this.commits.slice(0, step).flatMap((commit) => commit.positions));
    return this.panes.map(({ text }, pos) => (written.has(pos) ? text : null));
  }
}

function promptToken(text) {
  const [before, letters, after] = splitToken(text);
  const label = isSpecial(text) ? { title: tokenName(text) } : {};
  const node = el("span", { class: isSpecial(text) ? "token special" : "token", ...label });
  if (/^[ \t]+$/.test(text))
    node.append(text); // nothing to choose here, so a space may be a space
  else node.append(letters);
  return [before, node, after];
}

function write(pane, text) {
  const [before, letters, after] = splitToken(text);
  pane.text = text;
  pane.node.classList.remove("masked");
  pane.node.classList.toggle("special", isSpecial(text));
  pane.node.replaceChildren(letters);
  if (isSpecial(text) || letters === "·" || letters.includes("↵"))
    pane.node.setAttribute("aria-label", tokenName(text));
  pane.box.replaceChildren(before, pane.node, after);
}

function warm(node, value, limit) {
  const level = value ? Math.min(Math.ceil((Math.abs(value) / limit) * HEAT_STEPS - 1e-9), HEAT_STEPS) : 0;
  for (let step = 1; step <= HEAT_STEPS; step++) node.classList.remove(`heat${step}`, `cold${step}`);
  if (level) node.classList.add((value > 0 ? "heat" : "cold") + level);
}
