// The list of requests beside the lanes: a list box whose rows are chosen by click or by arrow keys.

import { byId, make, mark, tierLabel, write } from "./elements.js";
import { count, shortName } from "./format.js";

/** List of the shown requests. `choose(seq)` is called when another one is chosen. */
export class Requests {
  constructor(choose) {
    this.list = byId("lanes");
    this.rows = new Map();
    this.order = [];
    this.chosen = null;
    this.tell = choose;
    this.list.addEventListener("click", (event) => {
      const row = event.target.closest("[role=option]");
      if (row) this.choose(Number(row.dataset.seq));
    });
    this.list.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const at = this.order.indexOf(this.chosen);
    const last = this.order.length - 1;
    const next = { ArrowDown: Math.min(last, at + 1), ArrowUp: at < 0 ? last : Math.max(0, at - 1), Home: 0, End: last,
      PageDown: Math.min(last, at + 10), PageUp: Math.max(0, at - 10) }[event.key];
    if (event.key === "Enter" && this.chosen !== null) byId("chosen-title").scrollIntoView({ block: "nearest" });
    if (next === undefined || last < 0) return;
    event.preventDefault();
    this.choose(this.order[next]);
    this.rows.get(this.order[next]).root.scrollIntoView({ block: "nearest" });
  }

  choose(seq) {
    this.chosen = seq;
    for (const [of, { root }] of this.rows) mark(root, "aria-selected", of === seq);
    if (this.rows.has(seq)) mark(this.list, "aria-activedescendant", `lane-${seq}`);
    this.tell(seq);
  }

  show(histories, live) {
    this.order = histories.map((history) => history.row.seq);
    const shown = new Set(this.order);
    for (const [seq, { root }] of this.rows) {
      if (shown.has(seq)) continue;
      root.remove();
      this.rows.delete(seq);
    }
    histories.forEach((history, place) => this.showRow(history, place));
    const held = this.chosen !== null && shown.has(this.chosen);
    if (held) mark(this.list, "aria-activedescendant", `lane-${this.chosen}`);
    else this.list.removeAttribute("aria-activedescendant");
    const rest = live.requests_total - live.requests.length;
    const more = rest > 0 ? `; ${count(rest)} more are not shown` : "";
    write(byId("requests-count"), `${count(live.requests_total)} live${more}`);
  }

  showRow(history, place) {
    const { row } = history;
    const found = this.rows.get(row.seq) ?? this.makeRow(row.seq);
    if (this.list.children[place] !== found.root) this.list.insertBefore(found.root, this.list.children[place] ?? null);
    if (found.tier.dataset.tier !== row.tier) {
      const label = tierLabel(row.tier);
      label.textContent = "";
      found.tier.replaceWith(label);
      found.tier = label;
    }
    const { word } = history;
    write(found.name, shortName(row));
    write(found.state, row.state === "waiting" && row.position && word === "waiting" ? `waiting ${count(row.position)}` : word);
    mark(found.root, "aria-selected", row.seq === this.chosen);
    mark(found.root, "data-state", word.replace(" ", "-"));
    mark(found.root, "data-preemptions", row.preemptions);
    found.root.classList.toggle("gone", history.endedAt !== null);
    const times = row.preemptions === 1 ? "once" : `${row.preemptions} times`;
    const preempted = row.preemptions > 0 ? `, preempted ${times}` : "";
    mark(found.root, "aria-label", `${row.request_id}, ${row.tier}, ${word}, ${row.output_tokens} tokens${preempted}`);
  }

  makeRow(seq) {
    const [tier, name, state] = [tierLabel("other"), make("span", { class: "name" }), make("span", { class: "state" })];
    tier.textContent = "";
    const root = make("li", { role: "option", id: `lane-${seq}`, "data-seq": seq, "aria-selected": seq === this.chosen },
      tier, name, state);
    const row = { root, tier, name, state };
    this.rows.set(seq, row);
    return row;
  }
}
