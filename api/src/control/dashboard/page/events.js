// The last events: changes that operators made, and what the page itself noticed.

import { Listener, Refused } from "./client.js";
import { byId, make } from "./elements.js";
import { count } from "./format.js";

/** Most events that the page keeps. */
const EVENTS_MAX = 50;
/** Shortest time between two tries to listen, ms. */
const RETRY_MS = 3_000;

/** List of events. It listens while the connection holds. */
export class Events {
  constructor() {
    this.list = byId("events");
    this.listener = null;
    this.triedAt = -Infinity;
    /** Statuses of refusals that the list tells of, since the server last gave an event stream. */
    this.refusals = new Set();
  }

  /** Listens, unless the page listens already or tried a moment ago. */
  listen() {
    if (this.listener || performance.now() - this.triedAt < RETRY_MS) return;
    this.triedAt = performance.now();
    // The event that tells of lost events has no time.
    const unixMs = (event) => (event.unix_s === undefined ? Date.now() : event.unix_s * 1_000);
    const listener = new Listener((event) => this.add(unixMs(event), words(event)));
    this.listener = listener;
    const ended = (error) => {
      listener.stop();
      if (listener.accepted) this.refusals.clear();
      if (this.listener !== listener) return;
      this.listener = null;
      if (error instanceof Refused) this.refused(error);
    };
    listener.run().then(ended, ended);
  }

  /** Tells that the server gives no event stream: once for each status, because the page tries again and again. */
  refused({ status, message }) {
    if (this.refusals.has(status)) return;
    this.refusals.add(status);
    this.note(`no events: ${message}`);
  }

  /** Stops listening, because the connection is lost, the key has changed or the page is hidden. */
  stop() {
    this.listener?.stop();
    this.listener = null;
  }

  /** Adds a line of the page itself. */
  note(text) {
    this.add(Date.now(), text);
  }

  add(unixMs, text) {
    if (this.list.firstElementChild?.className === "soft") this.list.replaceChildren();
    const at = new Date(unixMs).toLocaleTimeString("en-GB");
    this.list.prepend(make("li", {}, make("time", { datetime: new Date(unixMs).toISOString() }, at), make("span", {}, text)));
    while (this.list.children.length > EVENTS_MAX) this.list.lastElementChild.remove();
  }
}

/** Words an event of the event stream. */
function words(event) {
  const { by, action, before, after } = event;
  const name = before?.request_id ?? after?.request_id;
  switch (action) {
    case undefined: return `${count(event.lost ?? 0)} events were lost`;
    case "reprioritize": return `${by} moved ${name} from ${before?.tier} to ${after?.tier ?? "nowhere"}`;
    case "pause": return `${by} paused ${name}`;
    case "resume": return `${by} resumed ${name}`;
    case "cancel": return `${by} cancelled ${name}`;
    case "policy": return `${by} changed ${Object.keys(event.settings ?? {}).join(", ")}`;
    case "drain": return `${by} drains the server: ${count(event.requests ?? 0)} requests may finish`;
    case "draining": return `draining: ${count(event.requests ?? 0)} requests left`;
    case "drained":
      if (event.finished === undefined) return "drained: the step in flight did not end in time";
      return `drained: ${count(event.finished ?? 0)} finished, ${count(event.ended ?? 0)} ended, ${count(event.other ?? 0)} otherwise`;
    default: return `${by}: ${action}`;
  }
}
