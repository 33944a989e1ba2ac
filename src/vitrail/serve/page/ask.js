// The first view: one answer from prompt to explanation, and what is chosen in it. An answer on the page is only
// replaced when the next one has begun, so no fault takes it away.

import { AnswerView } from "./answer.js";
import { Problem, isAbort } from "./api.js";
import { headingOf, heatOf, nearest, partsOf, strongest } from "./choice.js";
import { styleOf, swatch } from "./colour.js";
import { announce, byId, counted, el, own, percent } from "./dom.js";
import { certificatePanel, conceptsPanel, inputsPanel, put, sourcesPanel } from "./panels.js";
import { hashOf, isSameAsk, readHash } from "./permalink.js";
import { problemBox } from "./problem.js";
import { Replay } from "./replay.js";
import { explain, write } from "./stream.js";
import { WindowView } from "./window.js";

/** @typedef {import("./stream.js").Ask} Ask */
/** @typedef {import("./permalink.js").Place} Place */

const LEGEND = 7;

/** The answer of the page. */
export class AskView {
  /** @param {any} model the `vitrail` part of /v1/models @param {(concept: any) => void} onTurn */
  constructor(model, onTurn) {
    Object.assign(this, {
      model,
      onTurn,
      stopper: null,
      current: null,
      place: null,
      mode: "centred",
      onBusy: () => {},
    });
    this.view = new AnswerView(byId("prompt-text"), byId("answer-text"), (place, isByHand) =>
      this.#show(place, isByHand),
    );
    this.window = new WindowView(byId("window"), (pos) =>
      this.view.choose({ kind: "token", at: pos }, { isByHand: true, focus: true }),
    );
    this.replay = new Replay(
      { box: byId("replay"), play: byId("play"), slider: byId("step"), output: byId("step-text") },
      this.view,
    );
    byId("modes").addEventListener("change", (event) => {
      this.mode = event.target.value;
      this.#fillConcepts();
    });
  }

  get isRunning() {
    return this.stopper !== null;
  }

  stop() {
    this.stopper?.abort();
  }

  /**
   * Write an answer, then explain it.
   * @param {Ask} ask
   * @param {Place|null} [place] what to choose at the end
   * @returns {Promise<void>}
   */
  async run(ask, place = null) {
    this.stop();
    const stopper = new AbortController();
    this.stopper = stopper;
    this.onBusy(true);
    put("problem", []);
    this.#status("Waiting for the first token …", true);
    try {
      const answer = await write(ask, {
        signal: stopper.signal,
        onStart: (first) => this.#begin(ask, first),
        onStep: (commits) => this.#step(commits),
      });
      this.#finish(ask, answer);
      await this.#explain(stopper.signal, place);
    } catch (error) {
      if (this.stopper === stopper) this.#fail(error, ask, place);
    }
    if (this.stopper === stopper) {
      this.stopper = null;
      this.onBusy(false);
    }
  }

  /**
   * Take an answer that was written elsewhere on the page.
   * @param {Ask} ask
   * @param {any} answer
   * @returns {Promise<void>}
   */
  async take(ask, answer) {
    this.stop();
    const stopper = new AbortController();
    this.stopper = stopper;
    this.onBusy(true);
    this.#begin(ask, {});
    this.view.step(answer.commits);
    this.#finish(ask, answer);
    byId("reading").scrollIntoView();
    await this.#explain(stopper.signal, null);
    this.stopper = null;
    this.onBusy(false);
  }

