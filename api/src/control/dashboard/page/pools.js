// The block map: both pools as cells, by the tier of the owner and by state.

import { byId, fitted, make, write } from "./elements.js";
import { count } from "./format.js";
import { hatch, palette } from "./palette.js";

const OWNERS = ["premium", "standard", "background", "other"];
const LARGEST_CELL = 15;
const SMALLEST_CELL = 7;
const HEIGHT_MAX = 150;

/** Draws one cell: the shape tells the owner, marks tell mirrored and in transit, outlines cached and free. */
function drawCell(context, [x, y, size], cell) {
  const colours = palette();
  const colour = colours[cell.owner] ?? colours.other;
  const edge = size - 1.5;
  context.beginPath();
  if (cell.kind === "free") {
    context.fillStyle = colours.cached;
    context.rect(x + edge / 2 - 1.5, y + edge / 2 - 1.5, 3, 3);
    context.fill();
  } else if (cell.kind === "cached") {
    context.strokeStyle = colours.cached;
    context.lineWidth = 1.2;
    context.strokeRect(x + 1, y + 1, edge - 2, edge - 2);
  } else {
    ownerShape(context, [x, y, edge], cell.owner);
    if (cell.kind === "transit") {
      context.strokeStyle = colour;
      context.lineWidth = 1.2;
      context.stroke();
      hatch(context, [x, y, edge, edge], colour, 3.5);
    } else {
      context.fillStyle = colour;
      context.fill();
    }
    if (cell.kind === "mirrored") {
      context.beginPath();
      context.fillStyle = colours.card;
      context.arc(x + edge / 2, y + edge / 2, Math.max(1.3, edge / 5), 0, 7);
      context.fill();
    }
  }
  if (cell.reserved) {
    context.strokeStyle = colours[cell.reserved];
    context.lineWidth = 1.2;
    context.setLineDash([2.5, 2]);
    context.strokeRect(x + 0.6, y + 0.6, edge - 1.2, edge - 1.2);
    context.setLineDash([]);
  }
}

/** Outlines the shape of an owner: premium a square, standard a square without a corner, background a disc. */
function ownerShape(context, [x, y, edge], owner) {
  if (owner === "background") {
    context.arc(x + edge / 2, y + edge / 2, edge / 2, 0, 7);
  } else if (owner === "standard") {
    context.moveTo(x, y);
    context.lineTo(x + edge * 0.45, y);
    context.lineTo(x + edge, y + edge * 0.55);
    context.lineTo(x + edge, y + edge);
    context.lineTo(x, y + edge);
    context.closePath();
  } else if (owner === "other") {
    context.rect(x + edge / 4, y + edge / 4, edge / 2, edge / 2);
  } else {
    context.rect(x, y, edge, edge);
  }
}

/** Returns runs of equal cells: the blocks of each owner, then cached and free ones. `mirrored`: cached copies, on the host. */
function runsOf(pool) {
  const runs = [];
  const add = (kind, number, owner) => { if (number > 0) runs.push({ kind, number, owner }); };
  for (const owner of OWNERS) {
    const blocks = pool.owners[owner];
    add("held", blocks.held - blocks.mirrored, owner);
    add("mirrored", blocks.mirrored, owner);
    add("transit", blocks.in_transit, owner);
  }
  add("cached", pool.cached);
  add("free", pool.free);
  return runs;
}

/** Blocks that are reserved for a tier and that the tier does not use. */
function unused(blocks) {
  return Math.max(0, blocks.reserved - blocks.held - blocks.in_transit);
}

/** Returns a function from the number of a block in the map to its cell. Reserved blocks are the last free ones. */
function cellsOf(pool) {
  const runs = runsOf(pool);
  const reserved = OWNERS.map((owner) => [owner, unused(pool.owners[owner])]);
  return (block) => {
    let before = block;
    const run = runs.find((of) => (before -= of.number) < 0) ?? { kind: "free" };
    if (run.kind !== "free" && run.kind !== "cached") return run;
    let behind = pool.total - 1 - block;
    const holder = reserved.find(([, number]) => (behind -= number) < 0);
    return holder ? { ...run, reserved: holder[0] } : run;
  };
}

