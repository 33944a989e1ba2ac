// The three answers that the page owes for a choice: inputs, concepts, training text. And the certificate, in words.

import { bar, byId, counted, decimal, el, own, percent, signed, tiny, tokenName } from "./dom.js";
import { countingOf } from "./choice.js";
import { linkTo, styleOf, swatch } from "./colour.js";
import { overlapSpans } from "./overlap.js";

/** Panel (a). @param {any} inputs @param {any} doc @returns {Node[]} */
export function inputsPanel(inputs, doc) {
  if (!inputs) return [absent("Inputs were not measured for this.")];
  const values = inputs.ranked.map((entry) => entry.score);
  const low = Math.min(0, ...values);
  const high = Math.max(0, ...values);
  const rows = inputs.ranked.map((entry) =>
    el(
      "li",
      { class: "row" },
      el(
        "span",
        { class: "name" },
        own(tokenName(entry.text)),
        " ",
        el("small", {}, entry.where === "prompt" ? "prompt" : "own words"),
      ),
      bar(entry.score, low, high, entry.score < 0 ? "against" : "input"),
      el("span", { class: "value" }, signed(entry.score)),
    ),
  );
  const shares =
    inputs.prompt_share === undefined
      ? null
      : el(
          "p",
          { class: "shares" },
          `Prompt ${percent(inputs.prompt_share)} · its own words ${percent(inputs.generated_share)}`,
          inputs.injection_share > 0 ? ` · steering ${percent(inputs.injection_share)}` : "",
        );
  return [
    el("ol", { class: "rows" }, ...rows),
    shares,
    el(
      "p",
      { class: "note" },
      `Scores in logits: what each input added, measured from a row of masked panes (Integrated Gradients, ${doc.inputs.steps} steps). Together they explain a change of ${signed(inputs.change)}; completeness gap `,
      el("b", {}, percent(inputs.completeness_gap)),
      ".",
    ),
  ].filter(Boolean);
}

/**
 * Panel (b).
 * @param {any} item
 * @param {"raw"|"centred"} mode
 * @param {(concept: any) => void} onTurn puts a concept among the steered
 * @returns {Node[]}
 */
export function conceptsPanel(item, mode, onTurn) {
  if (!item) return [absent("Concepts were not measured for this.")];
  const { sums, ranked, others } = countingOf(item, mode);
  const values = [...ranked.map((entry) => entry.value), ...others.map((entry) => entry.value), sums.residual];
  const low = Math.min(0, ...values);
  const high = Math.max(0, ...values);
  const isToken = item.pos !== undefined;
  const label = mode === "raw" ? (isToken ? "logit" : "sum of logits") : "above the average word";
  return [
    el(
      "p",
      { class: "sum" },
      term(sums.known, "known"),
      el("i", {}, "+"),
      term(sums.discovered, "discovered"),
      el("i", {}, "+"),
      term(sums.residual, "residual"),
      el(
        "span",
        { class: "equals" },
        el("i", {}, "="),
        term(sums.known + sums.discovered + sums.residual, label, "total"),
      ),
    ),
    el(
      "ol",
      { class: "rows" },
      ...ranked.map((entry) => conceptRow(entry, low, high, onTurn)),
      ...others.map((entry) => plainRow(entry.name, "summed", entry.value, low, high, `rest ${entry.head}`)),
      plainRow("residual", "what no concept holds", sums.residual, low, high, "residual"),
    ),
    item.steering_penalty
      ? el("p", { class: "note" }, `Suppression took another ${decimal(item.steering_penalty)} from this logit.`)
      : null,
  ].filter(Boolean);
}

