// Whole documents, with the concepts of every chunk; where a concept can be seen in the text, it is underlined.

let openDocument = null;

function labelSpans(labels) {
  return labels.flatMap(([c, , ...spans]) => spans.map(([start, stop]) => [start, stop, (text) =>
    make("span", { class: "span " + styleOf(c), "data-concept": c, title: concepts.name[c], onclick: () => select(c) }, text)]));
}

function chunkOf([text, labels]) {
  const chips = labels.map(([c, score, ...spans]) => chip(c, String(score), spans.length ? "annotator's score; underlined where it can be seen" : "annotator's score; not tied to single words"));
  return make("div", { class: "chunk" }, make("p", { dir: "auto" }, ...wrapped(text, labelSpans(labels))),
    chips.length ? make("div", { class: "chips" }, ...chips) : make("p", { class: "note" }, "no label"));
}

function body(found) {
  const about = [found.source, found.domain, found.license, `split ${found.split}`].filter(Boolean).join(" · ");
  const cut = found.num_chunks > found.chunks.length ? `the first ${whole(found.chunks.length)} of ${whole(found.num_chunks)} chunks` : counted(found.num_chunks, "chunk");
  return [make("h2", {}, make("bdi", {}, found.title)), make("p", { class: "note" }, make("bdi", {}, about), ` · ${cut}. Numbers on the concepts are the annotator's scores.`), ...found.chunks.map(chunkOf)];
}

async function showDocument(place, { isQuiet = false } = {}) {
  openDocument = place;
  if (!isQuiet) history.replaceState(null, "", `#document-${place}`);
  for (const [i, button] of byId("titles").querySelectorAll("button").entries()) button.setAttribute("aria-current", String(i === place));
  try {
    const found = await entryOf("documents", place);
    if (openDocument === place) byId("document").replaceChildren(...body(found));
  } catch (problem) {
    byId("document").replaceChildren(make("p", { class: "absent", role: "alert" }, problem.message));
  }
  markSelected();
}

function showDocuments() {
  const view = byId("view-documents");
  if (view.childElementCount) return;
  if (!data.documents.length) return view.append(make("p", { class: "absent" }, "no documents are in this page"));
  const titles = data.documents.map((found, i) => make("li", {}, make("button", { onclick: () => showDocument(i) },
    make("bdi", {}, found.title), make("small", {}, [found.domain, counted(found.num_chunks, "chunk")].filter(Boolean).join(" · ")))));
  view.append(
    make("p", { class: "note" }, `${whole(data.documents.length)} of ${whole(data.counts.documents)} documents${data.documents.length < data.counts.documents ? ", drawn at random among those with labels" : ""}.`),
    make("div", { class: "split" }, make("ul", { class: "list", id: "titles", "aria-label": "documents" }, ...titles), make("article", { id: "document", "aria-live": "polite" })));
  showDocument(openDocument || 0, { isQuiet: true });
}
