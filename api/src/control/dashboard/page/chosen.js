// The chosen request: its figures, what happened to it, and the commands that change it.

import { command, Refused } from "./client.js";
import { byId, Facts, make, write } from "./elements.js";
import { count, time } from "./format.js";

const HAPPENED = {
  queued: (of) => `queued as ${of.tier}`,
  started: () => "started",
  first_token: () => "first token",
  preempted: (of) => `preempted by ${of.strategy}`,
  resumed: () => "resumed",
  paused: () => "paused by an operator",
  unpaused: () => "pause ended by an operator",
  moved: (of) => `moved from ${of.from} to ${of.to}`,
};

/** Panel of the chosen request. `changed()` is called after a command. */
export class Chosen {
  constructor(changed) {
    this.changed = changed;
    this.history = null;
    this.facts = new Facts(byId("chosen-facts"));
    byId("move").addEventListener("submit", (event) => {
      event.preventDefault();
      this.move();
    });
    byId("pause").addEventListener("click", () => this.give(this.history.row.paused ? "resume" : "pause"));
    byId("cancel").addEventListener("click", () => this.ask());
    byId("confirm-no").addEventListener("click", () => byId("confirm").close());
    byId("confirm-yes").addEventListener("click", () => {
      byId("confirm").close();
      this.give("cancel", {}, this.asked);
    });
  }

  /** Shows another request: its tier and priority become the form's. */
  choose(history) {
    this.history = history;
    this.say("");
    byId("move-tier").value = history.row.tier;
    byId("move-priority").value = history.row.priority;
    this.show();
  }

  /** Shows no request. */
  clear() {
    this.history = null;
    byId("chosen-one").hidden = true;
    byId("chosen-none").hidden = false;
  }

  show() {
    if (!this.history) return;
    byId("chosen-none").hidden = true;
    byId("chosen-one").hidden = false;
    const { row, word, endedAt } = this.history;
    write(byId("chosen-title"), row.request_id === row.id ? row.id : `${row.request_id} (${row.id})`);
    const state = row.position && endedAt === null ? `${word}, position ${count(row.position)}` : word;
    this.facts.show("State", state);
    this.facts.show("Tier", row.priority === 0 ? row.tier : `${row.tier}, priority ${row.priority}`);
    this.facts.show("Tenant", row.tenant);
    this.facts.show("Sequence", String(row.seq));
    this.facts.show("First token after", row.ttft_ms === undefined ? (row.late ? "none yet, late" : "none yet") : time(row.ttft_ms));
    this.facts.show("Ahead of target", time(row.slack_ms));
    this.facts.show("Prompt", `${count(Math.min(row.computed_tokens, row.prompt_tokens))} of ${count(row.prompt_tokens)} tokens`);
    this.facts.show("Output", `${count(row.output_tokens)} of ${count(row.max_tokens)} tokens`);
    this.facts.show("Blocks", `${count(row.device_blocks)} device, ${count(row.host_blocks)} host`);
    this.facts.show("Preemptions", count(row.preemptions));
    write(byId("pause"), row.paused ? "Resume" : "Pause");
    for (const id of ["move-button", "pause", "cancel"]) byId(id).disabled = endedAt !== null;
    this.showMoments();
  }

  showMoments() {
    const { moments, row } = this.history;
    const list = byId("moments");
    const state = `${row.seq} ${moments.length} ${moments.at(-1)?.at}`;
    if (state === this.momentsState) return;
    this.momentsState = state;
    list.replaceChildren(...moments.map((moment) => {
      const text = (HAPPENED[moment.what] ?? (() => moment.what))(moment);
      const after = `after ${time(moment.at - row.arrived_ms)}`;
      return make("li", { "data-what": moment.what }, make("span", {}, after), make("span", { class: "soft" }, `step ${count(moment.step)}`), text);
    }));
  }

  move() {
    const [tier, priority] = [byId("move-tier").value, Number(byId("move-priority").value)];
    this.give("reprioritize", { tier, priority });
  }

  ask() {
    this.asked = this.history;
    const { row } = this.history;
    write(byId("confirm-text"), `${row.request_id} (${row.tier}, ${count(row.output_tokens)} tokens so far) ends with an error. This cannot be undone.`);
    byId("confirm").showModal();
    byId("confirm-no").focus();
  }

  async give(verb, body = {}, history = this.history) {
    this.say("…");
    try {
      const { changes } = await command(history.row.seq, verb, body);
      this.say(told(verb, changes[0]));
    } catch (error) {
      this.say(error instanceof Refused ? error.message : "the server did not answer; the change may or may not have been made", true);
    }
    this.changed();
  }

  say(text, bad = false) {
    write(byId("answer"), text);
    byId("answer").classList.toggle("bad", bad);
  }
}

/** Words the effect of a command. */
function told(verb, { step, before, after }) {
  const from = step === null ? "" : ` It takes effect after step ${count(step)}.`;
  switch (verb) {
    case "reprioritize": return `Moved from ${before.tier} (priority ${before.priority}) to ${after.tier} (priority ${after.priority}).${from}`;
    case "pause": return `Paused.${from}`;
    case "resume": return `Scheduled again.${from}`;
    default: return "Cancelled.";
  }
}
