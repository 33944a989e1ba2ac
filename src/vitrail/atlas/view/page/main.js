// Views, addresses, and the beginning.

const VIEWS = { map: drawMap, tree: showTree, documents: showDocuments, sources: showSources };
const tabs = Object.keys(VIEWS).map((name) => byId("tab-" + name));

function openTab(name) {
  for (const other of Object.keys(VIEWS)) {
    const isOpen = other === name;
    byId("view-" + other).hidden = !isOpen;
    byId("tab-" + other).setAttribute("aria-selected", String(isOpen));
    byId("tab-" + other).tabIndex = isOpen ? 0 : -1;
  }
  VIEWS[name]();
}

tabs.forEach((tab, place) => {
  tab.addEventListener("click", () => openTab(tab.id.slice(4)));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(place + step + tabs.length) % tabs.length];
    next.focus();
    openTab(next.id.slice(4));
    event.preventDefault();
  });
});

function follow() {
  const [, kind, number] = location.hash.match(/^#(concept|document)-(\d+)$/) || [];
  if (kind === "concept" && Number(number) < COUNT) select(Number(number), { isQuiet: true });
  if (kind === "document" && Number(number) < data.documents.length) {
    openDocument = Number(number);
    openTab("documents");
    showDocument(openDocument, { isQuiet: true });
  }
}

addEventListener("hashchange", follow);
showLegend();
showNoCard();
drawMap();
follow();
document.body.dataset.ready = "";
