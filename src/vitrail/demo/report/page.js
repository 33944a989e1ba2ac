"use strict";
// Text from the model or the corpus is only ever written as text nodes; colours are classes.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const NUMBER = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const signed = (value) => (value > 0 ? "+" : value < 0 ? "\u2212" : "") + NUMBER.format(Math.abs(value));
const percent = (value) => (value === null ? "not measured" : Math.round(value * 100) + "\u00a0%");
const isSpecial = (text) => /^<\|[^|]*\|>$|^\[[A-Z_]{3,}\]$/.test(text.trim());

function make(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null));
  return node;
}

// A signed bar on the scale low..high. Places are set through the style object: the policy forbids style attributes.
function bar(value, low, high, style) {
  const span = high - low || 1;
  const zero = ((0 - low) / span) * 100;
  const stop = ((value - low) / span) * 100;
  const fill = make("span", { class: "glass " + style });
  fill.style.left = Math.min(zero, stop) + "%";
  fill.style.width = Math.abs(stop - zero) + "%";
  const axis = make("span", { class: "zero" });
  axis.style.left = zero + "%";
  return make("span", { class: "bar", "aria-hidden": "true" }, axis, fill);
}

function shown(text) {
  if (isSpecial(text)) return "¶";
  return text.replace(/\n/g, "↵") || "·";
}

// Space before a word and line breaks stay outside it, so that lines begin flush and marks fit the letters.
function split(text) {
  const space = isSpecial(text) ? "" : /^ */.exec(text)[0];
  const after = text.includes("\n") ? "\n" : "";
  return space.length < text.length ? [space, text.slice(space.length), after] : ["", text, after];
}

function plain(text) {
  if (isSpecial(text)) return "end of the passage";
  return "“" + text.trim() + "”";
}

// ---- the prompt and the answer ----

const promptNodes = data.promptTokens.map((text) => {
  const [space, word, after] = split(text);
  const node = make("span", { class: isSpecial(text) ? "token special" : "token" }, isSpecial(text) ? "▸" : shown(word));
  byId("prompt").append(space, node, after);
  return node;
});

const choices = [];
const tokenNodes = [];
const chunks = data.chunks.length ? data.chunks : [{ chunk: 0, start: 0, stop: data.tokens.length }];
for (const chunk of chunks) {
  const whole = make("button", { type: "button", class: "whole", tabindex: "-1", "aria-pressed": "false" }, `passage ${chunk.chunk + 1}`);
  const line = make("p", { class: "chunk" }, whole);
  choices.push({ node: whole, kind: "chunks", at: chunk.chunk, chunk: chunk.chunk });
  for (let pos = chunk.start; pos < chunk.stop; pos++) {
    const token = data.tokens[pos];
    if (!token) continue;
    const special = isSpecial(token.text);
    const [space, word, after] = split(token.text);
    const node = make("button", { type: "button", class: special ? "token special" : "token", tabindex: "-1", "aria-pressed": "false" }, shown(word));
    if (special) node.setAttribute("aria-label", "end of the passage");
    tokenNodes[pos] = node;
    choices.push({ node, kind: "tokens", at: pos, chunk: chunk.chunk });
    line.append(space, node, after);
  }
  byId("answer").append(line);
}

let current = -1;
function choose(place, focus) {
  const choice = choices[place];
  if (!choice) return;
  if (current >= 0) {
    choices[current].node.setAttribute("aria-pressed", "false");
    choices[current].node.tabIndex = -1;
  }
  current = place;
  choice.node.setAttribute("aria-pressed", "true");
  choice.node.tabIndex = 0;
  if (focus) choice.node.focus();
  showChoice(choice);
}

choices.forEach((choice, place) => choice.node.addEventListener("click", () => choose(place, false)));
byId("answer").addEventListener("keydown", (event) => {
  const moves = { ArrowRight: current + 1, ArrowLeft: current - 1, Home: 0, End: choices.length - 1 };
  if (event.key in moves) {
    event.preventDefault();
    choose(Math.min(Math.max(moves[event.key], 0), choices.length - 1), true);
  }
});

function showChoice(choice) {
  const isToken = choice.kind === "tokens";
  const token = isToken ? data.tokens[choice.at] : null;
  const place = isToken ? plain(token.text) : `Passage ${choice.at + 1}, all its words together`;
  const extra = isToken ? ` · written at step ${token.step + 1}` + (token.prob === null ? "" : `, the model gave it ${percent(token.prob)}`) : "";
  byId("chosen").replaceChildren(make("bdi", {}, place), make("small", {}, extra));
  showInputs(data.inputs[choice.kind][choice.at]);
  showConcepts(data.concepts[choice.kind][choice.at], isToken);
  showSources(data.sources[choice.chunk]);
}

// ---- inputs ----

function heat(node, value, limit) {
  const level = limit > 0 && value ? Math.min(Math.ceil((Math.abs(value) / limit) * 5), 5) : 0;
  node.className = node.className.replace(/ ?(heat|cold)\d/g, "") + (level ? (value > 0 ? " heat" : " cold") + level : "");
  if (level) node.title = "attribution " + signed(value);
  else node.removeAttribute("title");
}