  #begin(ask, first) {
    Object.assign(this, { current: null, place: null });
    document.body.dataset.stage = "writing";
    byId("reading").hidden = false;
    byId("panels").hidden = true;
    byId("keep").hidden = true;
    this.replay.hide();
    this.view.begin(ask, this.model.block_tokens, first.prompt_tokens);
    this.#drawWriting();
  }

  #step(commits) {
    this.view.step(commits);
    this.#drawWriting();
    this.#status(`Writing: ${this.view.lit} of at most ${counted(this.view.longest, "token")}`, true);
    this.view.tellProgress();
  }

  #drawWriting() {
    this.window.writing(
      this.view.panes.map((pane) => pane.text),
      this.view.edge,
    );
    put("legend", []);
    byId("window-note").textContent = "Pale while it is written; colours come with the explanation.";
  }

  #finish(ask, answer) {
    const asked = { ...ask, seed: answer.seed };
    this.current = { ask: asked, answer, doc: null };
    this.view.end(answer.tokenIds.length);
    this.replay.ready(answer.commits.length);
    byId("keep").hidden = false;
    for (const id of ["save-json", "save-html"]) byId(id).disabled = true;
    this.#remember(asked, null);
    announce("The answer is written");
  }

  async #explain(signal, place) {
    const { ask, answer } = this.current;
    const started = Date.now();
    const tokens = this.view.panes.length;
    const tell = () =>
      this.#status(`Explaining ${counted(tokens, "token")} … ${Math.round((Date.now() - started) / 1000)} s`, true);
    tell();
    const timer = setInterval(tell, 1000);
    try {
      const doc = await explain(answer, ask, signal);
      if (signal.aborted) return;
      this.#open(doc, place);
    } catch (error) {
      if (isAbort(error)) this.#status("Not explained: you stopped it. The answer stays.", false);
      else this.#status("Not explained.", false);
      const problem = isAbort(error)
        ? new Problem("The explanation was stopped.", { mend: "The answer is whole." })
        : error;
      put("problem", [problemBox(problem, () => this.#again())]);
    } finally {
      clearInterval(timer);
    }
  }

  async #again() {
    const stopper = new AbortController();
    this.stopper = stopper;
    this.onBusy(true);
    put("problem", []);
    await this.#explain(stopper.signal, null);
    this.stopper = null;
    this.onBusy(false);
  }

  #open(doc, place) {
    this.current.doc = doc;
    document.body.dataset.stage = "explained";
    this.view.open(doc);
    byId("panels").hidden = false;
    put("certificate", certificatePanel(doc.certificate));
    byId("certificate").className = `badge ${doc.certificate.passed ? "pass" : "fail"}`;
    for (const id of ["save-json", "save-html"]) byId(id).disabled = false;
    const { seed, reason } = this.current.answer;
    this.#status(
      `${counted(doc.tokens.length, "token")}, seed ${seed}${reason === "stop" ? ", ended by itself" : ""}. Choose a word to see what it rests on.`,
      false,
    );
    this.isFresh = true;
    this.view.choose(place && this.#exists(place) ? place : strongest(doc));
    announce("The explanation is here. Choose a word with the arrow keys.");
  }

  #exists(place) {
    return this.view.choices.some((choice) => choice.place.kind === place.kind && choice.place.at === place.at);
  }

  #show(place, isByHand) {
    const { doc, ask } = this.current;
    this.place = place;
    const parts = partsOf(doc, place);
    put("chosen", headingOf(doc, place));
    put("inputs", inputsPanel(parts.inputs, doc));
    put(
      "sources",
      sourcesPanel(parts.sources, doc.sources.note, Boolean(this.model.index) || doc.sources.chunks.length > 0),
    );
    this.view.heat(heatOf(parts.inputs));
    this.#fillConcepts();
    this.#drawWindow(doc, parts.chunk ?? nearest(doc, place), place);
    this.#remember(ask, place);
    if (isByHand) announce(byId("chosen").textContent);
  }

  #fillConcepts() {
    if (!this.current?.doc || !this.place) return;
    put("concepts", conceptsPanel(partsOf(this.current.doc, this.place).concepts, this.mode, this.onTurn));
  }

  #drawWindow(doc, chunk, place) {
    const { first, last, petals } = this.window.explained(
      doc,
      chunk,
      place.kind === "token" ? place.at : null,
      this.isFresh,
    );
    this.isFresh = false;
    const shown = petals.filter((pane) => pane.concept).slice(0, LEGEND);
    put(
      "legend",
      shown.map((pane) =>
        el("li", {}, swatch(styleOf(pane.concept)), own(pane.name), el("small", {}, percent(pane.share))),
      ),
    );
    const part =
      last - first < chunk.stop - chunk.start
        ? `, tokens ${first - chunk.start + 1}–${last - chunk.start} of ${chunk.stop - chunk.start}`
        : "";
    byId("window-note").textContent =
      `Rose: the whole answer; angles are shares. Lancets: passage ${chunk.chunk + 1}${part}; areas are shares of each token's score against the average word.`;
  }

  #fail(error, ask, place) {
    const isKept = this.view.hasText && !this.current;
    if (isKept) {
      this.view.end();
      document.body.dataset.stage = "broken";
    }
    if (isAbort(error))
      this.#status(isKept ? "Stopped. What was written stays; write again to have it explained." : "Stopped.", false);
    else {
      this.#status(
        isKept ? "The answer is not finished." : this.current ? "The answer before is still here." : "",
        false,
      );
      put("problem", [problemBox(error, () => this.run(ask, place))]);
    }
  }

  // A new answer is a new entry of the history, so that "back" writes the one before again, by its seed.
  #remember(ask, place) {
    const before = readHash(location.hash);
    const isOther = before.view === "ask" && before.ask && !isSameAsk(before.ask, ask);
    try {
      history[isOther ? "pushState" : "replaceState"](null, "", hashOf(ask, place));
    } catch {
      // Browsers limit how often an address may change; the next choice sets it.
    }
  }

  #status(text, isBusy) {
    byId("status").textContent = text;
    byId("status").classList.toggle("busy", isBusy);
  }

  /** Whether this is the answer on the page. @param {Ask} ask @returns {boolean} */
  isHere(ask) {
    return this.current !== null && isSameAsk(ask, this.current.ask);
  }

  /** Choose in the answer on the page, if it has that place. @param {Place|null} place */
  choose(place) {
    if (this.current?.doc && place && this.#exists(place)) this.view.choose(place);
  }

  /** The address of the answer. @returns {string|null} */
  get address() {
    return this.current && new URL(hashOf(this.current.ask, this.place), location.href).href;
  }
}
