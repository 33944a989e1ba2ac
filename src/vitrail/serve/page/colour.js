// One stable colour per concept, everywhere: a function of head and id over the sixteen glasses of base.css.
// Colour is never the only carrier: names stand beside it, discovered concepts are hatched, the residual is clear glass.

import { el } from "./dom.js";

const NUM_GLASSES = 16;
const GOLDEN = 0.6180339887498949; // neighbours in id land far apart on the wheel

/** @typedef {{head: "known"|"discovered", concept_id: number, name: string}} ConceptRef */

/** @param {{head: string, concept_id: number}} concept @returns {string} "known-12". */
export const keyOf = (concept) => `${concept.head}-${concept.concept_id}`;

/** @param {{head: string, concept_id: number}} concept @returns {number} its glass, 0..15. */
export function glassOf(concept) {
  const turn = (concept.concept_id + (concept.head === "known" ? 0 : 7.5)) * GOLDEN;
  return Math.floor((turn - Math.floor(turn)) * NUM_GLASSES);
}

/** @param {{head: string, concept_id: number}} concept @returns {string} classes that give colour and hatching. */
export const styleOf = (concept) => `g${glassOf(concept)} ${concept.head}`;

/** A small pane of glass. @param {string} style @returns {HTMLElement} */
export const swatch = (style) => el("span", { class: `swatch ${style}`, "aria-hidden": "true" });

/** Where a concept's page is. @param {{head: string, concept_id: number}} concept @returns {string} */
export const linkTo = (concept) => `#concept/${concept.head}/${concept.concept_id}`;
