// Search among the concepts: a text field with a list below it (the ARIA combobox pattern).

import { concepts, isAbort } from "./api.js";
import { styleOf, swatch } from "./colour.js";
import { announce, counted, el, own } from "./dom.js";
import { inWords } from "./problem.js";

const WAIT_MS = 140;
const MAX_FOUND = 12;

/** A field that finds concepts. */
export class ConceptSearch {
  /**
   * @param {HTMLInputElement} input
   * @param {HTMLElement} list an empty list, role listbox
   * @param {(card: any) => void} onPick
   */
  constructor(input, list, onPick) {
    Object.assign(this, { input, list, onPick, found: [], active: -1, timer: 0, asking: null });
    input.addEventListener("input", () => this.#later());
    input.addEventListener("focus", () => this.#later());
    input.addEventListener("blur", () => this.close());
    input.addEventListener("keydown", (event) => this.#key(event));
    list.addEventListener("mousedown", (event) => event.preventDefault());
  }

  #later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#search(), WAIT_MS);
  }

  async #search() {
    this.asking?.abort();
    this.asking = new AbortController();
    try {
      const { data, total } = await concepts({ query: this.input.value.trim(), limit: MAX_FOUND }, this.asking.signal);
      if (document.activeElement !== this.input) return;
      this.#show(data, total);
    } catch (error) {
      if (!isAbort(error)) this.#say(inWords(error).join(" "));
    }
  }

  #show(data, total) {
    this.found = data;
    if (!data.length) return this.#say("No concept fits. Try another word.");
    this.list.replaceChildren(
      ...data.map((card, at) =>
        el(
          "li",
          {
            role: "option",
            id: `${this.list.id}-${at}`,
            "aria-selected": "false",
            onclick: () => this.#pick(at),
            onmousemove: () => this.#activate(at),
          },
          swatch(styleOf(card)),
          el(
            "span",
            {},
            own(card.name),
            el("small", {}, `${card.head}${card.words.length ? ` · ${card.words.slice(0, 4).join(", ")}` : ""}`),
          ),
        ),
      ),
    );
    this.#open();
    this.#activate(-1);
    announce(`${counted(total, "concept")} found`);
  }

  #say(text) {
    this.found = [];
    this.list.replaceChildren(
      el("li", { role: "option", "aria-disabled": "true", "aria-selected": "false", class: "empty" }, text),
    );
    this.#open();
    announce(text);
  }

  #open() {
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
  }

  close() {
    clearTimeout(this.timer);
    this.asking?.abort();
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
    this.active = -1;
  }

  #activate(at) {
    this.active = at;
    [...this.list.children].forEach((option, place) => {
      option.setAttribute("aria-selected", String(place === at));
      if (place === at) option.scrollIntoView({ block: "nearest" });
    });
    if (at < 0) this.input.removeAttribute("aria-activedescendant");
    else this.input.setAttribute("aria-activedescendant", `${this.list.id}-${at}`);
  }

  #key(event) {
    if (event.key === "Escape" && !this.list.hidden) {
      event.stopPropagation();
      return this.close();
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      if (this.list.hidden) return this.#search();
      const count = this.found.length;
      return count
        ? this.#activate((this.active + step + count + (this.active < 0 && step < 0 ? 1 : 0)) % count)
        : undefined;
    }
    if (event.key === "Enter") {
      event.preventDefault();
      if (!this.list.hidden && this.found.length) this.#pick(Math.max(this.active, 0));
    }
    return undefined;
  }

  #pick(at) {
    const card = this.found[at];
    this.input.value = "";
    this.close();
    this.onPick(card);
  }
}
