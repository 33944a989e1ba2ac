// The window: a chart in the shape of stained glass, drawn from the explanation.
// Rose = the whole answer (angles are shares). Lancets = tokens of the chosen passage (areas are shares).
// Dark before there is an answer, moonlit while tokens are written, coloured when the explanation has come.

import { isCalm, percent, signed, splitToken, svg, tokenName } from "./dom.js";
import { arranged, headsOf, piecesOf, summed } from "./window-panes.js";
import { HEIGHT, ROSE, WIDTH, cuts, jitter, lancet, outline, petal, places, sector, tiltAt } from "./window-shapes.js";

const PER_PAGE = 16;
const DELAY_MS = 70;
const DARK_PETALS = 14;

/** The window of the current answer. */
export class WindowView {
  /** @param {HTMLElement} box holds the drawing @param {(pos: number) => void} onChoose a lancet was clicked */
  constructor(box, onChoose) {
    Object.assign(this, { box, onChoose, shown: "", lancets: new Map() });
    this.dark();
  }

  /** No answer yet: the same window, unlit; its panes mean nothing. */
  dark() {
    const frames = places(7);
    const lancets = frames.map((frame, at) =>
      lancetNode(
        frame,
        [0.34, 0.2, 0.16, 0.18, 0.12].map((share, place) => ({
          key: `${at}${place}`,
          share,
          style: "unlit",
          name: "",
          value: 0,
        })),
        at,
      ),
    );
    this.#draw("dark", [...darkRose(), ...lancets], [], "A window of dark glass: there is no answer yet.");
  }

  /**
   * While it is written: one lancet a token of the block, pale once it is there.
   * @param {(string|null)[]} texts of the open panes, null where one is masked
   */
  writing(texts) {
    const open = texts.indexOf(null);
    const front = open < 0 ? Math.max(texts.length - 1, 0) : open;
    const first = Math.floor(front / PER_PAGE) * PER_PAGE;
    const count = Math.min(texts.length - first, PER_PAGE);
    const name = `writing ${first} ${count}`;
    if (this.shown !== name) {
      const frames = places(count);
      const lancets = frames.map((frame, at) =>
        svg(
          "g",
          { class: "moon" },
          svg("path", { class: "pane unlit", d: lancet(frame) }),
          svg("path", { class: "pane moonlight", d: lancet(frame) }),
        ),
      );
      const words = frames.map((frame) => caption(frame, "", count));
      this.#draw(name, [...darkRose(), ...lancets], words, "The answer is being written.");
      Object.assign(this, { moons: lancets, words });
    }
    for (let at = 0; at < count; at++) {
      const text = texts[first + at] ?? null;
      this.moons[at].classList.toggle("there", text !== null);
      setCaption(this.words[at], text, count);
    }
  }

  /**
   * The answer explained.
   * @param {any} doc
   * @param {{start: number, stop: number, chunk: number}} chunk
   * @param {number|null} pos the chosen token
   * @param {boolean} isNew whether it lights up
   * @returns {{first: number, last: number, petals: import("./window-panes.js").Pane[]}} the tokens shown
   */
  explained(doc, chunk, pos, isNew) {
    const place = pos === null ? 0 : Math.min(pos, chunk.stop - 1) - chunk.start;
    const page = Math.max(0, Math.floor(place / PER_PAGE));
    const first = chunk.start + page * PER_PAGE;
    const last = Math.min(first + PER_PAGE, chunk.stop);
    const items = doc.concepts.tokens;
    const petals = arranged(summed(items), 0.012);
    const name = `explained ${chunk.chunk} ${page}`;
    if (isNew || this.shown !== name) this.#light(name, doc, items, petals, first, last, isNew);
    for (const [at, group] of this.lancets) group.classList.toggle("picked", at === pos);
    return { first, last, petals };
  }

  /**
   * The lancets as the answer stood at a step of the replay: unlit where a token was still masked.
   * @param {(string|null)[]} texts
   */
  replayed(texts) {
    for (const [at, group] of this.lancets) group.classList.toggle("masked-then", texts[at] === null);
  }

