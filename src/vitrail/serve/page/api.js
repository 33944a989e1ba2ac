// Talking to the server: JSON in and out, and errors that say how to mend them.

/** What went wrong, in words for a reader. */
export class Problem extends Error {
  /**
   * @param {string} message one plain line
   * @param {{code?: string|null, status?: number, mend?: string, retryAfter?: number}} [more]
   */
  constructor(message, { code = null, status = 0, mend = "", retryAfter = 0 } = {}) {
    super(message);
    Object.assign(this, { code, status, mend: mend || howToMend(code, status, retryAfter), retryAfter });
  }
}

function howToMend(code, status, retryAfter) {
  if (code === "context_length_exceeded") return "Shorten the prompt or ask for fewer tokens.";
  if (status === 429)
    return `The server is busy${retryAfter ? `; try again in ${retryAfter} s` : "; wait a moment and try again"}.`;
  if (status === 503) return "The server is shutting down. Start it again, then retry.";
  if (status === 413) return "Shorten the prompt.";
  if (status === 404) return "Check the name, or pick the concept from the search.";
  if (status >= 500) return "Try again; if it stays, look at the server's log.";
  return status ? "Change it and try again." : "";
}

/** @param {unknown} error @returns {boolean} whether the reader stopped it. */
export const isAbort = (error) => error instanceof DOMException && error.name === "AbortError";

/** The server did not answer at all. @returns {Problem} */
export const gone = () =>
  new Problem("The server does not answer.", {
    code: "gone",
    mend: "Check that vitrail serve is still running, then retry.",
  });

/**
 * Send a request; answers other than 2xx become a Problem.
 * @param {string} path relative to the page
 * @param {object} [body] sent as JSON; without it the request is a GET
 * @param {AbortSignal} [signal]
 * @returns {Promise<Response>}
 */
export async function send(path, body, signal) {
  const options = { signal, headers: { accept: "application/json, text/event-stream" } };
  if (body !== undefined) {
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
    options.headers["content-type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    throw isAbort(error) ? error : gone();
  }
  if (response.ok) return response;
  const parsed = await response.json().catch(() => null);
  throw problemOf(parsed?.error, response.status, Number(response.headers.get("retry-after")) || 0);
}

/**
 * @param {any} error the `error` object of an answer
 * @param {number} status
 * @param {number} [retryAfter]
 * @returns {Problem}
 */
export function problemOf(error, status, retryAfter = 0) {
  const message =
    typeof error?.message === "string" ? error.message : `The server answered ${status || "with an error"}.`;
  const sentence = message.charAt(0).toUpperCase() + message.slice(1);
  const kind = { overloaded_error: 429, server_error: 500, not_found_error: 404, invalid_request_error: 400 }[
    error?.type
  ];
  return new Problem(/[.!?]$/.test(sentence) ? sentence : sentence + ".", {
    code: error?.code ?? null,
    status: status || kind || 0,
    retryAfter,
  });
}

/**
 * Send and read JSON.
 * @param {string} path
 * @param {object} [body]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function json(path, body, signal) {
  const response = await send(path, body, signal);
  try {
    return await response.json();
  } catch (error) {
    throw isAbort(error) ? error : gone();
  }
}

const known = new Map();

/**
 * One concept with its words, tokens, neighbours and examples; asked for once.
 * @param {string} head
 * @param {number} id
 * @returns {Promise<any>}
 */
export function concept(head, id) {
  const path = `v1/concepts/${encodeURIComponent(head)}/${id}`;
  if (!known.has(path)) {
    const asked = json(path);
    known.set(path, asked);
    asked.catch(() => known.delete(path));
  }
  return known.get(path);
}

/**
 * A page of the concept library.
 * @param {Record<string, string|number>} query
 * @param {AbortSignal} [signal]
 * @returns {Promise<{total: number, data: any[]}>}
 */
export function concepts(query, signal) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null);
  return json(
    `v1/concepts?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}`,
    undefined,
    signal,
  );
}
