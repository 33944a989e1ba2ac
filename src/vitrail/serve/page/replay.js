// Replay: a slider and a button that show the order in which the panes were lit.

import { announce, isCalm } from "./dom.js";

const SHORTEST_MS = 60;
const LONGEST_MS = 220;
const WHOLE_MS = 9000;

/** The replay bar of one answer. */
export class Replay {
  /**
   * @param {{box: HTMLElement, play: HTMLButtonElement, slider: HTMLInputElement, output: HTMLElement}} parts
   * @param {import("./answer.js").AnswerView} view
   * @param {(step: number) => void} onStep
   */
  constructor(parts, view, onStep) {
    Object.assign(this, parts, { view, onStep, timer: 0 });
    this.play.addEventListener("click", () => (this.timer ? this.stop() : this.start()));
    this.slider.addEventListener("input", () => {
      this.stop();
      this.#show();
    });
  }

  /** Make it ready for a finished answer. @param {number} steps */
  ready(steps) {
    this.stop();
    this.slider.max = String(steps);
    this.slider.value = String(steps);
    this.box.hidden = steps === 0;
    this.#show();
  }

  hide() {
    this.stop();
    this.box.hidden = true;
  }

  /** @returns {number} the step that is shown. */
  get step() {
    return Number(this.slider.value);
  }

  start() {
    this.slider.value = "0";
    this.#show();
    this.play.querySelector("span").textContent = "Pause";
    const steps = Number(this.slider.max);
    const pace = isCalm() ? LONGEST_MS * 2 : Math.max(SHORTEST_MS, Math.min(LONGEST_MS, WHOLE_MS / steps));
    this.timer = setInterval(() => {
      this.slider.value = String(this.step + 1);
      this.#show();
      if (this.step >= steps) {
        this.stop();
        announce("Replay finished");
      }
    }, pace);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
    this.play.querySelector("span").textContent = "Replay";
  }

  #show() {
    const last = Number(this.slider.max);
    this.output.textContent = `step ${this.step} of ${last}: ${this.view.showStep(this.step, last)}`;
    this.onStep(this.step);
    this.slider.setAttribute("aria-valuetext", this.output.textContent);
  }
}
