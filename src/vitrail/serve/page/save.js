// Saving: the answer as JSON, or as one page of HTML that needs nothing else (inline style, no
// script; the window as it stands).

import { countingOf, partsOf } from "./choice.js";
import { styleOf } from "./colour.js";
import { counted, decimal, percent, signed, tiny, tokenName } from "./dom.js";
import { steersText } from "./steering.js";

const STYLE = `body{margin:0 auto;max-width:66rem;padding:2rem 1.25rem 4rem;font:1rem/1.6 var(--sans);background:var(--paper);color:var(--ink);overflow-wrap:anywhere}
h1,h2,h3,h4{font-family:var(--serif);line-height:1.2;margin:1.4rem 0 .5rem}h1{font-size:2.2rem}h2{margin-top:2.4rem;border-top:1px solid var(--line);padding-top:1.4rem}.facts,small,.n{color:var(--soft)}
.text{font:1.2rem/1.7 var(--serif);white-space:pre-wrap;margin:.6rem 0}.prompt{color:var(--soft)}.answer{overflow:hidden}.picture{color-scheme:dark;float:right;width:min(100%,21rem);margin:.4rem 0 1rem 2rem;background:radial-gradient(70% 60% at 50% 36%,#27305a 0,#161b33 52%,#0d101d 100%);border-radius:9px;padding:1rem}
th{min-width:4.5em}table{border-collapse:collapse;width:100%;margin:.5rem 0 1.2rem}td,th{text-align:left;font-weight:400;padding:.28rem .8rem .28rem 0;border-bottom:1px solid var(--line);vertical-align:baseline}td.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums;padding-right:0;width:1%}
caption{text-align:left;font-weight:600;padding-bottom:.3rem}.swatch{margin-right:.6em}.cols{display:grid;align-items:start;gap:0 2.5rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr))}
blockquote{margin:.4rem 0 1rem;padding-left:1rem;border-left:3px solid var(--line);white-space:pre-line;font-family:var(--serif)}@media(max-width:44rem){.picture{float:none;margin:1rem 0}}`;

// What the picture and the glasses need of the page's own rules.
const TAKEN = /^(:root$|\.g\d|\.rest|\.residual|\.window|\.swatch)/;

const POLICY = "default-src 'none'; style-src 'unsafe-inline'";

/** @typedef {{ask: import("./stream.js").Ask, answer: import("./stream.js").Answer, doc: any}} Saved */

/** Request, answer and explanation in one JSON text. @param {Saved} saved @returns {string} */
export function asJson({ ask, answer, doc }) {
  return JSON.stringify({ format: "vitrail.page/1", request: ask, answer, explanation: doc }, null, 2);
}

/**
 * The answer as a page by itself.
 * @param {Saved} saved
 * @param {SVGElement} picture the window
 * @returns {string}
 */
export function asHtml({ ask, answer, doc }, picture) {
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
  page.body.append(...content(make, ask, answer, doc, page.importNode(picture, true)));
  // The style goes in as text: this page's own policy would not let us make a style element.
  const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]);
  const taken = rules.filter((rule) => TAKEN.test(rule.selectorText ?? "")).map((rule) => rule.cssText);
  const style = `<style>${taken.join("\n")}\n${STYLE}</style></head>`;
  return `<!doctype html>\n${page.documentElement.outerHTML.replace("</head>", () => style)}\n`;
}

function content(make, ask, answer, doc, picture) {
  const styled = (node, style) => Object.assign(node, { className: style });
  const settings = `temperature ${ask.temperature}, top-p ${ask.top_p}, repetition penalty ${ask.repetition_penalty}, ${counted(ask.tokens_per_step, "token")} a step, seed ${answer.seed}`;
  const passed = doc.certificate.passed ? "passed" : "failed";
  return [
    make("h1", "An answer, and what its words are made of"),
    styled(
      make(
        "p",
        `${counted(doc.tokens.length, "token")}; ${settings}. Steering: ${steersText(ask.steer) || "none"}. Model ${doc.model_id.slice(0, 12)}.`,
      ),
      "facts",
    ),
    styled(
      make(
        "div",
        "",
        styled(make("div", "", picture), "picture"),
        styled(make("p", doc.prompt), "text prompt"),
        styled(make("p", doc.text.trimStart()), "text"),
        make(
          "p",
          `Certificate ${passed}: largest error ${tiny(doc.certificate.max_abs_error)} logits (rounding allows ${tiny(doc.certificate.tolerance)}), ${counted(doc.certificate.num_deletions, "deletion")} measured.`,
        ),
        styled(
          make("p", "Window: the rose is the whole answer, the lancets are tokens; the size of a pane is its share."),
          "facts",
        ),
      ),
      "answer",
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
      ...ranked.map((one) => [`${one.name} (${one.head})`, one.value, styleOf(one)]),
      ...others.map((one) => [one.name, one.value, `rest ${one.head}`]),
      ["residual", sums.residual, "residual"],
    ];
    parts.push(
      table(
        make,
        styled,
        "Concepts, logits against the average word",
        rows.map(([name, value, style]) => [glazed(make, styled, name, style), signed(value)]),
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
    styled(make("p", chunk.text.trim()), "text"),
    styled(make("div", "", ...parts), "cols"),
    ...(hits.length
      ? [make("h3", "Training text that resembles it"), make("p", `Note: ${doc.sources.note}.`), ...hits]
      : []),
  ];
}

function tokenTable(make, styled, doc) {
  const rows = doc.concepts.tokens.map((item) => {
    const token = doc.tokens[item.pos];
    const largest = countingOf(item, "centred").ranked.slice(0, 3);
    const names = largest.map((one) => glazed(make, styled, `${one.name} ${signed(one.value)}`, styleOf(one)));
    return [tokenName(token.text), ...names, `step ${token.step + 1}`];
  });
  return table(make, styled, "Token, its concepts, when it was written", rows);
}

const glazed = (make, styled, text, style) => make("span", "", styled(make("i"), `swatch ${style}`), text);

// The last cell of a row is its number.
function table(make, styled, caption, rows) {
  const body = rows.map(([name, ...cells]) => {
    const last = cells.pop();
    return make(
      "tr",
      "",
      make("th", "", name),
      ...cells.map((cell) => make("td", "", cell)),
      styled(make("td", "", last), "n"),
    );
  });
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
