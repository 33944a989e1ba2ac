// Search by name and characteristic words: a combobox, and the map shows only what fits.

const MOST_FOUND = 12;
const folded = concepts.name.map((name, c) => [name.toLowerCase(), `${name} ${concepts.words[c]}`.toLowerCase()]);
const field = byId("search"), found = byId("found");
let active = -1;

function fitting(query) {
  const words = query.toLowerCase().split(/[\s,]+/).filter(Boolean);
  if (!words.length) return null;
  const fits = bySize.filter((c) => words.every((word) => folded[c][1].includes(word)));
  const rank = (c) => (folded[c][0] === query.toLowerCase().trim() ? 0 : words.every((word) => folded[c][0].includes(word)) ? 1 : 2);
  return fits.sort((a, b) => rank(a) - rank(b)); // stable: the larger first
}

function showFound() {
  const fits = fitting(field.value);
  matches = fits && new Set(fits);
  active = -1;
  const isOpen = Boolean(fits && fits.length);
  found.hidden = !isOpen;
  field.setAttribute("aria-expanded", String(isOpen));
  field.removeAttribute("aria-activedescendant");
  found.replaceChildren(...(fits || []).slice(0, MOST_FOUND).map((c) => make("li", { role: "option", id: `option-${c}`, "aria-selected": "false", "data-found": c },
    swatch(styleOf(c)), make("bdi", {}, concepts.name[c]), make("small", {}, counted(concepts.chunks[c], "chunk")))));
  byId("found-text").textContent = fits ? `${whole(fits.length)} of ${whole(COUNT)} concepts fit; the map shows them` : "";
  drawMap();
}

function closeFound() {
  found.hidden = true;
  field.setAttribute("aria-expanded", "false");
}

function activate(place) {
  const options = [...found.children];
  if (!options.length) return;
  active = (place + options.length) % options.length;
  options.forEach((option, i) => option.setAttribute("aria-selected", String(i === active)));
  field.setAttribute("aria-activedescendant", options[active].id);
  options[active].scrollIntoView({ block: "nearest" });
}

function take(c) {
  closeFound();
  bringIn(c);
  select(c);
}

field.addEventListener("input", showFound);
field.addEventListener("focus", () => { if (field.value && found.hidden) showFound(); });
field.addEventListener("blur", closeFound);
field.addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown") activate(active + 1);
  else if (event.key === "ArrowUp") activate(active - 1);
  else if (event.key === "Enter" && found.children.length) take(Number(found.children[Math.max(0, active)].dataset.found));
  else if (event.key === "Escape") { field.value = ""; showFound(); }
  else return;
  event.preventDefault();
});
found.addEventListener("mousedown", (event) => {
  const option = event.target.closest("li");
  event.preventDefault(); // the field keeps the focus
  if (option) take(Number(option.dataset.found));
});