function conceptRow(entry, low, high, onTurn) {
  const turn = el(
    "button",
    {
      type: "button",
      class: "turn",
      "aria-label": `Steer with ${entry.name}`,
      title: "Steer with this concept",
      onclick: () => onTurn(entry),
    },
    "turn",
  );
  return el(
    "li",
    { class: "row concept" },
    el(
      "span",
      { class: "name coded" },
      swatch(styleOf(entry)),
      el("a", { href: linkTo(entry) }, own(entry.name)),
      el("small", {}, `${entry.head}, active ${percent(entry.weight)}`),
    ),
    bar(entry.value, low, high, styleOf(entry) + (entry.value < 0 ? " minus" : "")),
    el("span", { class: "value" }, signed(entry.value)),
    turn,
  );
}

function plainRow(name, small, value, low, high, style) {
  return el(
    "li",
    { class: "row concept" },
    el("span", { class: "name coded" }, swatch(style), el("span", {}, name), el("small", {}, small)),
    bar(value, low, high, style),
    el("span", { class: "value" }, signed(value)),
  );
}

const term = (value, name, style = "") =>
  el("span", { class: `term ${style}` }, el("b", {}, signed(value)), el("small", {}, name));

/** The certificate, in words. @param {any} certificate @returns {Node[]} */
export function certificatePanel(certificate) {
  const {
    passed,
    max_abs_error: error,
    tolerance,
    num_tokens: tokens,
    num_deletions: deletions,
    deletion_max_abs_error: deleted,
    dtype,
  } = certificate;
  const parts = Object.entries(certificate.parts).map(([name, value]) =>
    el("div", {}, el("dt", {}, name.replace(/_/g, " ")), el("dd", {}, tiny(value))),
  );
  return [
    el("summary", {}, passed ? "✓ The numbers add up" : "✗ The numbers do not add up"),
    el(
      "p",
      {},
      `All parts of ${counted(tokens, "token")} were computed a second time, in double precision, from the stored weights. Largest error: ${tiny(error)} logits; rounding in ${dtype} allows ${tiny(tolerance)}.`,
    ),
    el(
      "p",
      {},
      `${counted(deletions, "concept")} were deleted one by one with all else held: each logit moved by the contribution shown, within ${tiny(deleted)}.`,
    ),
    el("p", {}, "Largest difference, part by part:"),
    el("dl", {}, ...parts),
  ];
}

/** Panel (c). @param {any} sources @param {string} note @param {boolean} hasIndex @returns {Node[]} */
export function sourcesPanel(sources, note, hasIndex) {
  if (!hasIndex)
    return [
      absent("This server has no index of its training text; start it with --index to see the nearest passages."),
    ];
  if (!sources?.hits.length)
    return [absent("This belongs to no passage of the answer, so no training text was looked for.")];
  const items = sources.hits.map((hit, at) => {
    const same = hit.overlap.num_tokens
      ? hit.overlap.num_tokens === 1
        ? "one token in common"
        : `${hit.overlap.num_tokens} tokens in a row in common`
      : "no words in common";
    const title = hit.title || hit.document_id;
    return el(
      "li",
      { class: "passage" },
      el("h4", {}, own(title)),
      el("p", { class: "similar" }, "similarity ", el("b", {}, decimal(hit.similarity)), ` · ${same}`),
      el(
        "blockquote",
        { dir: "auto", tabindex: "0", role: "group", "aria-label": `training passage ${at + 1}: ${title}` },
        ...overlapSpans(hit.text, hit.overlap.text),
      ),
      el(
        "p",
        { class: "origin" },
        ...[hit.document_id, hit.source, hit.license]
          .filter(Boolean)
          .flatMap((text, place) => [place ? " · " : "", own(text)]),
      ),
    );
  });
  return [
    el(
      "p",
      { class: "caution" },
      `${note.charAt(0).toUpperCase()}${note.slice(1)}: these passages resemble the answer; nothing here says that they caused it.`,
    ),
    el("ol", { class: "passages" }, ...items),
  ];
}

// A line for what is not there.
const absent = (text) => el("p", { class: "absent" }, text);

/** Put nodes in a box of the page. @param {string} id @param {Node[]} nodes */
export const put = (id, nodes) => byId(id).replaceChildren(...nodes);
