// Saving: the answer as JSON, or as one page of HTML that needs nothing else (inline style, no script).

import { countingOf, partsOf } from "./choice.js";
import { counted, decimal, percent, signed, tokenName } from "./dom.js";
import { steersText } from "./steering.js";

const STYLE = `:root{color-scheme:light dark}body{margin:0 auto;max-width:62rem;padding:2rem 1.25rem 4rem;font:1rem/1.6 system-ui,sans-serif;background:light-dark(#f5f4f0,#10131f);color:light-dark(#1a2033,#e7e8ee);overflow-wrap:anywhere}
h1,h2,h3{font-family:"Iowan Old Style",Palatino,Georgia,serif;line-height:1.2}h2{margin-top:2.4rem;border-top:1px solid #8886;padding-top:1.2rem}.text{font:1.2rem/1.8 "Iowan Old Style",Palatino,Georgia,serif;white-space:pre-wrap}
.prompt{opacity:.75}table{border-collapse:collapse;width:100%;margin:.5rem 0 1.2rem}td,th{text-align:left;padding:.25rem .8rem .25rem 0;border-bottom:1px solid #8883;vertical-align:top}.n{text-align:right;font-variant-numeric:tabular-nums}
blockquote{margin:.4rem 0;padding-left:1rem;border-left:3px solid #8886;white-space:pre-line}small,dt{opacity:.8}caption{text-align:left;font-weight:600}.cols{display:grid;align-items:start;gap:0 2.5rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr))}summary{cursor:pointer}`;

const POLICY = "default-src 'none'; style-src 'unsafe-inline'";

/** @typedef {{ask: import("./stream.js").Ask, answer: import("./stream.js").Answer, doc: any}} Saved */

/** Request, answer and explanation in one JSON text. @param {Saved} saved @returns {string} */
export function asJson({ ask, answer, doc }) {
  return JSON.stringify(
    { format: "vitrail.page/1", request: ask, answer: { ...answer, seed: answer.seed }, explanation: doc },
    null,
    2,
  );
}

/** The answer as a page by itself. @param {Saved} saved @returns {string} */
export function asHtml({ ask, answer, doc }) {
  const page = document.implementation.createHTMLDocument("An answer of vitrail");
  const make = (tag, text = "", ...children) => {
    const node = page.createElement(tag);
    if (text) node.textContent = text;
    node.append(...children);
    return node;
  };
  const policy = page.createElement("meta");
  policy.httpEquiv = "Content-Security-Policy";
  policy.content = POLICY;
  const charset = page.createElement("meta");
  charset.setAttribute("charset", "utf-8");
  const screen = page.createElement("meta");
  Object.assign(screen, { name: "viewport", content: "width=device-width, initial-scale=1" });
  page.head.prepend(charset, policy, screen);
  page.documentElement.lang = "en";
  page.body.append(...content(make, ask, answer, doc));
  // The style goes in as text: this page's own policy would not let us make a style element.
  return `<!doctype html>\n${page.documentElement.outerHTML.replace("</head>", `<style>${STYLE}</style></head>`)}\n`;
}

function content(make, ask, answer, doc) {
  const styled = (node, style) => Object.assign(node, { className: style });
  const settings = `temperature ${ask.temperature}, top-p ${ask.top_p}, repetition penalty ${ask.repetition_penalty}, ${counted(ask.tokens_per_step, "token")} a step, seed ${answer.seed}`;
  const passed = doc.certificate.passed ? "passed" : "failed";
  return [
    make("h1", "An answer, and what its words are made of"),
    make(
      "p",
      `${counted(doc.tokens.length, "token")}; ${settings}. Steering: ${steersText(ask.steer) || "none"}. Model ${doc.model_id.slice(0, 12)}.`,
    ),
    styled(make("p", doc.prompt), "text prompt"),
    styled(make("p", doc.text), "text"),
    make(
      "p",
      `Certificate ${passed}: largest error ${doc.certificate.max_abs_error.toExponential(1)} logits (rounding allows ${doc.certificate.tolerance.toExponential(1)}), ${counted(doc.certificate.num_deletions, "deletion")} measured.`,
    ),
    ...doc.chunks.flatMap((chunk) => passage(make, styled, doc, chunk)),
    make("h2", "Token by token"),
    make("p", "The three largest concepts of each token, against the average word, in logits."),
    tokenTable(make, styled, doc),
  ];
}

function passage(make, styled, doc, chunk) {
  const { inputs, concepts, sources } = partsOf(doc, { kind: "chunk", at: chunk.chunk });
  const parts = [];
  if (concepts) {
    const { sums, ranked, others } = countingOf(concepts, "centred");
    const rows = [
      ...ranked.map((one) => [`${one.name} (${one.head})`, one.value]),
      ...others.map((one) => [one.name, one.value]),
      ["residual", sums.residual],
    ];
    parts.push(
      table(
        make,
        styled,
        "Concepts, logits against the average word",
        rows.map(([name, value]) => [name, signed(value)]),
      ),
    );
  }
  if (inputs) {
    const rows = inputs.ranked.map((one) => [
      `${tokenName(one.text)} (${one.where === "prompt" ? "prompt" : "own words"})`,
      signed(one.score),
    ]);
    parts.push(table(make, styled, `Inputs, logits (completeness gap ${percent(inputs.completeness_gap)})`, rows));
  }
  const hits = (sources?.hits ?? []).map((hit) =>
    make(
      "div",
      "",
      make("h4", hit.title || hit.document_id),
      make(
        "small",
        `similarity ${decimal(hit.similarity)} · shared: ${hit.overlap.text.trim() || "nothing"} · ${hit.document_id} · ${hit.source} · ${hit.license}`,
      ),
      make("blockquote", hit.text),
    ),
  );
  return [
    make("h2", `Passage ${chunk.chunk + 1}`),
    styled(make("p", chunk.text), "text"),
    styled(make("div", "", ...parts), "cols"),
    ...(hits.length
      ? [make("h3", "Training text that resembles it"), make("p", `Note: ${doc.sources.note}.`), ...hits]
      : []),
  ];
}

function tokenTable(make, styled, doc) {
  const rows = doc.concepts.tokens.map((item) => {
    const token = doc.tokens[item.pos];
    const largest = countingOf(item, "centred")
      .ranked.slice(0, 3)
      .map((one) => `${one.name} ${signed(one.value)}`)
      .join(" · ");
    return [tokenName(token.text), largest, String(token.step + 1)];
  });
  return table(make, styled, "Token, concepts, step", rows);
}

function table(make, styled, caption, rows) {
  const body = rows.map((row) =>
    make(
      "tr",
      "",
      ...row.map((text, at) =>
        at === row.length - 1 && at > 0 ? styled(make("td", text), "n") : make(at ? "td" : "th", text),
      ),
    ),
  );
  return make("table", "", make("caption", caption), make("tbody", "", ...body));
}

/** Hand a text to the reader as a file. @param {string} name @param {string} text @param {string} type */
export function download(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  Object.assign(link, { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
