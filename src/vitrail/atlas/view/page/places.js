// Where concepts stand on the sheet: zoom, pan, and who is under the pointer. A grid keeps look-ups fast.

const GRID = 64;
const view = { scale: 1, x: 0.5, y: 0.5 }; // the point of the unit square in the middle of the sheet
const grid = new Map();
for (let c = 0; c < COUNT; c++) {
  const key = cellOf(concepts.x[c]) * GRID + cellOf(concepts.y[c]);
  if (!grid.has(key)) grid.set(key, []);
  grid.get(key).push(c);
}

function cellOf(value) { return Math.max(0, Math.min(GRID - 1, Math.floor(value * GRID))); }

const sheet = { width: 1, height: 1 };
const unit = () => 0.9 * Math.min(sheet.width, sheet.height) * view.scale;
const spread = () => Math.max(1, Math.min(1.8, sheet.width / sheet.height)); // a wide sheet is used in full
const across = (c) => (concepts.x[c] - view.x) * unit() * spread() + sheet.width / 2;
const down = (c) => (view.y - concepts.y[c]) * unit() + sheet.height / 2;

const most = Math.max(1, ...concepts.chunks);
const baseRadius = COUNT > 4000 ? 5 : COUNT > 800 ? 10 : COUNT > 200 ? 13 : 18;
const radius = (c) => Math.max(1.6, baseRadius * Math.sqrt(concepts.chunks[c] / most)) * Math.min(2.4, Math.sqrt(view.scale));

function zoomAt(factor, px, py) {
  const scale = Math.max(0.8, Math.min(60, view.scale * factor));
  const x = view.x + (px - sheet.width / 2) / (unit() * spread()), y = view.y - (py - sheet.height / 2) / unit();
  view.scale = scale;
  view.x = x - (px - sheet.width / 2) / (unit() * spread());
  view.y = y + (py - sheet.height / 2) / unit();
  drawMap();
}

// The concept under a point of the sheet, or null: the one whose rim is nearest, up to a finger's width.
function conceptAt(px, py) {
  const reach = 26;
  const left = view.x + (px - reach - sheet.width / 2) / (unit() * spread()), right = view.x + (px + reach - sheet.width / 2) / (unit() * spread());
  const low = view.y - (py + reach - sheet.height / 2) / unit(), high = view.y - (py - reach - sheet.height / 2) / unit();
  let best = null, least = 8;
  for (let i = cellOf(left); i <= cellOf(right); i++) {
    for (let j = cellOf(low); j <= cellOf(high); j++) {
      for (const c of grid.get(i * GRID + j) || []) {
        const away = Math.hypot(across(c) - px, down(c) - py) - radius(c);
        if (away < least && isShown(c)) { best = c; least = away; }
      }
    }
  }
  return best;
}

// The nearest concept in a direction; sideways distance counts double.
function neighbourTo(c, dx, dy) {
  let best = c, least = Infinity;
  for (let other = 0; other < COUNT; other++) {
    const x = across(other) - across(c), y = down(other) - down(c);
    const along = x * dx + y * dy, aside = Math.abs(x * dy - y * dx);
    if (other === c || along <= 0 || aside > along * 1.2 || !isShown(other)) continue;
    const cost = along + 2 * aside;
    if (cost < least) { best = other; least = cost; }
  }
  return best;
}

function bringIn(c) {
  const margin = 30;
  if (across(c) < margin || across(c) > sheet.width - margin) view.x = concepts.x[c];
  if (down(c) < margin || down(c) > sheet.height - margin) view.y = concepts.y[c];
}
