// Writing an answer: /v1/completions as a stream of denoising steps, over fetch (server-sent events).
// A stream that ends without [DONE] is a broken connection, whatever came before.

import { Problem, gone, isAbort, json, problemOf, send } from "./api.js";

/** @typedef {{step: number, positions: number[], tokens: string[], ids: number[], probs: number[]}} Commit */
/** @typedef {{head: "known"|"discovered", concept: number, name: string, strength: number, off: boolean}} SteerOf */
/**
 * @typedef {{prompt: string, max_tokens: number, temperature: number, top_p: number, seed: number,
 *   repetition_penalty: number, tokens_per_step: number, steer: SteerOf[]}} Ask what a reader asked for
 */
/**
 * @typedef {{id: string, text: string, commits: Commit[], tokenIds: number[], seed: number, steer: string, reason: string,
 *   promptTokens: number}} Answer
 */

/** The body of a request. @param {Ask} ask @returns {object} */
function bodyOf(ask) {
  const { steer, ...rest } = ask;
  // The most likely token is the same in every nucleus: the server refuses an option without effect.
  if (rest.temperature === 0) delete rest.top_p;
  const parts = steer.map((part) =>
    part.off
      ? { head: part.head, concept: part.concept, off: true }
      : { head: part.head, concept: part.concept, strength: part.strength },
  );
  return parts.length ? { ...rest, steer: parts } : rest;
}

/** The data of each event of a stream. @param {Response} response @yields {string} */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split(/\r\n|\n/);
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trimStart();
  }
}

/**
 * Write an answer and tell of every step.
 * @param {Ask} ask
 * @param {{onStart?: (promptTokens: number) => void, onStep?: (commits: Commit[], text: string) => void, signal?: AbortSignal}} hooks
 * @returns {Promise<Answer>}
 */
export async function write(ask, { onStart, onStep, signal }) {
  const response = await send("v1/completions", { ...bodyOf(ask), stream: true, commits: true }, signal);
  const answer = {
    id: "",
    text: "",
    commits: [],
    tokenIds: [],
    seed: ask.seed,
    steer: "",
    reason: "",
    promptTokens: 0,
  };
  let isDone = false;
  try {
    for await (const data of events(response)) {
      signal?.throwIfAborted();
      if (data === "[DONE]") {
        isDone = true;
        break;
      }
      take(answer, JSON.parse(data), onStart, onStep);
    }
  } catch (error) {
    if (isAbort(error) || error instanceof Problem) throw error;
  }
  if (signal?.aborted) throw new DOMException("stopped", "AbortError");
  if (!isDone) throw broke(answer.commits.length);
  return answer;
}

function take(answer, part, onStart, onStep) {
  if (part.error) throw problemOf(part.error, 0);
  const choice = part.choices?.[0];
  if (!choice) return;
  if (!answer.id) {
    answer.id = part.id;
    answer.promptTokens = choice.vitrail?.prompt_tokens ?? 0;
    onStart?.(answer.promptTokens);
  }
  const { commits = [], seed, steer, token_ids: ids } = choice.vitrail ?? {};
  answer.text += choice.text ?? "";
  answer.commits.push(...commits);
  if (choice.finish_reason)
    Object.assign(answer, {
      reason: choice.finish_reason,
      seed: seed ?? answer.seed,
      steer: steer ?? "",
      tokenIds: ids ?? [],
    });
  if (commits.length) onStep?.(commits, answer.text);
}

function broke(steps) {
  const when = steps ? `after ${steps} step${steps === 1 ? "" : "s"}` : "before the first word";
  return new Problem(`The connection broke ${when}.`, {
    code: "broke",
    mend: steps ? "What arrived is kept. Retry writes the answer again from the same seed." : gone().mend,
  });
}

/**
 * Explain an answer; one that the server has forgotten is repeated exactly, by its seed.
 * @param {Answer} answer
 * @param {Ask} ask
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>} the explanation document
 */
export async function explain(answer, ask, signal) {
  try {
    return await json("v1/explain", { completion: answer.id, index: 0 }, signal);
  } catch (error) {
    if (!(error instanceof Problem) || error.code !== "completion_gone") throw error;
    return json("v1/explain", bodyOf({ ...ask, seed: answer.seed }), signal);
  }
}