function showInputs(item) {
  const scores = new Map();
  for (const [where, pos, , score] of item ? item.ranked : []) scores.set(where + pos, score);
  (item ? item.scores : []).forEach((score, pos) => scores.set("prompt" + pos, score));
  const limit = Math.max(...[...scores.values()].map((value) => Math.abs(value || 0)), 0);
  promptNodes.forEach((node, pos) => heat(node, scores.get("prompt" + pos), limit));
  tokenNodes.forEach((node, pos) => heat(node, scores.get("generated" + pos), limit));
  if (!item) return byId("inputs").replaceChildren(make("p", { class: "absent" }, "not measured"));
  const low = Math.min(0, ...item.ranked.map((entry) => entry[3] || 0));
  const high = Math.max(0, ...item.ranked.map((entry) => entry[3] || 0));
  const rows = item.ranked.map(([where, , text, score]) =>
    make("li", { class: "row" },
      make("span", { class: "name" }, make("bdi", {}, isSpecial(text) ? "start" : text.trim() || "↵"), make("small", {}, where === "prompt" ? "prompt" : "its own words")),
      bar(score || 0, low, high, "input"), make("span", { class: "value" }, signed(score || 0))));
  const shares = Object.entries(item.shares).filter(([, value]) => value !== null);
  const names = { prompt: "prompt", generated: "its own words", injection: "steering" };
  byId("inputs").replaceChildren(
    make("ul", { class: "rows" }, ...rows),
    shares.length ? make("p", { class: "shares" }, shares.map(([name, value]) => `${names[name]} ${percent(value)}`).join(" · ")) : null || "",
    make("p", { class: "note" }, "Integrated Gradients from a blank pane, on the very snapshot in which the word was chosen. What the method leaves unexplained (completeness gap): ",
      make("b", {}, item.gap === null ? "not measured" : (item.gap * 100).toFixed(1) + "\u00a0%"), "."));
}

// ---- concepts ----

const COUNTED = { raw: "whole score", centred: "against the average word" };
let mode = "centred";
let counting = null; // the place whose concepts are shown

function conceptRow(key, value, other, weight, low, high) {
  const [name, description, words, hue] = data.library[key] || [key, "", [], 0];
  const head = key.split("-")[0];
  const style = `g${hue} ${head}`;
  const summary = make("summary", { class: "row" },
    make("span", { class: "name coded" }, make("span", { class: "swatch " + style, "aria-hidden": "true" }), make("bdi", {}, name), make("small", {}, head)),
    bar(value, low, high, style), make("span", { class: "value" }, signed(value)));
  const facts = [weight === null ? null : `active at ${percent(weight)}`, other === null ? null : `${COUNTED[mode === "raw" ? "centred" : "raw"]} ${signed(other)}`];
  const link = document.getElementById(key) ? make("a", { href: "#" + key }, "its card") : "";
  return make("li", {}, make("details", {}, summary,
    make("div", { class: "inside" }, description ? make("p", {}, make("bdi", {}, description)) : "",
      words.length ? make("p", {}, make("bdi", {}, words.join(", "))) : "",
      make("p", {}, facts.filter(Boolean).join(" · "), " ", link))));
}

function plainRow(name, small, value, low, high, style) {
  return make("li", { class: "row" },
    make("span", { class: "name coded" }, make("span", { class: "swatch " + style, "aria-hidden": "true" }), make("bdi", {}, name), make("small", {}, small)),
    bar(value, low, high, style), make("span", { class: "value" }, signed(value)));
}

function showConcepts(item, isToken) {
  counting = [item, isToken];
  if (!item) return byId("concepts").replaceChildren(make("p", { class: "absent" }, "not measured"));
  const isRaw = mode === "raw" || !item.centred;
  const sums = isRaw ? item.raw : item.centred;
  if (!sums) return byId("concepts").replaceChildren(make("p", { class: "absent" }, "not measured"));
  const ranked = item.ranked.map(([key, raw, centred, weight]) => (isRaw ? [key, raw || 0, centred, weight] : [key, centred || 0, raw, weight]))
    .sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  const others = [["other known", sums.otherKnown, "rest known"], ["other discovered", sums.otherDiscovered, "rest discovered"]]
    .filter(([, value]) => Math.abs(value) >= 0.005);
  const values = [...ranked.map((entry) => entry[1]), ...others.map((entry) => entry[1]), sums.residual];
  const low = Math.min(0, ...values), high = Math.max(0, ...values);
  const total = sums.known + sums.discovered + sums.residual;
  const label = isRaw ? (isToken ? "score (logit)" : "summed scores") : "above the average word";
  const term = (name, value, style) => make("span", { class: style }, make("b", {}, signed(value)), make("small", {}, name));
  byId("concepts").replaceChildren(
    make("p", { class: "sum" }, term("known", sums.known, "term"), " ", term("discovered", sums.discovered, "term"), " ",
      term("residual", sums.residual, "term"), make("span", { class: "equals" }, " = "), term(label, total, "term total")),
    make("ul", { class: "rows" },
      ...ranked.map((entry) => conceptRow(...entry, low, high)),
      ...others.map(([name, value, style]) => plainRow(name, "summed", value, low, high, style)),
      plainRow("residual", "what no concept holds", sums.residual, low, high, "residual")));
}

