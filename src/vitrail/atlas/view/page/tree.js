// The tree of classes with counts; branches are filled when they are opened.

const PAGE = 200; // concepts shown of one branch before asking for more

function grow() {
  const root = { name: "", branches: new Map(), leaves: [], concepts: 0, chunks: 0 };
  for (const c of bySize) {
    let node = root;
    const path = data.paths[concepts.path[c]];
    for (const name of path.length ? path : [NO_PATH]) {
      if (!node.branches.has(name)) node.branches.set(name, { name, branches: new Map(), leaves: [], concepts: 0, chunks: 0 });
      node = node.branches.get(name);
      node.concepts += 1;
      node.chunks += concepts.chunks[c];
    }
    node.leaves.push(c);
  }
  return root;
}

function leavesOf(node) {
  const list = make("div", { class: "chips" });
  let shown = 0;
  const more = make("button", { class: "plain", onclick: showMore });
  function showMore() {
    list.append(...node.leaves.slice(shown, shown + PAGE).map((c) => chip(c, whole(concepts.chunks[c]), "chunks that carry it")));
    shown += PAGE;
    more.textContent = `${whole(node.leaves.length - shown)} more`;
    more.hidden = shown >= node.leaves.length;
  }
  showMore();
  return [list, more];
}

function branch(node) {
  const details = make("details", { "data-branch": node.name },
    make("summary", {}, make("bdi", {}, node.name), make("small", {}, `${counted(node.concepts, "concept")}, ${counted(node.chunks, "label")}`)));
  const fill = () => {
    if (details.childElementCount > 1) return;
    const inner = [...node.branches.values()].sort((a, b) => (a.name < b.name ? -1 : 1)).map(branch);
    details.append(...inner, ...(node.leaves.length ? leavesOf(node) : []));
  };
  details.addEventListener("toggle", () => { if (details.open) fill(); });
  details.fill = fill;
  return details;
}

function showTree() {
  const view = byId("view-tree");
  if (view.childElementCount) return;
  const tops = [...grow().branches.values()].sort((a, b) => (a.name < b.name ? -1 : 1)).map(branch);
  view.append(make("p", { class: "note" }, "Branches of the subject tree. A label is a concept on a chunk; beside each concept stands on how many chunks."), make("div", { class: "tree" }, ...tops));
  if (tops.length === 1) { tops[0].fill(); tops[0].open = true; }
}

function openBranch(path) {
  openTab("tree");
  let nodes = [...byId("view-tree").querySelectorAll(".tree > details")], found = null;
  for (const name of path) {
    found = nodes.find((node) => node.dataset.branch === name);
    if (!found) return;
    found.fill();
    found.open = true;
    nodes = [...found.children].filter((node) => node.tagName === "DETAILS");
  }
  found.scrollIntoView({ block: "nearest" });
  found.firstElementChild.focus();
}
