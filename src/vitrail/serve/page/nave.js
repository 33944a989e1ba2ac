// The dark side of the page: the window, the names of its largest concepts, and the line that says what it shows.

import { styleOf, swatch } from "./colour.js";
import { byId, el, own, percent } from "./dom.js";
import { put } from "./panels.js";
import { WindowView } from "./window.js";

const LEGEND = 6;

/** What stands beside the work. */
export class Nave {
  /** @param {(pos: number) => void} onChoose a lancet was clicked */
  constructor(onChoose) {
    this.window = new WindowView(byId("window"), onChoose);
    this.shown = null; // the explanation that is lit
  }

  /** @returns {SVGElement} the window as it stands. */
  get picture() {
    return this.window.root;
  }

  /** An answer in the making. @param {(string|null)[]} texts of the open panes, null where one is masked */
  writing(texts) {
    this.shown = null;
    this.window.writing(texts);
    put("legend", []);
    byId("window-note").textContent = "Pale while it is written; colours come with the explanation.";
  }

  /** A step of the replay. @param {(string|null)[]} texts null where a token was still masked */
  replayed(texts) {
    this.window.replayed(texts);
  }

  /**
   * The answer explained; it lights up when it is new.
   * @param {any} doc
   * @param {{start: number, stop: number, chunk: number}} chunk the passage of the lancets
   * @param {import("./permalink.js").Place} place
   */
  explained(doc, chunk, place) {
    const pos = place.kind === "token" ? place.at : null;
    const { first, last, petals } = this.window.explained(doc, chunk, pos, this.shown !== doc);
    this.shown = doc;
    const largest = petals.filter((pane) => pane.concept).slice(0, LEGEND);
    put(
      "legend",
      largest.map((pane) =>
        el("li", {}, swatch(styleOf(pane.concept)), own(pane.name), el("small", {}, percent(pane.share))),
      ),
    );
    const length = chunk.stop - chunk.start;
    const part = last - first < length ? `, tokens ${first - chunk.start + 1}–${last - chunk.start} of ${length}` : "";
    byId("window-note").textContent =
      `Rose: the whole answer; angles are shares. Lancets: passage ${chunk.chunk + 1}${part}; areas are shares of each token's score against the average word.`;
  }
}
