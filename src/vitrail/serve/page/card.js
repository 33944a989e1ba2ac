// One concept by itself: what it is called, the words it lives by, what it raises, who stands near, where it was seen.

import { linkTo, styleOf, swatch } from "./colour.js";
import { counted, decimal, el, markSpans, own, tokenName, whole } from "./dom.js";

const MOST_BARS = 12;

/**
 * The page of one concept.
 * @param {any} found answer of /v1/concepts/{head}/{id}
 * @param {(concept: any) => void} onSteer
 * @returns {Node[]}
 */
export function conceptPage(found, onSteer) {
  const { card, top_tokens: tokens, neighbours, examples, scale } = found;
  return [
    el(
      "header",
      { class: `concept-head ${styleOf(card)}` },
      el(
        "p",
        { class: "kind" },
        `${card.head} concept ${card.concept_id}`,
        card.kind ? ` · ${card.kind}` : "",
        card.path.length ? ` · ${card.path.join(" › ")}` : "",
      ),
      el("h1", { tabindex: "-1" }, swatch(styleOf(card)), own(card.name)),
      card.description ? el("p", { class: "describes", dir: "auto" }, card.description) : null,
      card.is_automatic ? el("p", { class: "note" }, "Named by a program from its words, not by a person.") : null,
      el("button", { type: "button", class: "primary steer-with", onclick: () => onSteer(card) }, "Steer with this"),
    ),
    el(
      "div",
      { class: "concept-parts" },
      part("Words", "how many times likelier each is in this concept's passages than anywhere", wordBars(card)),
      part("Pushes up", "tokens whose score it raises most, against the average concept", tokenChips(tokens)),
      part("Near it", "cosine between embeddings", neighbourList(neighbours)),
      part("In figures", "", figures(card, scale)),
    ),
    el("section", { class: "examples" }, el("h2", {}, "Seen in training"), ...exampleList(card, examples)),
  ];
}

const part = (title, small, content) =>
  el("section", { class: "part" }, el("h2", {}, title), small ? el("p", { class: "note" }, small) : null, content);

function wordBars(card) {
  const rows = card.words.slice(0, MOST_BARS).map((word, at) => [word, card.lift[at] ?? null]);
  if (!rows.length) return el("p", { class: "absent" }, "No words are kept for it.");
  const most = Math.max(1, ...rows.map(([, lift]) => lift ?? 0));
  return el(
    "ol",
    { class: "rows" },
    ...rows.map(([word, lift]) => {
      const glass = el("span", { class: `glass ${styleOf(card)}` });
      glass.style.width = `${((lift ?? 0) / most) * 100}%`;
      return el(
        "li",
        { class: "row word" },
        el("span", { class: "name" }, own(word)),
        el("span", { class: "bar", "aria-hidden": "true" }, glass),
        el(
          "span",
          { class: "value" },
          lift === null ? "" : `×${lift < 10 ? lift.toFixed(1) : whole(Math.round(lift))}`,
        ),
      );
    }),
  );
}

function tokenChips(tokens) {
  if (!tokens.length) return el("p", { class: "absent" }, "Not measured.");
  return el(
    "ol",
    { class: "chips" },
    ...tokens.map((token) => el("li", {}, own(tokenName(token.text)), el("small", {}, decimal(token.score)))),
  );
}

function neighbourList(neighbours) {
  if (!neighbours.length) return el("p", { class: "absent" }, "None.");
  return el(
    "ol",
    { class: "near" },
    ...neighbours.map((one) =>
      el(
        "li",
        {},
        swatch(styleOf(one)),
        el("a", { href: linkTo(one) }, own(one.name)),
        el("small", {}, decimal(one.cosine)),
      ),
    ),
  );
}

function figures(card, scale) {
  const rows = [
    card.num_chunks ? ["labelled passages", whole(card.num_chunks)] : null,
    card.head === "known" ? ["lowest score of a label", decimal(card.threshold)] : null,
    ["strength 1.0 injects a vector of length", scale ? whole(Math.round(scale.scale)) : "measured when first used"],
    scale ? ["and moves the largest logit by", `${decimal(scale.change)} on average`] : null,
  ].filter(Boolean);
  return el(
    "dl",
    { class: "figures" },
    ...rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
}

function exampleList(card, examples) {
  if (!examples.length) {
    const why =
      card.head === "discovered"
        ? "The model found this concept by itself: no passage carries its label."
        : "No passages are at hand: the server has no index, or none is labelled with it.";
    return [el("p", { class: "absent" }, why)];
  }
  return [
    el("p", { class: "note" }, "Passages that the annotator labels most surely; the marked words are why."),
    el(
      "ol",
      { class: "passages" },
      ...examples.map((one, at) =>
        el(
          "li",
          { class: "passage" },
          el("h3", {}, own(one.title || one.document_id)),
          el(
            "p",
            { class: "similar" },
            "annotator's score ",
            el("b", {}, decimal(one.score)),
            one.spans.length ? ` · ${counted(one.spans.length, "span")}` : "",
          ),
          el(
            "blockquote",
            { dir: "auto", tabindex: "0", role: "group", "aria-label": `passage ${at + 1}` },
            ...markSpans(one.text, one.spans),
          ),
          el(
            "p",
            { class: "origin" },
            ...[one.source, one.license].filter(Boolean).flatMap((text, place) => [place ? " · " : "", own(text)]),
          ),
        ),
      ),
    ),
  ];
}
