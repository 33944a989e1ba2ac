// Colour by main class, kind or domain. Colour is never alone: names, shapes and the legend say the same.

const NUM_HUES = 16;
const KINDS = { content: "content", tone: "tone", demographic: "demographic reference", alignment: "alignment" };
const NO_PATH = "no place in the tree";
const NO_DOMAIN = "no domain named";

const groupings = {
  class: { title: "main class", of: (c) => data.paths[concepts.path[c]][0] || NO_PATH },
  domain: { title: "domain it is most found in", of: (c) => (concepts.chunks[c] ? data.domains[concepts.domain[c]] : "") || NO_DOMAIN },
  kind: { title: "kind", of: (c) => KINDS[concepts.kind[c]] || concepts.kind[c] },
};
const hasPaths = data.paths.some((path) => path.length > 0);
if (!hasPaths) delete groupings.class;
if (data.domains.length < 2) delete groupings.domain;

let grouping = null; // { title, names: largest first, group: per concept, style: per group }

function groupBy(key) {
  const { title, of } = groupings[key];
  const counts = new Map();
  const name = Array.from({ length: COUNT }, (_, c) => of(c));
  for (const value of name) counts.set(value, (counts.get(value) || 0) + 1);
  const names = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a) || (a < b ? -1 : 1));
  const place = new Map(names.map((value, i) => [value, i]));
  const style = names.map((value, i) => (i >= NUM_HUES || value === NO_PATH || value === NO_DOMAIN ? "rest" : "g" + i));
  grouping = { title, names, counts: names.map((value) => counts.get(value)), group: name.map((value) => place.get(value)), style };
}

const styleOf = (c) => grouping.style[grouping.group[c]];
const swatch = (style) => make("span", { class: "swatch " + style, "aria-hidden": "true" });

// A concept as a button that opens its card.
function chip(c, note, title) {
  return make("button", { class: "chip", title, "data-concept": c, onclick: () => select(c) },
    swatch(styleOf(c)), make("bdi", {}, concepts.name[c]), note ? make("small", {}, note) : null);
}

groupBy(hasPaths ? "class" : groupings.domain ? "domain" : "kind");
