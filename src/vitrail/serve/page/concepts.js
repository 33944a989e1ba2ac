// The library of concepts: search, filter, pages of cards, and one concept by itself (#concept/known/12).

import { concept, concepts, isAbort } from "./api.js";
import { linkTo, styleOf, swatch } from "./colour.js";
import { conceptPage } from "./card.js";
import { announce, byId, counted, el, own, whole } from "./dom.js";
import { problemBox } from "./problem.js";

const PER_PAGE = 48;
const WAIT_MS = 160;

/** The second view of the page. */
export class ConceptBrowser {
  /** @param {(concept: any) => void} onSteer */
  constructor(onSteer) {
    Object.assign(this, { onSteer, offset: 0, total: 0, timer: 0, asking: null, isLoaded: false, wanted: "" });
    byId("find").addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.#turnTo(0), WAIT_MS);
    });
    byId("find-form").addEventListener("submit", (event) => event.preventDefault());
    byId("heads").addEventListener("change", () => this.#turnTo(0));
    byId("page-before").addEventListener("click", () => this.#turnTo(this.offset - PER_PAGE, true));
    byId("page-after").addEventListener("click", () => this.#turnTo(this.offset + PER_PAGE, true));
  }

  /** Show the list. @returns {Promise<void>} */
  async showList() {
    this.wanted = "";
    byId("concept-detail").hidden = true;
    byId("concept-list").hidden = false;
    document.title = "Concepts · vitrail";
    if (!this.isLoaded) await this.#turnTo(0);
  }

  /** Show one concept. @param {string} head @param {number} id @returns {Promise<void>} */
  async showOne(head, id) {
    const wanted = `${head}/${id}`;
    this.wanted = wanted;
    byId("concept-list").hidden = true;
    const box = byId("concept-detail");
    box.hidden = false;
    box.replaceChildren(back(), el("p", { class: "waiting" }, "Opening the concept …"));
    try {
      const found = await concept(head, id);
      if (this.wanted !== wanted) return;
      document.title = `${found.card.name} · vitrail`;
      box.replaceChildren(back(), ...conceptPage(found, this.onSteer));
      box.querySelector("h1").focus({ preventScroll: true });
      scrollTo(0, 0);
    } catch (error) {
      if (this.wanted !== wanted) return;
      box.replaceChildren(
        back(),
        problemBox(error, () => this.showOne(head, id)),
      );
    }
  }

  async #turnTo(offset, isPaging = false) {
    this.asking?.abort();
    const asking = new AbortController();
    this.asking = asking;
    const head = new FormData(byId("find-form")).get("head");
    const query = byId("find").value.trim();
    try {
      const { data, total } = await concepts(
        { query, head: head === "all" ? "" : String(head), limit: PER_PAGE, offset },
        asking.signal,
      );
      Object.assign(this, { offset, total, isLoaded: true });
      this.#fill(data);
      if (isPaging) {
        byId("found").focus();
        byId("concept-list").scrollIntoView();
      }
    } catch (error) {
      if (!isAbort(error))
        byId("cards").replaceChildren(
          el(
            "li",
            { class: "whole-row" },
            problemBox(error, () => this.#turnTo(offset)),
          ),
        );
    }
  }

  #fill(data) {
    const last = this.offset + data.length;
    const text =
      this.total === 0
        ? "No concept fits. Try another word."
        : this.total <= PER_PAGE
          ? counted(this.total, "concept")
          : `${whole(this.offset + 1)}–${whole(last)} of ${counted(this.total, "concept")}`;
    byId("found").textContent = text;
    announce(text);
    byId("cards").replaceChildren(...data.map((card) => el("li", {}, tile(card))));
    byId("page-before").disabled = this.offset === 0;
    byId("page-after").disabled = last >= this.total;
    byId("pages").hidden = this.total <= PER_PAGE;
  }
}

const back = () => el("p", { class: "back" }, el("a", { href: "#concepts" }, "← all concepts"));

function tile(card) {
  return el(
    "a",
    { class: `tile ${styleOf(card)}`, href: linkTo(card) },
    el("span", { class: "tile-name" }, swatch(styleOf(card)), own(card.name)),
    card.words.length ? el("span", { class: "tile-words" }, own(card.words.slice(0, 6).join(", "))) : null,
    el(
      "small",
      {},
      `${card.head} ${card.concept_id}${card.num_chunks ? ` · ${counted(card.num_chunks, "passage")}` : ""}`,
    ),
  );
}
