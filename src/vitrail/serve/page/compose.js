// The form: prompt, examples, sampling. Reads and writes a request (`Ask`); the steering list is its neighbour's.

import { byId, el } from "./dom.js";

/** @typedef {import("./stream.js").Ask} Ask */

const NUMBERS = ["max_tokens", "temperature", "top_p", "repetition_penalty", "tokens_per_step"];
const SEEDS = 2 ** 31;
const LONGEST_EXAMPLE = 58;

const field = (name) => /** @type {HTMLInputElement} */ (byId(`ask-${name}`));

/** Fit the form to the served model. @param {any} model the `vitrail` part of /v1/models */
export function fitForm(model) {
  const most = model.limits?.max_new_tokens ?? model.context_tokens;
  field("max_tokens").max = String(Math.min(most, model.context_tokens));
  field("max_tokens").value = String(Math.min(64, Number(field("max_tokens").max)));
  if (model.limits?.max_prompt_chars) field("prompt").maxLength = model.limits.max_prompt_chars;
  const box = byId("examples");
  box.hidden = !model.prompts?.length;
  box.querySelector("ul").replaceChildren(
    ...(model.prompts ?? []).slice(0, 4).map((text) => {
      const short =
        text.length > LONGEST_EXAMPLE ? `${text.slice(0, LONGEST_EXAMPLE).replace(/[\s.,;:]*\S*$/u, "")} …` : text;
      return el(
        "li",
        {},
        el("button", { type: "button", class: "example", title: text, onclick: () => setPrompt(text) }, short),
      );
    }),
  );
}

function setPrompt(text) {
  field("prompt").value = text;
  field("prompt").focus();
}

/**
 * What the form asks for; null where something in it is wrong (the browser then says what).
 * @param {import("./stream.js").SteerOf[]} steer
 * @returns {Ask|null}
 */
export function readForm(steer) {
  const wrong = ["prompt", ...NUMBERS, "seed"].map(field).find((input) => !input.checkValidity());
  if (wrong) {
    wrong.closest("details")?.setAttribute("open", "");
    wrong.reportValidity();
    return null;
  }
  const [max_tokens, temperature, top_p, repetition_penalty, tokens_per_step] = NUMBERS.map((name) =>
    Number(field(name).value),
  );
  const seed = field("seed").value === "" ? drawSeed() : Number(field("seed").value);
  return {
    prompt: field("prompt").value,
    max_tokens,
    temperature,
    top_p,
    seed,
    repetition_penalty,
    tokens_per_step,
    steer,
  };
}

const drawSeed = () => crypto.getRandomValues(new Uint32Array(1))[0] % SEEDS;

/** Put a request into the form. @param {Ask} ask */
export function writeForm(ask) {
  field("prompt").value = ask.prompt;
  for (const name of [...NUMBERS, "seed"]) field(name).value = String(ask[name]);
}
