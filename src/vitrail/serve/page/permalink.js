// Permalinks: everything of a request, and what was selected, in the address. #ask=<base64url of JSON>, version 1.
// #ask, #concepts and #concept/<head>/<id> are the other addresses of the page.

const VERSION = 1;

/** @typedef {import("./stream.js").Ask} Ask */
/** @typedef {{kind: "token"|"chunk", at: number}} Place */

const LIMITS = {
  max_tokens: [1, 1e6],
  temperature: [0, 100],
  top_p: [0, 1],
  seed: [0, 2 ** 53 - 1],
  repetition_penalty: [0, 100],
  tokens_per_step: [1, 1e6],
};

/**
 * @param {Ask} ask
 * @param {Place|null} place
 * @param {boolean} [isCompared] whether the link writes the comparison, too
 * @returns {string} the hash, with its #
 */
export function hashOf(ask, place, isCompared = false) {
  const data = { v: VERSION, ...ask, at: place ?? undefined, compare: isCompared || undefined };
  const bytes = new TextEncoder().encode(JSON.stringify(data));
  const binary = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return `#ask=${btoa(binary).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "")}`;
}

/**
 * Read an address.
 * @param {string} hash
 * @returns {{view: "ask", ask?: Ask, place?: Place|null, isCompared?: boolean} | {view: "concepts"} | {view: "concept", head: string, id: number} | {view: "unreadable", why: string}}
 */
export function readHash(hash) {
  if (hash === "" || hash === "#" || hash === "#ask") return { view: "ask" };
  if (hash === "#concepts") return { view: "concepts" };
  const concept = /^#concept\/(known|discovered)\/(\d{1,9})$/.exec(hash);
  if (concept) return { view: "concept", head: concept[1], id: Number(concept[2]) };
  if (!hash.startsWith("#ask=")) return { view: "unreadable", why: "This address names nothing on the page." };
  try {
    return { view: "ask", ...checked(JSON.parse(decode(hash.slice(5)))) };
  } catch (error) {
    const why = error instanceof RangeError ? error.message : "This link is damaged or cut short.";
    return { view: "unreadable", why };
  }
}

function decode(text) {
  const binary = atob(text.replace(/-/g, "+").replace(/_/g, "/"));
  return new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(binary, (letter) => letter.charCodeAt(0)));
}

function checked(data) {
  if (!data || typeof data !== "object") throw new TypeError("not an object");
  if (data.v !== VERSION) throw new RangeError("This link was made by another version of the page.");
  if (typeof data.prompt !== "string" || !Array.isArray(data.steer)) throw new TypeError("fields");
  const ask = { prompt: data.prompt };
  for (const [name, [low, high]] of Object.entries(LIMITS)) {
    if (typeof data[name] !== "number" || !(data[name] >= low && data[name] <= high))
      throw new RangeError(`This link holds a ${name.replace(/_/g, " ")} that makes no sense.`);
    ask[name] = data[name];
  }
  ask.steer = data.steer.map(checkedSteer);
  return { ask, place: checkedPlace(data.at), isCompared: data.compare === true && ask.steer.length > 0 };
}

function checkedSteer(part) {
  const isFit =
    part &&
    ["known", "discovered"].includes(part.head) &&
    Number.isInteger(part.concept) &&
    part.concept >= 0 &&
    Math.abs(part.strength) <= 3;
  if (!isFit) throw new RangeError("This link steers something that makes no sense.");
  return {
    head: part.head,
    concept: part.concept,
    name: String(part.name ?? `#${part.concept}`),
    strength: part.strength,
    off: part.off === true,
  };
}

function checkedPlace(at) {
  return at && ["token", "chunk"].includes(at.kind) && Number.isInteger(at.at) && at.at >= 0
    ? { kind: at.kind, at: at.at }
    : null;
}

/** @param {Ask} one @param {Ask} other @returns {boolean} whether two requests write the same text. */
export const isSameAsk = (one, other) => JSON.stringify(one) === JSON.stringify(other);