byId("modes").addEventListener("change", (event) => { mode = event.target.value; showConcepts(...counting); });

// ---- training text ----

function marked(text, words) {
  if (!words) return [text];
  const flat = text.toLowerCase(), wanted = words.trim().toLowerCase();
  const place = wanted ? flat.indexOf(wanted) : -1;
  if (place < 0 || flat.length !== text.length) return [text];
  return [text.slice(0, place), make("mark", {}, text.slice(place, place + wanted.length)), text.slice(place + wanted.length)];
}

function showSources(hits) {
  if (!hits || !hits.length) return byId("sources").replaceChildren(make("p", { class: "absent" }, "not measured"));
  byId("sources").replaceChildren(...hits.map((hit) => {
    const same = hit.overlapTokens ? `${hit.overlapTokens} tokens in a row agree` : "no words in a row agree";
    return make("article", { class: "passage" },
      make("h4", {}, make("bdi", {}, hit.title || hit.document_id)),
      make("p", { class: "similar" }, "similarity ", make("b", {}, hit.similarity === null ? "not measured" : NUMBER.format(hit.similarity)), " · ", same),
      make("blockquote", { dir: "auto", tabindex: "0", role: "region", "aria-label": "passage" }, ...marked(hit.text, hit.overlap)),
      make("p", { class: "origin" }, make("bdi", {}, [hit.source, hit.license].filter(Boolean).join(" · "))));
  }));
}

// ---- the order of writing ----

const slider = byId("step");
const lastStep = Math.max(0, ...data.tokens.map((token) => token.step + 1));
slider.max = String(lastStep);
slider.value = slider.max;

function showStep() {
  const step = Number(slider.value);
  const fresh = [];
  data.tokens.forEach((token, pos) => {
    const node = tokenNodes[pos];
    if (!node) return;
    node.classList.toggle("blank", token.step >= step);
    node.classList.toggle("fresh", step < lastStep && token.step === step - 1);
    if (token.step === step - 1) fresh.push(isSpecial(token.text) ? "end of the passage" : token.text.trim());
  });
  const wrote = step === 0 ? "all blank" : step === lastStep ? "finished" : "wrote " + fresh.join(", ");
  byId("step-text").replaceChildren(`${step} of ${lastStep}: `, make("bdi", {}, wrote));
  slider.setAttribute("aria-valuetext", `step ${step} of ${lastStep}, ${wrote}`);
}

let timer = 0;
function stopReplay() {
  clearInterval(timer);
  timer = 0;
  byId("play").lastChild.textContent = " Replay";
}

byId("play").addEventListener("click", () => {
  if (timer) return stopReplay();
  slider.value = "0";
  showStep();
  byId("play").lastChild.textContent = " Stop";
  timer = setInterval(() => {
    slider.value = String(Number(slider.value) + 1);
    showStep();
    if (Number(slider.value) >= lastStep) stopReplay();
  }, Math.max(60, Math.min(220, 9000 / (lastStep || 1))));
});
slider.addEventListener("input", () => { if (timer) stopReplay(); showStep(); });

// ---- the library ----

const cards = [...document.querySelectorAll("#cards .card")];
const FIRST = 24;
let isAll = cards.length <= FIRST;
const texts = cards.map((card) => card.textContent.toLowerCase());

function filterCards() {
  const words = byId("find").value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  cards.forEach((card, place) => {
    const fits = words.every((word) => texts[place].includes(word));
    if (fits) count++;
    card.hidden = !fits || (!words.length && !isAll && place >= FIRST);
  });
  byId("found").textContent = words.length ? `${count} of ${cards.length} concepts` : `${cards.length} concepts`;
  byId("all-cards").hidden = isAll || words.length > 0;
}

function revealCard() {
  const card = cards.find((node) => "#" + node.id === location.hash);
  if (!card) return;
  if (card.hidden) { byId("find").value = ""; isAll = true; filterCards(); }
  card.scrollIntoView({ block: "center" });
}

byId("find").addEventListener("input", filterCards);
byId("all-cards").addEventListener("click", () => { isAll = true; filterCards(); });
addEventListener("hashchange", revealCard);
addEventListener("beforeprint", () => { isAll = true; filterCards(); });

filterCards();
showStep();
// Begin with the word that shows most: the one whose largest concept pushes hardest.
const best = choices.reduce((found, choice, place) => {
  const item = choice.kind === "tokens" && !isSpecial(data.tokens[choice.at].text) ? data.concepts.tokens[choice.at] : null;
  const size = item && item.ranked.length ? item.ranked[0][item.centred ? 2 : 1] || 0 : -1;
  return size > found[1] ? [place, size] : found;
}, [0, -1])[0];
choose(best, false);
revealCard();
