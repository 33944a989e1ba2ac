// Side by side: unsteered, as set, and reversed, written at once from one seed. What differs from the unsteered text is
// underlined; characteristic words of the steered concepts carry their glass.

import { concept, isAbort } from "./api.js";
import { glassOf } from "./colour.js";
import { characteristic, differing, wordsOf } from "./diff.js";
import { announce, byId, counted, el } from "./dom.js";
import { isSameAsk } from "./permalink.js";
import { inWords } from "./problem.js";
import { reversed, steersText } from "./steering.js";
import { write } from "./stream.js";

/** @typedef {import("./stream.js").Ask} Ask */
/** @typedef {import("./stream.js").Answer} Answer */

/** The comparison of one request. */
export class Comparison {
  /**
   * @param {HTMLElement} box
   * @param {{onOpen: (ask: Ask, answer: Answer) => void, onBusy: (isBusy: boolean) => void}} hooks `onOpen` takes one of
   *   the texts to be explained
   */
  constructor(box, { onOpen, onBusy }) {
    Object.assign(this, { box, onOpen, onBusy, ask: null, stopper: null, columns: [] });
  }

  stop() {
    this.stopper?.abort();
  }

  /** Whether this is the request compared on the page. @param {Ask} ask @returns {boolean} */
  isHere(ask) {
    return this.ask !== null && isSameAsk(ask, this.ask);
  }

  /** Write the three texts. @param {Ask} ask with at least one steered concept @returns {Promise<void>} */
  run(ask) {
    this.stop();
    this.ask = ask;
    const variants = [
      ["Unsteered", []],
      ["As set", ask.steer],
      ["Reversed", reversed(ask.steer)],
    ];
    this.columns = variants.map(([title, steer]) => this.#column(title, { ...ask, steer }));
    byId("versions").replaceChildren(...this.columns.map((column) => column.box));
    byId("compare-legend").hidden = true;
    this.box.hidden = false;
    announce("Writing three texts side by side");
    return this.#fill(this.columns);
  }

  // Write some columns; those that are still being written go on beside them. A newer comparison silences an older.
  async #fill(columns) {
    const { columns: all, ask } = this;
    if (!this.stopper || this.stopper.signal.aborted) this.stopper = new AbortController();
    const { signal } = this.stopper;
    byId("compare-status").textContent = `Writing from seed ${ask.seed} …`;
    this.onBusy(true);
    await Promise.all(columns.map((column) => this.#write(column, signal)));
    if (this.columns !== all || all.some((column) => column.isOpen)) return;
    this.onBusy(false);
    const found = await Promise.allSettled(ask.steer.map((part) => concept(part.head, part.concept)));
    if (this.columns === all && !all.some((column) => column.isOpen))
      this.#mark(found.flatMap((one) => one.value?.card ?? []));
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
    return { title, ask, box, text, foot, written: "", answer: null, isOpen: false };
  }

  async #write(column, signal) {
    column.isOpen = true;
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
      column.foot.replaceChildren(el("small", {}, counted(column.answer.tokenIds.length, "token")), open);
    } catch (error) {
      this.#fail(column, error);
    }
    column.isOpen = false;
    column.box.classList.remove("busy");
  }

  #grow(column, text) {
    column.written = text.trimStart();
    column.text.textContent = column.written;
  }

  #fail(column, error) {
    const line = isAbort(error) ? "Stopped. What was written stays." : inWords(error).join(" ");
    const retry = el("button", { type: "button", class: "plain", onclick: () => this.#fill([column]) }, "Retry");
    column.foot.replaceChildren(el("span", { class: "failed", role: "alert" }, line), retry);
  }

  #mark(cards) {
    const words = characteristic(cards);
    const [base, ...others] = this.columns;
    base.text.replaceChildren(
      ...marks(
        wordsOf(base.written).map((piece) => ({ piece, isNew: false })),
        words,
      ),
    );
    const counts = others.map((column) => {
      const pieces = differing(base.written, column.written);
      column.text.replaceChildren(...marks(pieces, words));
      const count = pieces.filter((one) => one.isNew).length;
      return `${column.title}: ${counted(count, "word")} ${count === 1 ? "differs" : "differ"}.`;
    });
    const isWhole = this.columns.every((column) => column.answer);
    byId("compare-status").textContent =
      `Seed ${this.ask.seed}. ${isWhole ? counts.join(" ") : "Not every text is finished."}`;
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
