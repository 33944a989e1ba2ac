// Side by side: unsteered, as set, and reversed, written at once from one seed. What differs from the unsteered text is
// underlined; characteristic words of the steered concepts carry their glass.

import { concept, isAbort } from "./api.js";
import { glassOf } from "./colour.js";
import { characteristic, differing, wordsOf } from "./diff.js";
import { announce, byId, counted, el } from "./dom.js";
import { inWords } from "./problem.js";
import { reversed, steersText } from "./steering.js";
import { write } from "./stream.js";

/** @typedef {import("./stream.js").Ask} Ask */

/** The comparison of one request. */
export class Comparison {
  /** @param {HTMLElement} box @param {(ask: Ask, answer: any) => void} onOpen takes one of the texts to be explained */
  constructor(box, onOpen) {
    Object.assign(this, { box, onOpen, stopper: null, columns: [] });
  }

  get isRunning() {
    return this.stopper !== null;
  }

  stop() {
    this.stopper?.abort();
  }

  /** Write the three texts. @param {Ask} ask with at least one steered concept @returns {Promise<void>} */
  async run(ask) {
    this.stop();
    const stopper = new AbortController();
    this.stopper = stopper;
    const variants = [
      ["Unsteered", []],
      ["As set", ask.steer],
      ["Reversed", reversed(ask.steer)],
    ];
    this.columns = variants.map(([title, steer]) => this.#column(title, { ...ask, steer }));
    byId("versions").replaceChildren(...this.columns.map((column) => column.box));
    byId("compare-status").textContent = `Writing three texts from seed ${ask.seed} …`;
    byId("compare-legend").hidden = true;
    this.box.hidden = false;
    announce("Writing three texts side by side");
    const cards = Promise.all(
      ask.steer.map((part) =>
        concept(part.head, part.concept).then(
          (one) => one.card,
          () => null,
        ),
      ),
    );
    await Promise.all(this.columns.map((column) => this.#write(column, stopper.signal)));
    const known = (await cards).filter(Boolean);
    if (this.stopper !== stopper) return;
    this.stopper = null;
    this.#mark(known, ask.seed);
  }

  #column(title, ask) {
    const text = el("p", { class: "text", dir: "auto" });
    const foot = el("div", { class: "version-foot" });
    const box = el(
      "article",
      { class: "version", "aria-label": title },
      el("h3", {}, title, " ", el("small", {}, steersText(ask.steer) || "no concept turned")),
      text,
      foot,
    );
    return { title, ask, box, text, foot, written: "", answer: null, failed: null };
  }

  async #write(column, signal) {
    column.foot.replaceChildren(el("small", {}, "writing …"));
    column.box.classList.add("busy");
    try {
      column.answer = await write(column.ask, { signal, onStep: (_, text) => this.#grow(column, text) });
      this.#grow(column, column.answer.text);
      const open = el(
        "button",
        { type: "button", class: "plain", onclick: () => this.onOpen(column.ask, column.answer) },
        "Explain this one",
      );
      column.foot.replaceChildren(
        el("small", {}, counted(column.answer.tokenIds.length || column.answer.commits.length, "token")),
        open,
      );
    } catch (error) {
      column.failed = error;
      this.#fail(column, error);
    }
    column.box.classList.remove("busy");
  }

  #grow(column, text) {
    column.written = text;
    column.text.textContent = text.trimStart();
  }

  #fail(column, error) {
    const line = isAbort(error) ? "Stopped. What was written stays." : inWords(error).join(" ");
    const retry = el("button", { type: "button", class: "plain", onclick: () => this.#retry(column) }, "Retry");
    column.foot.replaceChildren(el("span", { class: "failed", role: "alert" }, line), retry);
  }

  async #retry(column) {
    column.failed = null;
    await this.#write(column, new AbortController().signal);
    const known = await Promise.all(
      column.ask.steer.map((part) =>
        concept(part.head, part.concept).then(
          (one) => one.card,
          () => null,
        ),
      ),
    );
    this.#mark(known.filter(Boolean), column.ask.seed);
  }

  #mark(cards, seed) {
    const words = characteristic(cards);
    const [base, ...others] = this.columns;
    base.text.replaceChildren(
      ...marks(
        wordsOf(base.written.trimStart()).map((piece) => ({ piece, isNew: false })),
        words,
      ),
    );
    const counts = others.map((column) => {
      const pieces = differing(base.written, column.written.trimStart());
      column.text.replaceChildren(...marks(pieces, words));
      const count = pieces.filter((one) => one.isNew).length;
      return `${column.title}: ${counted(count, "word")} ${count === 1 ? "differs" : "differ"}.`;
    });
    const isWhole = this.columns.every((column) => column.answer);
    byId("compare-status").textContent = `Seed ${seed}. ${isWhole ? counts.join(" ") : "Not every text is finished."}`;
    byId("compare-legend").hidden = false;
    announce(byId("compare-status").textContent);
  }
}

// Runs of differing words share one underline.
function marks(pieces, words) {
  const parts = [];
  let run = null;
  pieces.forEach(({ piece, isNew }, at) => {
    const isInside = !/\S/.test(piece) && run && pieces[at + 1]?.isNew;
    if (!isNew && !isInside) run = null;
    else if (!run) parts.push((run = el("ins", {})));
    const card = words.get(piece.toLowerCase());
    const node = card
      ? el("mark", { class: `own g${glassOf(card)} ${card.head}`, title: `a word of ${card.name}` }, piece)
      : piece;
    if (run) run.append(node);
    else parts.push(node);
  });
  return parts;
}
