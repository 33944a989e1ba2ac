// The card of the chosen concept.

let selected = null;

function quoted(example) {
  const spans = example.spans.map(([start, stop]) => [start, stop, (text) => make("mark", {}, text)]);
  const origin = [example.title, example.source, example.license].filter(Boolean).join(" · ");
  return make("blockquote", { dir: "auto" }, ...wrapped(example.text, spans), make("footer", {}, `score ${example.score} · `, make("bdi", {}, origin)));
}

function whereRows(rows, style) {
  return make("ul", { class: "rows" }, ...rows.map(([name, carrying, chunks]) => make("li", {},
    make("bdi", {}, name || "not named"), bar(carrying / chunks, style),
    make("span", { class: "value", title: `${whole(carrying)} of ${whole(chunks)} chunks` }, `${percent(carrying / chunks)} (${whole(carrying)})`))));
}

function crumbs(path) {
  if (!path.length) return null;
  const steps = path.map((name, depth) => make("button", { onclick: () => openBranch(path.slice(0, depth + 1)) }, name));
  return make("p", { class: "crumbs", "aria-label": "place in the tree" }, ...steps.flatMap((step, i) => (i ? [" › ", step] : [step])));
}

function section(title, note, ...content) {
  return [make("h3", {}, title, " ", make("small", {}, note)), ...content];
}

function lists(c, card) {
  const style = styleOf(c);
  const groups = [["source", "Found in sources"], ["domain", "Found in domains"]];
  return [
    ...(card.near.length ? section("Like it", "cosine of concept vectors", make("div", { class: "chips" }, ...card.near.map(([other, cosine]) => chip(other, cosine.toFixed(2), "cosine")))) : []),
    ...(card.together.length ? section("On the same chunks", "chunks with both, × more than by chance", make("div", { class: "chips" }, ...card.together.map(([other, both, lift]) => chip(other, `${whole(both)}, ×${lift}`, "chunks with both, and how many times more than by chance")))) : []),
    ...groups.flatMap(([by, title]) => (card.where[by].length ? section(title, "share of their chunks that carry it (count)", whereRows(card.where[by], style)) : [])),
    ...(card.examples.length ? section("Examples", "chunks with the highest scores; marked: its tags", ...card.examples.map(quoted)) : []),
  ];
}

function showCard(c, card) {
  const chunks = concepts.chunks[c];
  byId("card").replaceChildren(
    make("h2", {}, swatch(styleOf(c)), make("bdi", {}, concepts.name[c])),
    crumbs(data.paths[concepts.path[c]]) || "",
    make("p", { class: "crumbs" }, `#${c} · ${KINDS[concepts.kind[c]] || concepts.kind[c]} · ${grouping.title}: ${grouping.names[grouping.group[c]]}`),
    make("p", {}, make("bdi", {}, card.description)),
    make("dl", { class: "meta" },
      make("dt", {}, "chunks that carry it"), make("dd", {}, `${whole(chunks)} (${percent(chunks / Math.max(1, data.counts.chunks))} of all)`),
      make("dt", {}, "in the sample it was built from"), make("dd", {}, whole(card.built)),
      make("dt", {}, "lowest score of a label"), make("dd", {}, String(card.threshold)),
      make("dt", {}, "named by"), make("dd", {}, card.automatic ? "a program" : "a person")),
    ...(card.words.length ? section("Characteristic words", "× more frequent in its chunks than in all", make("ul", { class: "words" }, ...card.words.map((word, i) => make("li", {}, make("bdi", {}, word), " ", make("small", {}, card.lift[i] ? `×${card.lift[i]}` : ""))))) : []),
    ...lists(c, card));
  byId("card").scrollTop = 0;
}

function showNoCard() {
  byId("card").replaceChildren(make("p", { class: "absent" }, "Choose a concept on the map, in the tree, in a document, or by searching: its card appears here."));
}

async function select(c, { isQuiet = false } = {}) {
  selected = c;
  near = []; // those of the concept before; its own come with its card
  if (!isQuiet) history.replaceState(null, "", `#concept-${c}`);
  markSelected();
  byId("map-text").replaceChildren(make("bdi", {}, concepts.name[c]), `: ${counted(concepts.chunks[c], "chunk")} · `, make("button", { onclick: goToCard }, "its card"));
  try {
    const card = await entryOf("cards", c);
    if (selected === c) {
      near = card.near.map(([other]) => other);
      showCard(c, card);
      drawMap();
    }
  } catch (problem) {
    byId("card").replaceChildren(make("p", { class: "absent", role: "alert" }, problem.message));
  }
}

function goToCard() {
  byId("card").scrollIntoView({ block: "start" });
  byId("card").focus({ preventScroll: true });
}

function markSelected() {
  for (const node of document.querySelectorAll("[data-concept]")) node.classList.toggle("chosen", Number(node.dataset.concept) === selected);
  drawMap();
}