/** Map of one pool, with a legend that has the numbers. */
class PoolView {
  constructor(name, about) {
    this.about = about;
    this.title = make("h3");
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.legend = make("ul", { class: "legend" });
    this.items = new Map();
    this.root = make("div", { class: "pool", "data-pool": name }, this.title, this.canvas, this.legend);
  }

  show(pool) {
    this.root.hidden = pool.total === 0;
    const width = this.root.clientWidth;
    const state = JSON.stringify([pool, width, palette().text]);
    if (pool.total === 0 || width === 0 || state === this.state) return;
    this.state = state;
    const blocks = this.draw(pool, width);
    const used = pool.total - pool.free - pool.cached;
    const scale = blocks > 1 ? ` · one cell is ${blocks} blocks` : "";
    write(this.title, `${this.about}: ${count(used)} of ${count(pool.total)} blocks in use${scale}`);
    this.showLegend(pool);
  }

  /** Draws the map; returns the number of blocks that a cell stands for. */
  draw(pool, width) {
    let size = LARGEST_CELL;
    const fits = () => Math.floor(width / size) * Math.floor(HEIGHT_MAX / size);
    while (size > SMALLEST_CELL && fits() < pool.total) size -= 1;
    const blocks = Math.max(1, Math.ceil(pool.total / fits()));
    const cells = Math.ceil(pool.total / blocks);
    const columns = Math.floor(width / size);
    const context = fitted(this.canvas, width, Math.ceil(cells / columns) * size);
    const cellOf = cellsOf(pool);
    for (let cell = 0; cell < cells; cell += 1) {
      const block = Math.min(pool.total - 1, cell * blocks + (blocks >> 1));
      drawCell(context, [(cell % columns) * size, Math.floor(cell / columns) * size, size], cellOf(block));
    }
    return blocks;
  }

  showLegend(pool) {
    const sum = (of) => OWNERS.reduce((all, owner) => all + of(pool.owners[owner]), 0);
    for (const owner of OWNERS) {
      const { held, in_transit: moving } = pool.owners[owner];
      this.item(owner, { kind: "held", owner }, owner, held + moving, owner !== "other");
    }
    this.item("mirrored", { kind: "mirrored", owner: "background" }, "of these mirrored", sum((of) => of.mirrored));
    this.item("transit", { kind: "transit", owner: "background" }, "of these in transit", sum((of) => of.in_transit));
    this.item("cached", { kind: "cached" }, "cached", pool.cached, true);
    this.item("free", { kind: "free" }, "free", pool.free, true);
    for (const owner of ["premium", "standard"]) {
      const cell = { kind: "free", reserved: owner };
      const { reserved } = pool.owners[owner];
      this.item(`reserved-${owner}`, cell, `reserved for ${owner}, unused (of ${count(reserved)})`, unused(pool.owners[owner]),
        reserved > 0);
    }
  }

  /** Shows an item of the legend; one without blocks only if `always`. */
  item(name, cell, text, blocks, always = false) {
    if (!this.items.has(name)) {
      const [swatch, label] = [make("canvas", { "aria-hidden": "true" }), make("span")];
      const item = make("li", { "data-blocks": name }, swatch, label);
      this.legend.append(item);
      this.items.set(name, { item, swatch, label });
    }
    const { item, swatch, label } = this.items.get(name);
    item.hidden = blocks === 0 && !always;
    write(label, `${text} ${count(blocks)}`);
    if (!item.hidden) drawCell(fitted(swatch, 14, 14), [0, 0, 14], cell);
  }
}

/** The maps of both pools. */
export class Pools {
  constructor() {
    this.views = { device: new PoolView("device", "Device pool"), host: new PoolView("host", "Host pool") };
    byId("pools").append(this.views.device.root, this.views.host.root);
  }

  show(pools) {
    for (const [name, view] of Object.entries(this.views)) view.show(pools[name]);
  }
}
