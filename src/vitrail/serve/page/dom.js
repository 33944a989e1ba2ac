// Building blocks of the page: elements, numbers, announcements.
// Text from the model, the corpus or the user only ever becomes text nodes; nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";
const TWO = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const WHOLE = new Intl.NumberFormat("en");

/** @param {string} id @returns {HTMLElement} the element of the page with this id. */
export const byId = (id) => document.getElementById(id);

/**
 * An element. Keys of `options` that begin with "on" are listeners, `true` is an empty attribute, `false` and null none.
 * @param {string} tag
 * @param {Record<string, any>} [options]
 * @param {...(Node|string|null|false|undefined)} children
 * @returns {HTMLElement}
 */
export function el(tag, options = {}, ...children) {
  return fill(document.createElement(tag), options, children);
}

/** An SVG element; see `el`. @returns {SVGElement} */
export function svg(tag, options = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), options, children);
}

function fill(node, options, children) {
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** @param {number} value @returns {string} "+1.23", "−0.40", "0.00". */
export function signed(value) {
  const text = TWO.format(Math.abs(value));
  return (Number(text.replace(/,/g, "")) === 0 ? "" : value > 0 ? "+" : "\u2212") + text;
}

/** @param {number} value @returns {string} a strength in calibrated units: "+1.0", "−0.5", "0.0". */
export function strength(value) {
  return (value > 0 ? "+" : value < 0 ? "\u2212" : "") + Math.abs(value).toFixed(1);
}

/** @param {number} share @returns {string} "12 %". */
export function percent(share) {
  const value = share * 100;
  return (value > 0 && value < 0.95 ? value.toFixed(1) : String(Math.round(value))) + "\u00a0%";
}

/** @param {number} value @returns {string} "1,312,768". */
export const whole = (value) => WHOLE.format(value);

/** @param {number} value @returns {string} two decimals. */
export const decimal = (value) => TWO.format(value);

/** @param {number} value @returns {string} a small number: "4.9 × 10⁻⁶", "0". */
export function tiny(value) {
  if (value === 0) return "0";
  const [digits, power] = value.toExponential(1).split("e");
  const raised = Array.from(String(Number(power)), (sign) => (sign === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(sign)]));
  return `${digits} × 10${raised.join("")}`;
}

/** @param {number} value @param {string} word @returns {string} "1 token", "2 tokens". */
export const counted = (value, word) => `${whole(value)} ${word}${value === 1 ? "" : "s"}`;

/** @param {string} text @returns {boolean} whether a token is a control token such as <|endofchunk|>. */
export const isSpecial = (text) => /^<\|[^|]*\|>$/.test(text);

/**
 * How a token reads inside running text.
 * @param {string} text
 * @returns {[string, string, string]} space before, letters, line break after.
 */
export function splitToken(text) {
  if (isSpecial(text)) return ["", text.includes("bos") ? "▸" : "¶", ""];
  const space = /^[ \t]*/.exec(text)[0];
  const letters = text.slice(space.length).replace(/\r?\n/g, "↵");
  return letters ? [space, letters, text.includes("\n") ? "\n" : ""] : ["", "·", ""];
}

/** A token's name for labels and lists. @param {string} text @returns {string} */
export function tokenName(text) {
  if (isSpecial(text))
    return text.includes("bos") ? "start" : text.includes("chunk") ? "end of passage" : "end of text";
  if (/^\uFFFD*$/.test(text)) return "part of a character";
  return text.trim() || (text.includes("\n") ? "↵" : "space");
}

/** A text node that keeps its own direction. @param {string} text @returns {HTMLElement} */
export const own = (text) => el("bdi", {}, text);

let said = "";
/** Tell screen readers, politely, and never the same line twice in a row. @param {string} text */
export function announce(text) {
  if (text === said) return;
  said = text;
  byId("live").textContent = text;
}

/** Whether the reader asked for less motion. @returns {boolean} */
export const isCalm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/**
 * A signed bar on the scale low..high. Places go through the style object: the policy forbids style attributes.
 * @param {number} value
 * @param {number} low
 * @param {number} high
 * @param {string} style classes of the glass
 * @returns {HTMLElement}
 */
export function bar(value, low, high, style) {
  const span = high - low || 1;
  const zero = ((0 - low) / span) * 100;
  const stop = ((value - low) / span) * 100;
  const glass = el("span", { class: `glass ${style}` });
  glass.style.left = `${Math.min(zero, stop)}%`;
  glass.style.width = `${Math.abs(stop - zero)}%`;
  const axis = el("span", { class: "zero" });
  axis.style.left = `${zero}%`;
  return el("span", { class: "bar", "aria-hidden": "true" }, axis, glass);
}

/**
 * Text with stretches marked.
 * @param {string} text
 * @param {Array<[number, number]>} spans half-open, in characters of Python (code points)
 * @param {string} [style] class of the marks
 * @returns {Array<Node|string>}
 */
export function markSpans(text, spans, style = "") {
  const letters = Array.from(text);
  const parts = [];
  let at = 0;
  for (const [start, stop] of [...spans].sort((a, b) => a[0] - b[0])) {
    if (start < at || stop <= start) continue;
    parts.push(
      letters.slice(at, start).join(""),
      el("mark", { class: style || null }, letters.slice(start, stop).join("")),
    );
    at = stop;
  }
  parts.push(letters.slice(at).join(""));
  return parts;
}