  #light(name, doc, items, petals, first, last, isNew) {
    const frames = places(last - first);
    this.lancets = new Map();
    const lancets = frames.map((frame, at) => {
      const item = items.find((one) => one.pos === first + at);
      const group = lancetNode(frame, item ? arranged(piecesOf(item), frames.length > 8 ? 0.05 : 0.03) : [], at);
      group.append(svg("path", { class: "picked-lead", d: lancet(frame) }));
      group.addEventListener("click", () => this.onChoose(first + at));
      this.lancets.set(first + at, group);
      return group;
    });
    const words = frames.map((frame, at) =>
      setCaption(caption(frame, "", frames.length), doc.tokens[first + at]?.text ?? null, frames.length),
    );
    words.forEach((word, at) => this.lancets.set(first + at, wrap(lancets[at], word)));
    const largest = petals
      .filter((pane) => pane.concept)
      .slice(0, 5)
      .map((pane) => `${pane.name} ${percent(pane.share)}`);
    const drawn = [...roseNodes(petals), ...rings(), ...lancets];
    this.#draw(
      name,
      drawn,
      words,
      `The answer as stained glass. Largest pieces of the whole answer: ${largest.join(", ")}. The panels hold the same numbers as text.`,
    );
    this.root.classList.add("explained");
    if (!isNew || isCalm()) return this.root.classList.add("lit");
    const groups = this.root.querySelectorAll(".glass-piece");
    groups.forEach(
      (piece, at) => (piece.style.transitionDelay = `${(Number(piece.dataset.order ?? at) || 0) * DELAY_MS}ms`),
    );
    requestAnimationFrame(() => requestAnimationFrame(() => this.root.classList.add("lit")));
  }

  #draw(name, glass, words, label) {
    this.shown = name;
    this.root = svg(
      "svg",
      { class: "window", viewBox: `26 18 ${WIDTH - 52} ${HEIGHT - 16}`, role: "img", "aria-label": label },
      definitions(),
      svg("path", { class: "stone", d: outline(0) }),
      svg("path", { class: "reveal", d: outline(14) }),
      svg("use", { href: "#window-glass", class: "glow", filter: "url(#window-blur)" }),
      svg("g", { id: "window-glass" }, ...glass),
      svg(
        "g",
        { "clip-path": "url(#window-opening)", class: "light" },
        svg("rect", { width: WIDTH, height: HEIGHT, fill: "url(#window-sun)" }),
        svg("rect", { class: "grain", width: WIDTH, height: HEIGHT, filter: "url(#window-grain)" }),
      ),
      svg("g", { class: "captions", "aria-hidden": "true" }, ...words),
    );
    this.box.replaceChildren(this.root);
  }
}

// A lancet and its caption are chosen together.
function wrap(group, word) {
  return { classList: { toggle: (name, is) => [group, word].forEach((part) => part.classList.toggle(name, is)) } };
}

function lancetNode(frame, panes, place) {
  const { x, top, width, height } = frame;
  const edges = cuts(
    panes.map((pane) => pane.share),
    width,
    height,
  );
  const id = `window-lancet-${place}`;
  let [above, tiltAbove] = [0, 0];
  const pieces = panes.map((pane, at) => {
    const below = edges[at];
    const next = (edges[at + 1] ?? height) - below;
    const tilt = at === panes.length - 1 ? 0 : jitter(pane.key + place) * tiltAt(below, width, below - above, next);
    const shape = `M${x} ${top + above - tiltAbove}L${x + width} ${top + above + tiltAbove}L${x + width} ${top + below + tilt}L${x} ${top + below - tilt}Z`;
    const made = node(pane.style, shape, pane, 4 + place);
    if (below - above > 15 && pane.value < 0) made.append(minus(x + width / 2, top + (above + below) / 2));
    if (below - above > 40 && !/residual|unlit/.test(pane.style))
      made.append(...facet(pane, place, frame, above, below));
    [above, tiltAbove] = [below, tilt];
    return made;
  });
  return svg(
    "g",
    { class: "lancet" },
    svg("clipPath", { id }, svg("path", { d: lancet(frame) })),
    svg("g", { "clip-path": `url(#${id})` }, ...pieces),
    svg("path", { class: "lead", d: lancet(frame) }),
  );
}

// A second cut of one pane, for light only: it says nothing, so it is thin.
function facet(pane, place, { x, top, width }, above, below) {
  const middle = top + (above + below) / 2;
  const tilt = jitter(place + pane.key) * (below - above) * 0.3;
  return [
    svg("path", { class: "facet", d: `M${x} ${middle + tilt}L${x + width} ${middle - tilt}V${top + below}H${x}Z` }),
  ];
}

