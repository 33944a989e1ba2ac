"use strict";
// The summary, and building blocks. Text of the corpus only ever becomes text nodes.

const data = JSON.parse(document.getElementById("data").textContent);
const concepts = data.concepts;
const COUNT = concepts.name.length;
const WHOLE = new Intl.NumberFormat("en");

const byId = (id) => document.getElementById(id);
const whole = (value) => WHOLE.format(value);
const counted = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;

// An element: keys that begin with "on" are listeners, true is an empty attribute, false and null are none.
function make(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function percent(share) {
  const value = share * 100;
  if (value > 0 && value < 0.01) return "< 0.01\u00a0%";
  return (value === 0 ? "0" : value < 1 ? value.toFixed(2) : value < 10 ? value.toFixed(1) : value.toFixed(0)) + "\u00a0%";
}

function bar(share, style) {
  const fill = make("i", {});
  fill.style.width = `${Math.min(100, 100 * share)}%`;
  return make("span", { class: "bar " + (style || ""), "aria-hidden": "true" }, fill);
}

// Text with some stretches wrapped; `spans` are [start, stop, wrap] with character (not UTF-16) offsets, in order.
function wrapped(text, spans) {
  const characters = [...text];
  const nodes = [];
  let pos = 0;
  for (const [start, stop, wrap] of [...spans].sort((a, b) => a[0] - b[0] || b[1] - a[1])) {
    if (start < pos || stop <= start) continue; // inside the one before
    nodes.push(characters.slice(pos, start).join(""), wrap(characters.slice(start, stop).join("")));
    pos = stop;
  }
  return [...nodes, characters.slice(pos).join("")];
}
