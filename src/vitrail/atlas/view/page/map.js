// The concept map on a canvas: thousands of marks stay fast, names appear where there is room.

let near = [];
let chosenGroup = null; // legend filter
let matches = null; // set of concepts that fit the search
const bySize = Array.from({ length: COUNT }, (_, c) => c).sort((a, b) => concepts.chunks[b] - concepts.chunks[a] || a - b);
const canvas = byId("map");
const pen = canvas.getContext("2d");

const isShown = (c) => (chosenGroup === null || grouping.group[c] === chosenGroup) && (!matches || matches.has(c));

function colours() {
  const probe = getComputedStyle(document.documentElement);
  const resolve = (name) => { const node = make("i", {}); node.style.color = probe.getPropertyValue(name); document.body.append(node); const value = getComputedStyle(node).color; node.remove(); return value; };
  return {
    hue: grouping.style.map((style) => resolve("--" + style)),
    ink: resolve("--ink"), paper: resolve("--raised"), lead: resolve("--lead"), soft: resolve("--soft"),
  };
}

const SHAPES = {
  content: (x, y, r) => pen.arc(x, y, r, 0, 2 * Math.PI),
  tone: (x, y, r) => polygon([[x, y - 1.25 * r], [x + 1.15 * r, y + 0.85 * r], [x - 1.15 * r, y + 0.85 * r]]),
  demographic: (x, y, r) => pen.rect(x - 0.9 * r, y - 0.9 * r, 1.8 * r, 1.8 * r),
  alignment: (x, y, r) => polygon([[x, y - 1.3 * r], [x + 1.3 * r, y], [x, y + 1.3 * r], [x - 1.3 * r, y]]),
};

function polygon(corners) {
  corners.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  pen.closePath();
}

function drawMark(c, tint) {
  pen.beginPath();
  (SHAPES[concepts.kind[c]] || SHAPES.content)(across(c), down(c), radius(c));
  pen.fillStyle = tint;
  pen.fill();
  pen.stroke();
}

function paint() {
  waiting = 0;
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  sheet.width = canvas.clientWidth || 1;
  sheet.height = canvas.clientHeight || 1;
  canvas.width = Math.round(sheet.width * ratio);
  canvas.height = Math.round(sheet.height * ratio);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  const tint = colours();
  pen.lineWidth = COUNT > 2000 ? 0.6 : 1.2;
  pen.strokeStyle = tint.lead;
  for (const isOn of [false, true]) {
    pen.globalAlpha = isOn ? 0.92 : 0.1;
    for (const c of bySize) if (isShown(c) === isOn && isInside(c)) drawMark(c, tint.hue[grouping.group[c]]);
  }
  pen.globalAlpha = 1;
  if (selected !== null) drawChosen(tint);
  drawNames(tint);
}

const isInside = (c) => across(c) > -20 && across(c) < sheet.width + 20 && down(c) > -20 && down(c) < sheet.height + 20;

function drawChosen(tint) {
  pen.strokeStyle = tint.ink;
  pen.lineWidth = 1;
  pen.setLineDash([3, 3]);
  for (const other of near) {
    pen.beginPath();
    pen.moveTo(across(selected), down(selected));
    pen.lineTo(across(other), down(other));
    pen.stroke();
  }
  pen.setLineDash([]);
  drawMark(selected, tint.hue[grouping.group[selected]]);
  pen.lineWidth = 3;
  pen.beginPath();
  pen.arc(across(selected), down(selected), radius(selected) + 4, 0, 2 * Math.PI);
  pen.stroke();
}

// Names of the largest concepts, and of the chosen one and its neighbours, as far as they do not cover each other.
function drawNames(tint) {
  const taken = [];
  const room = Math.round(sheet.width * sheet.height / 9000);
  pen.font = `600 12px ${getComputedStyle(document.body).fontFamily}`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.lineJoin = "round";
  pen.lineWidth = 4;
  const first = selected === null ? [] : [selected, ...near];
  for (const c of [...first, ...bySize]) {
    if (taken.length >= room) break;
    if (!isInside(c) || (!isShown(c) && c !== selected)) continue;
    const name = concepts.name[c].length > 28 ? concepts.name[c].slice(0, 27) + "…" : concepts.name[c];
    const half = pen.measureText(name).width / 2 + 4;
    const y = down(c) + radius(c) + 9;
    const x = Math.max(half, Math.min(sheet.width - half, across(c)));
    const box = [x - half, y - 8, x + half, y + 8];
    if (taken.some((other) => box[0] < other[2] && box[2] > other[0] && box[1] < other[3] && box[3] > other[1])) continue;
    taken.push(box);
    pen.strokeStyle = tint.paper;
    pen.strokeText(name, x, y);
    pen.fillStyle = tint.ink;
    pen.fillText(name, x, y);
  }
}