function roseNodes(petals) {
  const ring = (panes, draw) => {
    let angle = -Math.PI / 2;
    return panes.map((pane, at) => {
      const stop = angle + 2 * Math.PI * pane.share;
      const made = node(pane.style, draw(angle, stop), pane, at * 0.5);
      if (pane.value < 0 && pane.share > 0.02)
        made.append(minus(ROSE.x + 120 * Math.cos((angle + stop) / 2), ROSE.y + 120 * Math.sin((angle + stop) / 2)));
      angle = stop;
      return made;
    });
  };
  return [
    ...ring(petals, (start, stop) => petal(start, stop, 60, ROSE.r)),
    ...ring(headsOf(petals), (start, stop) => sector(start, stop, 27, 52)),
  ];
}

function darkRose() {
  const turn = (2 * Math.PI) / DARK_PETALS;
  const petals = Array.from({ length: DARK_PETALS }, (_, at) =>
    node("unlit", petal(at * turn, (at + 1) * turn, 60, ROSE.r)),
  );
  return [...petals, ...rings()];
}

const rings = () =>
  [ROSE.r + 9, 56, 24]
    .map((r) => svg("circle", { class: "tracery", cx: ROSE.x, cy: ROSE.y, r }))
    .concat(svg("circle", { class: "boss", cx: ROSE.x, cy: ROSE.y, r: 16 }));

function node(style, shape, pane = null, order = 0) {
  const against = pane && pane.value < 0 ? " against" : "";
  return svg(
    "g",
    { class: "glass-piece", "data-order": String(order) },
    pane?.name ? svg("title", {}, `${pane.name}: ${signed(pane.value)} (${percent(pane.share)} of the glass)`) : null,
    svg("path", { class: `pane ${style}${against}`, d: shape }),
    / ?discovered/.test(style) ? svg("path", { class: "pane texture", d: shape }) : null,
  );
}

const minus = (x, y) => svg("path", { class: "minus", d: `M${x - 6} ${y}h12` });

function caption({ x, top, width, height }, text, count) {
  return svg("text", { x: x + width / 2, y: top + height + 20, "font-size": count > 8 ? 16.5 : 18 }, text);
}

function setCaption(label, text, count) {
  const [, letters] = text === null ? ["", ""] : splitToken(text);
  const longest = count > 8 ? 7 : 9;
  label.textContent = letters.length > longest ? `${letters.slice(0, longest - 1)}…` : letters;
  if (text !== null && letters.length > longest) label.append(svg("title", {}, tokenName(text)));
  return label;
}

function definitions() {
  const stop = (offset, colour, opacity) => svg("stop", { offset, "stop-color": colour, "stop-opacity": opacity });
  return svg(
    "defs",
    {},
    svg(
      "pattern",
      { id: "window-lattice", width: 18, height: 26, patternUnits: "userSpaceOnUse" },
      svg("rect", { class: "clear", width: 18, height: 26 }),
      svg("path", { class: "came", d: "M0 13 9 0l9 13-9 13z" }),
    ),
    svg(
      "pattern",
      { id: "window-hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(38)" },
      svg("path", { class: "hatching", d: "M0 0v7" }),
    ),
    svg(
      "radialGradient",
      { id: "window-sun", cx: 0.5, cy: 0.4, r: 0.75 },
      stop(0, "#fff", 0.42),
      stop(0.55, "#fff", 0.05),
      stop(1, "#000", 0.38),
    ),
    svg(
      "filter",
      { id: "window-blur", x: "-20%", y: "-20%", width: "140%", height: "140%" },
      svg("feGaussianBlur", { stdDeviation: 22 }),
    ),
    svg(
      "filter",
      { id: "window-grain", x: 0, y: 0, width: "100%", height: "100%" },
      svg("feTurbulence", { type: "fractalNoise", baseFrequency: ".035 .09", numOctaves: 2, seed: 4 }),
      svg("feColorMatrix", { values: "0 0 0 0 1 0 0 0 0 1 0 0 0 0 1 1.4 0 0 0 -.55" }),
    ),
    svg("clipPath", { id: "window-opening" }, svg("path", { d: outline(14) })),
  );
}
