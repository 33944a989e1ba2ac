// Geometry of the window, pure: arches, lancets cut to exact areas, petals of exact angle. Units are those of the viewBox.

export const WIDTH = 640;
export const HEIGHT = 812;
export const ROSE = { x: 320, y: 212, r: 150 };
const [LEFT, RIGHT, SPRING, SILL, RADIUS] = [40, 600, 410, 806, 403];
const GAP = 10;
const WIDEST = 92;
const SAMPLES = 400;
const n = (value) => value.toFixed(1);

/** The pointed arch of the stone. @param {number} inset @returns {string} a path */
export function outline(inset) {
  const [left, right, radius, base] = [LEFT + inset, RIGHT - inset, RADIUS - inset, SILL - inset * 0.7];
  const apex = SPRING - Math.sqrt(radius ** 2 - (RADIUS - (RIGHT - LEFT) / 2) ** 2);
  return `M${left} ${base}V${SPRING}A${radius} ${radius} 0 0 1 ${WIDTH / 2} ${n(apex)}A${radius} ${radius} 0 0 1 ${right} ${SPRING}V${base}Z`;
}

/**
 * Where each lancet stands: one tier of up to eight, or two.
 * @param {number} count at most 16
 * @returns {{x: number, top: number, width: number, height: number}[]}
 */
export function places(count) {
  const perTier = count > 8 ? Math.ceil(count / 2) : Math.max(count, 1);
  const height = count > 8 ? 162 : 362;
  const [start, stop] = [LEFT + 26, RIGHT - 26];
  const width = Math.min((stop - start - GAP * (perTier - 1)) / perTier, WIDEST);
  const left = start + (stop - start - width * perTier - GAP * (perTier - 1)) / 2;
  return Array.from({ length: count }, (_, at) => ({
    x: left + (at % perTier) * (width + GAP),
    top: 390 + Math.floor(at / perTier) * (height + 34),
    width,
    height,
  }));
}

/** A lancet: a rectangle under an equilateral arch. @returns {string} a path */
export function lancet({ x, top, width, height }) {
  const shoulder = top + rise(width);
  return `M${n(x)} ${n(top + height)}V${n(shoulder)}A${n(width)} ${n(width)} 0 0 1 ${n(x + width / 2)} ${n(top)}A${n(width)} ${n(width)} 0 0 1 ${n(x + width)} ${n(shoulder)}V${n(top + height)}Z`;
}

const rise = (width) => (width * Math.sqrt(3)) / 2;

function breadth(y, width) {
  const below = rise(width) - y;
  return below <= 0 ? width : 2 * (Math.sqrt(Math.max(width ** 2 - below ** 2, 0)) - width / 2);
}

/**
 * Heights at which a lancet is cut so that the *areas* of the panes are the shares.
 * @param {number[]} shares they sum to 1
 * @param {number} width
 * @param {number} height
 * @returns {number[]} the lower edge of each pane, from the tip
 */
export function cuts(shares, width, height) {
  const areas = [0];
  for (let at = 0; at < SAMPLES; at++)
    areas.push(areas[at] + Math.max(breadth(((at + 0.5) / SAMPLES) * height, width), 0));
  const whole = areas[SAMPLES];
  let sum = 0;
  return shares.map((share, place) => {
    sum += share;
    if (place === shares.length - 1) return height;
    const at = areas.findIndex((area) => area >= sum * whole - 1e-9);
    const before = areas[Math.max(at - 1, 0)];
    const part = at > 0 && areas[at] > before ? (sum * whole - before) / (areas[at] - before) : 0;
    return ((Math.max(at - 1, 0) + part) / SAMPLES) * height;
  });
}

/**
 * How far a cut may tilt and keep both areas: none under the arch.
 * @param {number} y
 * @param {number} width
 * @param {number} above
 * @param {number} below heights of the panes it parts
 * @returns {number}
 */
export const tiltAt = (y, width, above, below) => (y < rise(width) + 9 ? 0 : Math.min(8, above / 3, below / 3));

const polar = (angle, radius) => `${n(ROSE.x + radius * Math.cos(angle))} ${n(ROSE.y + radius * Math.sin(angle))}`;

/**
 * A part of a ring.
 * @param {number} start
 * @param {number} stop radians
 * @param {number} inner
 * @param {number} outer
 * @returns {string} a path
 */
export function sector(start, stop, inner, outer) {
  const end = Math.min(stop, start + 2 * Math.PI - 1e-3);
  const large = Number(end - start > Math.PI);
  return `M${polar(start, inner)}L${polar(start, outer)}A${outer} ${outer} 0 ${large} 1 ${polar(end, outer)}L${polar(end, inner)}A${inner} ${inner} 0 ${large} 0 ${polar(start, inner)}Z`;
}

/** A petal of the rose; its angle is its measure. @returns {string} a path */
export function petal(start, stop, inner, outer) {
  const half = (stop - start) / 2;
  if (half > 0.6) return sector(start, stop, inner, outer);
  const shoulder = outer * 0.87;
  return `M${polar(start, inner)}L${polar(start, shoulder)}Q${polar(start + half * 0.25, outer)} ${polar(start + half, outer)}Q${polar(stop - half * 0.25, outer)} ${polar(stop, shoulder)}L${polar(stop, inner)}A${inner} ${inner} 0 0 0 ${polar(start, inner)}Z`;
}

/**
 * A number in −1..1 that belongs to a text: shapes vary by it, never by chance.
 * @param {string} text
 * @returns {number}
 */
export function jitter(text) {
  let hash = 2166136261;
  for (const letter of text) hash = Math.imul(hash ^ letter.codePointAt(0), 16777619) >>> 0;
  return hash / 2 ** 31 - 1;
}
