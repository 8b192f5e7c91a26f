// The chosen request: its figures, what happened to it, and the commands that change it.

import { command, Refused } from "./client.js";
import { byId, Facts, make, write } from "./elements.js";
import { count, time } from "./format.js";

const HAPPENED = {
  queued: (of) => `queued as ${of.tier}`,
  started: () => "started",
  first_token: () => "first token",
  preempted: (of) => `preempted by ${of.strategy}`,
  copying: () => "blocks copied to the device",
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
    /** Whether the last document lists the request. */
    this.listed = false;
    /** Whether the server answered the last poll with a document. */
    this.connected = false;
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
    this.listed = true;
    this.say("");
    byId("move-tier").value = history.row.tier;
    byId("move-priority").value = history.row.priority;
    this.show();
  }

  /** Shows no request. */
  clear() {
    byId("confirm").close();
    this.history = null;
    byId("chosen-one").hidden = true;
    byId("chosen-none").hidden = false;
  }

  /** Takes the request's history after a document: undefined if the document does not list the request. */
  follow(history) {
    this.listed = history !== undefined;
    if (history) this.history = history;
    this.show();
  }

  /** Takes whether the server answers with documents. */
  connect(connected) {
    this.connected = connected;
    this.show();
  }

  /** Returns why no command can be given for the request; null if one can. */
  get obstacle() {
    if (this.history.endedAt !== null) return "the request has ended";
    if (!this.connected) return "the page gets no figures from the server";
    return this.listed ? null : "the request is not among the requests shown any more";
  }

  show() {
    if (!this.history) return;
    byId("chosen-none").hidden = true;
    byId("chosen-one").hidden = false;
    const { row, word, endedAt } = this.history;
    write(byId("chosen-title"), row.request_id === row.id ? row.id : `${row.request_id} (${row.id})`);
    const old = !this.listed && endedAt === null;
    const state = row.position && endedAt === null ? `${word}, position ${count(row.position)}` : word;
    this.facts.show("State", old ? "not among the requests shown any more" : state);
    this.facts.show("Tier", row.priority === 0 ? row.tier : `${row.tier}, priority ${row.priority}`);
    this.facts.show("Tenant", row.tenant);
    this.facts.show("Sequence", String(row.seq));
    const none = old ? "–" : row.late ? "none yet, late" : "none yet";
    this.facts.show("First token after", row.ttft_ms === undefined ? none : time(row.ttft_ms));
    this.facts.show("Ahead of target", old ? "–" : time(row.slack_ms));
    this.facts.show("Prompt", `${count(Math.min(row.computed_tokens, row.prompt_tokens))} of ${count(row.prompt_tokens)} tokens`);
    this.facts.show("Output", `${count(row.output_tokens)} of ${count(row.max_tokens)} tokens`);
    this.facts.show("Blocks", `${count(row.device_blocks)} device, ${count(row.host_blocks)} host`);
    this.facts.show("Preemptions", count(row.preemptions));
    write(byId("pause"), row.paused ? "Resume" : "Pause");
    this.showCommands();
    this.showMoments();
  }

  /** Enables the commands, or disables the commands and closes the dialog. */
  showCommands() {
    const { obstacle } = this;
    if (obstacle !== null && byId("confirm").open) {
      byId("confirm").close();
      this.say(`not cancelled: ${obstacle}`, true);
    }
    for (const id of ["move-button", "pause", "cancel"]) byId(id).disabled = obstacle !== null;
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
    if (history.endedAt !== null) return this.say("the request has ended", true);
    this.say("…");
    try {
      const { changes } = await command(history.row.id, verb, body);
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
