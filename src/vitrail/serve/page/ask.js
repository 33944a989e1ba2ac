// The first view: one answer from prompt to explanation, and what is chosen in it. An answer on the page is only
// replaced when the next one has begun, so no fault takes it away.

import { AnswerView } from "./answer.js";
import { Problem, isAbort } from "./api.js";
import { headingOf, heatOf, nearest, partsOf, strongest } from "./choice.js";
import { announce, byId, counted } from "./dom.js";
import { certificatePanel, conceptsPanel, inputsPanel, put, sourcesPanel } from "./panels.js";
import { hashOf, isSameAsk, readHash } from "./permalink.js";
import { Nave } from "./nave.js";
import { problemBox } from "./problem.js";
import { Replay } from "./replay.js";
import { explain, write } from "./stream.js";

/** @typedef {import("./stream.js").Ask} Ask */
/** @typedef {import("./stream.js").Answer} Answer */
/** @typedef {import("./permalink.js").Place} Place */

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
      compared: null,
      mode: "centred",
      onBusy: () => {},
    });
    this.view = new AnswerView(byId("prompt-text"), byId("answer-text"), (place, isByHand) =>
      this.#show(place, isByHand),
    );
    this.nave = new Nave((pos) => this.view.choose({ kind: "token", at: pos }, { isByHand: true, focus: true }));
    this.replay = new Replay(
      { box: byId("replay"), play: byId("play"), slider: byId("step"), output: byId("step-text") },
      this.view,
      (step) => this.#drawStep(step),
    );
    byId("modes").addEventListener("change", (event) => {
      this.mode = event.target.value;
      this.#fillConcepts();
    });
  }

  stop() {
    this.stopper?.abort();
  }

  // One piece of work at a time: what is newer stops what is older, which then says nothing more.
  async #work(does) {
    this.stop();
    const stopper = new AbortController();
    const isLatest = () => this.stopper === stopper;
    this.stopper = stopper;
    this.onBusy(true);
    put("problem", []);
    await does(stopper.signal, isLatest);
    if (!isLatest()) return;
    this.stopper = null;
    this.onBusy(false);
  }

  /**
   * Write an answer, then explain it.
   * @param {Ask} ask
   * @param {Place|null} [place] what to choose at the end
   * @returns {Promise<void>}
   */
  run(ask, place = null) {
    return this.#work(async (signal, isLatest) => {
      byId("reading").hidden = false;
      this.#status("Waiting for the first token …", true);
      try {
        const answer = await write(ask, {
          signal,
          onStart: (promptTokens) => this.#begin(ask, promptTokens),
          onStep: (commits) => this.#step(commits),
        });
        this.#finish(ask, answer);
      } catch (error) {
        if (isLatest()) this.#fail(error, ask, place);
        return;
      }
      await this.#explain(place, signal, isLatest);
    });
  }

  /**
   * Take an answer that was written elsewhere on the page.
   * @param {Ask} ask
   * @param {Answer} answer
   * @returns {Promise<void>}
   */
  take(ask, answer) {
    return this.#work((signal, isLatest) => {
      this.#begin(ask, answer.promptTokens);
      this.#step(answer.commits);
      this.#finish(ask, answer);
      byId("reading").scrollIntoView();
      return this.#explain(null, signal, isLatest);
    });
  }

  #begin(ask, promptTokens) {
    Object.assign(this, { current: null, place: null });
    document.body.dataset.stage = "writing";
    byId("reading").hidden = false;
    byId("panels").hidden = true;
    byId("keep").hidden = true;
    byId("link-text").hidden = true;
    this.replay.hide();
    this.view.begin(ask, this.model.block_tokens, promptTokens);
    this.#drawStep();
  }

  #step(commits) {
    this.view.step(commits);
    this.#drawStep();
    this.#status(`Writing: ${this.view.lit} of at most ${counted(this.view.longest, "token")}`, true);
  }

  // The window as the answer stood after some steps: all that there are, or those that are replayed.
  #drawStep(step = this.view.commits.length) {
    const texts = this.view.textsAt(step);
    if (this.current?.doc) this.nave.replayed(texts);
    else this.nave.writing(texts);
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

  async #explain(place, signal, isLatest) {
    const { ask, answer } = this.current;
    const started = Date.now();
    const tokens = this.view.panes.length;
    const tell = () =>
      this.#status(`Explaining ${counted(tokens, "token")} … ${Math.round((Date.now() - started) / 1000)} s`, true);
    tell();
    const timer = setInterval(tell, 1000);
    try {
      const doc = await explain(answer, ask, signal);
      if (isLatest()) this.#open(doc, place);
    } catch (error) {
      if (!isLatest()) return;
      this.#status("Written, not explained.", false);
      const problem = isAbort(error)
        ? new Problem("The explanation was stopped.", { mend: "The answer is whole." })
        : error;
      const again = () => this.#work((...work) => this.#explain(place, ...work));
      put("problem", [problemBox(problem, again)]);
    } finally {
      clearInterval(timer);
    }
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
    this.nave.explained(doc, parts.chunk ?? nearest(doc, place), place);
    this.#drawStep(this.replay.step);
    this.#remember(ask, place);
    if (isByHand) announce(byId("chosen").textContent);
  }

  #fillConcepts() {
    if (!this.current?.doc || !this.place) return;
    put("concepts", conceptsPanel(partsOf(this.current.doc, this.place).concepts, this.mode, this.onTurn));
  }

  #fail(error, ask, place) {
    const isKept = this.view.hasText && !this.current;
    byId("reading").hidden = !isKept && !this.current;
    if (isKept) {
      this.view.end();
      this.replay.ready(this.view.commits.length);
      document.body.dataset.stage = "broken";
    }
    if (isAbort(error))
      this.#status(isKept ? "Stopped. What was written stays; only a whole answer is explained." : "Stopped.", false);
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
      history[isOther ? "pushState" : "replaceState"](null, "", this.#hashOf(ask, place));
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

  /** Keep in the address that a request is compared, too. @param {Ask} ask */
  compare(ask) {
    this.compared = ask;
    this.#remember(ask, this.isHere(ask) ? this.place : null);
  }

  #hashOf(ask, place) {
    return hashOf(ask, place, this.compared !== null && isSameAsk(this.compared, ask));
  }

  /** The address of a request. @param {Ask} ask @returns {string} */
  addressOf(ask) {
    return new URL(this.#hashOf(ask, this.isHere(ask) ? this.place : null), location.href).href;
  }

  /** The address of the answer. @returns {string|null} */
  get address() {
    return this.current && this.addressOf(this.current.ask);
  }

  /**
   * The seed of the answer on the page, where a request differs from it by no more than its steering.
   * @param {Ask} ask
   * @returns {number|null}
   */
  seedOf(ask) {
    const { seed, steer } = this.current?.ask ?? ask;
    return this.isHere({ ...ask, seed, steer }) ? seed : null;
  }
}
