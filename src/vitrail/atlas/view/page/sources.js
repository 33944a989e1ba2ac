// Sources and domains: how large they are, and which concepts set each apart from all the others.

function typicalChip(row, [c, carrying, ratio, low, high]) {
  return chip(c, percent(carrying / row.chunks), `${whole(carrying)} of ${whole(row.chunks)} chunks; log odds ratio against all others ${ratio} (95 % interval ${low} to ${high})`);
}

function groupTable(by) {
  const groups = data.groups[by];
  const rows = groups.rows.map((row) => make("tr", {},
    make("td", {}, make("bdi", {}, row.name || "not named")),
    make("td", { class: "number", "data-name": "chunks" }, `${whole(row.chunks)} (${percent(row.chunks / data.counts.chunks)})`),
    make("td", { class: "number", "data-name": "documents" }, whole(row.documents)),
    make("td", {}, make("div", { class: "chips" }, ...row.typical.map((entry) => typicalChip(row, entry))))));
  const head = [by, "chunks (share of all)", "documents", "concepts that set it apart (share of its chunks)"];
  const left = groups.total - groups.rows.length;
  return [
    make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { scope: "col" }, name)))), make("tbody", {}, ...rows))),
    make("p", { class: "note" }, (left ? `${whole(left)} smaller ones are not listed. ` : "") + "Set apart: the log odds ratio against all other chunks is above 0 with its 95 % interval (over documents); those with the highest lower end are shown."),
  ];
}

function showSources() {
  const view = byId("view-sources");
  if (view.childElementCount) return;
  const table = make("div", {});
  const choice = make("select", { onchange: (event) => table.replaceChildren(...groupTable(event.target.value)) },
    ...["domain", "source"].map((by) => make("option", { value: by }, `${by} (${whole(data.groups[by].total)})`)));
  table.append(...groupTable("domain"));
  view.append(make("div", { class: "controls" }, make("label", {}, "Count by ", choice)), table);
}
