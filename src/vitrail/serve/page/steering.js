// Concepts to turn up or down: one slider each, in calibrated units, and a switch that puts a concept out altogether.

import { ConceptSearch } from "./combobox.js";
import { linkTo, styleOf, swatch } from "./colour.js";
import { announce, el, own, strength } from "./dom.js";

/** @typedef {import("./stream.js").SteerOf} SteerOf */

const FIRST_STRENGTH = 1;
const MOST = 3;

/** The list of steered concepts. */
export class Steering {
  /**
   * @param {{list: HTMLElement, empty: HTMLElement, input: HTMLInputElement, options: HTMLElement}} parts
   * @param {() => void} onChange
   */
  constructor(parts, onChange) {
    Object.assign(this, parts, { onChange, steers: [], most: 16 });
    this.search = new ConceptSearch(parts.input, parts.options, (card) => this.add(card));
  }

  /** A copy of the request, in order. @returns {SteerOf[]} */
  get value() {
    return this.steers.map((part) => ({ ...part }));
  }

  /** @param {SteerOf[]} steers */
  set(steers) {
    this.steers = steers.map((part) => ({ ...part }));
    this.#show();
  }

  /**
   * Add a concept at +1.0.
   * @param {{head: string, concept_id: number, name: string}} concept
   * @returns {boolean} whether it is among them now
   */
  add(concept) {
    if (this.steers.some((part) => part.head === concept.head && part.concept === concept.concept_id)) {
      announce(`${concept.name} is steered already`);
      return true;
    }
    if (this.steers.length >= this.most) {
      announce(`At most ${this.most} concepts can be steered at once; take one away first`);
      return false;
    }
    this.steers.push({
      head: concept.head,
      concept: concept.concept_id,
      name: concept.name,
      strength: FIRST_STRENGTH,
      off: false,
    });
    this.#show();
    announce(`${concept.name} added at ${strength(FIRST_STRENGTH)}`);
    return true;
  }

  #show() {
    this.list.replaceChildren(...this.steers.map((part) => this.#row(part)));
    this.empty.hidden = this.steers.length > 0;
    this.onChange();
  }

  #row(part) {
    const output = el("output", { class: "strength" });
    const slider = el("input", {
      type: "range",
      min: String(-MOST),
      max: String(MOST),
      step: "0.1",
      value: String(part.strength),
      "aria-label": `Strength of ${part.name}`,
      oninput: () => {
        part.strength = Number(slider.value);
        tell();
      },
    });
    const off = el("input", {
      type: "checkbox",
      role: "switch",
      "aria-label": `Put ${part.name} out altogether`,
      onchange: () => {
        part.off = off.checked;
        tell();
      },
    });
    off.checked = part.off;
    const tell = () => {
      slider.disabled = part.off;
      const [from, to] = [0, part.strength].sort((one, other) => one - other).map(placeOf);
      slider.style.setProperty("--from", from);
      slider.style.setProperty("--to", to);
      output.textContent = part.off ? "off" : strength(part.strength);
      slider.setAttribute(
        "aria-valuetext",
        `${strength(part.strength)}, ${part.strength > 0 ? "more of it" : part.strength < 0 ? "less of it" : "as it is"}`,
      );
      this.onChange();
    };
    const concept = { head: part.head, concept_id: part.concept };
    const row = el(
      "li",
      { class: `steer ${styleOf(concept)}` },
      el(
        "span",
        { class: "steer-name" },
        swatch(styleOf(concept)),
        el("a", { href: linkTo(concept) }, own(part.name)),
        part.head === "discovered" ? el("small", {}, "discovered") : null,
      ),
      slider,
      output,
      el("label", { class: "switch" }, off, el("span", {}, "off")),
      el(
        "button",
        {
          type: "button",
          class: "plain remove",
          "aria-label": `Stop steering ${part.name}`,
          onclick: () => this.#remove(part),
        },
        "×",
      ),
    );
    tell();
    return row;
  }

  #remove(part) {
    this.steers = this.steers.filter((other) => other !== part);
    this.#show();
    announce(`${part.name} taken away`);
    this.input.focus();
  }
}

const placeOf = (value) => `${((value + MOST) / (2 * MOST)) * 100}%`;

/** Steering in words: "exports +1.0, desert off". @param {SteerOf[]} steers @returns {string} */
export const steersText = (steers) =>
  steers.map((part) => `${part.name} ${part.off ? "off" : strength(part.strength)}`).join(", ");

/** The opposite request: signs reversed; what was off comes on. @param {SteerOf[]} steers @returns {SteerOf[]} */
export const reversed = (steers) =>
  steers.map((part) =>
    part.off ? { ...part, off: false, strength: FIRST_STRENGTH } : { ...part, strength: -part.strength },
  );
