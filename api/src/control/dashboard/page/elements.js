// Elements of the page: found by their ids, made, and changed only where they differ.

export const byId = (id) => document.getElementById(id);

/** Makes an element with attributes and children. */
export function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Sets the text of an element if it differs, so that the browser has nothing to do where nothing changed. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets an attribute if it differs. */
export function mark(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Returns an element with the name of a tier behind its letter. */
export function tierLabel(tier) {
  return make("span", { class: "tier", "data-tier": tier, "data-letter": tier[0].toUpperCase() }, tier);
}

/** Fits a canvas to its place and to the pixels of the screen; returns its context and its size in CSS pixels. */
export function fitted(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 3);
  const [across, down] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== across || canvas.height !== down) {
    canvas.width = across;
    canvas.height = down;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** A list of names and values that stay, so that only texts change. */
export class Facts {
  constructor(list) {
    this.list = list;
    this.values = new Map();
  }

  show(name, text) {
    if (!this.values.has(name)) {
      const value = make("dd");
      this.list.append(make("div", {}, make("dt", {}, name), value));
      this.values.set(name, value);
    }
    write(this.values.get(name), text);
    mark(this.values.get(name), "title", text);
  }
}

/** A table whose cells are elements that stay, so that only texts change. */
export class Table {
  constructor(table, heads) {
    const cells = heads.map((text) => make("th", { scope: "col" }, text));
    this.body = make("tbody");
    table.append(make("thead", {}, make("tr", {}, ...cells)), this.body);
    this.columns = heads.length;
  }

  /** Returns the row with this number, with a cell for each column; the first cell is the row's header. */
  row(number) {
    while (this.body.rows.length <= number) {
      const cells = Array.from({ length: this.columns }, (_, column) =>
        column === 0 ? make("th", { scope: "row" }) : make("td"));
      this.body.append(make("tr", {}, ...cells));
    }
    return this.body.rows[number];
  }

  /** Removes the rows from this number on. */
  cut(number) {
    while (this.body.rows.length > number) this.body.rows[number].remove();
  }
}