let waiting = 0;
function drawMap() {
  if (!waiting && !byId("view-map").hidden) waiting = requestAnimationFrame(paint);
}

function showLegend() {
  byId("legend").replaceChildren(...grouping.names.map((name, i) => make("li", {}, make("button", {
    "aria-pressed": String(chosenGroup === i), title: "show only these",
    onclick: () => { chosenGroup = chosenGroup === i ? null : i; showLegend(); drawMap(); },
  }, swatch(grouping.style[i]), make("bdi", {}, name || "not named"), make("small", {}, counted(grouping.counts[i], "concept"))))));
}

// ---- pointer ----

let held = null;
const pointOf = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };

canvas.addEventListener("pointerdown", (event) => {
  const [x, y] = pointOf(event);
  held = { x, y, viewX: view.x, viewY: view.y, hasMoved: false };
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", (event) => {
  const [x, y] = pointOf(event);
  if (!held) return showTip(conceptAt(x, y), x, y);
  held.hasMoved ||= Math.hypot(x - held.x, y - held.y) > 4;
  if (!held.hasMoved) return;
  canvas.classList.add("held");
  view.x = held.viewX - (x - held.x) / (unit() * spread());
  view.y = held.viewY + (y - held.y) / unit();
  drawMap();
});
canvas.addEventListener("pointerup", (event) => {
  const [x, y] = pointOf(event);
  const c = held && !held.hasMoved ? conceptAt(x, y) : null;
  held = null;
  canvas.classList.remove("held");
  if (c !== null) select(c);
});
canvas.addEventListener("pointercancel", () => { held = null; canvas.classList.remove("held"); });
canvas.addEventListener("pointerleave", () => showTip(null));
canvas.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && document.activeElement !== canvas) return; // the page scrolls, until the map is in use
  event.preventDefault();
  zoomAt(Math.exp(-event.deltaY / 400), ...pointOf(event));
}, { passive: false });

function showTip(c, x, y) {
  const tip = byId("tip");
  tip.hidden = c === null;
  canvas.style.cursor = c === null ? "" : "pointer";
  if (c === null) return;
  tip.textContent = `${concepts.name[c]}: ${counted(concepts.chunks[c], "chunk")}`;
  tip.style.left = `${Math.min(x + 12, Math.max(0, sheet.width - tip.offsetWidth - 8))}px`;
  tip.style.top = `${Math.min(y + 14, Math.max(0, sheet.height - tip.offsetHeight - 8))}px`;
}

// ---- keys and buttons ----

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
canvas.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  if (ARROWS[event.key] && COUNT) {
    const c = selected === null ? bySize.find(isShown) : neighbourTo(selected, ...ARROWS[event.key]);
    if (c === undefined) return;
    bringIn(c);
    select(c);
  } else if (event.key === "+" || event.key === "=") zoomAt(1.4, sheet.width / 2, sheet.height / 2);
  else if (event.key === "-") zoomAt(1 / 1.4, sheet.width / 2, sheet.height / 2);
  else if (event.key === "Enter") goToCard();
  else return;
  event.preventDefault();
});
byId("zoom-in").addEventListener("click", () => zoomAt(1.5, sheet.width / 2, sheet.height / 2));
byId("zoom-out").addEventListener("click", () => zoomAt(1 / 1.5, sheet.width / 2, sheet.height / 2));
byId("zoom-all").addEventListener("click", () => { Object.assign(view, { scale: 1, x: 0.5, y: 0.5 }); drawMap(); });
byId("colour").append(...Object.entries(groupings).map(([key, { title }]) => make("option", { value: key }, title)));
byId("colour").addEventListener("change", (event) => {
  groupBy(event.target.value);
  chosenGroup = null;
  for (const name of ["tree", "documents", "sources"]) byId("view-" + name).replaceChildren(); // filled anew when opened
  showLegend();
  drawMap();
  if (selected !== null) select(selected);
});
new ResizeObserver(drawMap).observe(canvas);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawMap);
