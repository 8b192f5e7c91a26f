// Histories of requests: their states over time. The moments of the documents' timelines give the exact times of starts,
// preemptions and resumes, also of those that are shorter than the time between two documents. Only that blocks are being
// copied is known from the documents alone.

/** Time for which the history of an ended request is kept, ms of the engine's clock. */
const KEPT_MS = 300_000;
/** Most histories, moments of a request, and spans of copies of a request. */
const HISTORIES_MAX = 256;
const MOMENTS_MAX = 64;
const SPANS_MAX = 32;
/** Most rows that the page shows. */
const ROWS_MAX = 96;
const TIERS = ["premium", "standard", "background"];

/** History of one choice of a request. */
class History {
  constructor(row) {
    this.row = row;
    this.moments = [];
    this.copies = [];
    this.copiedAt = null;
    this.endedAt = null;
  }

  get active() {
    return this.row.state !== "waiting" || this.row.copying;
  }

  add(row, now, before) {
    this.row = row;
    const last = this.moments.at(-1)?.at ?? -1;
    for (const moment of row.timeline.moments) {
      const at = row.arrived_ms + moment.at_ms;
      const known = at < last || (at === last && this.moments.some((of) => of.at === at && of.what === moment.what));
      if (!known) this.moments.push({ ...moment, at });
    }
    this.moments.splice(0, this.moments.length - MOMENTS_MAX);
    if (row.copying) {
      const span = this.copies.at(-1);
      if (span && this.copiedAt === before) span.to = now;
      else this.copies.push({ from: before === null ? now : Math.max(before, this.moments.at(-1)?.at ?? 0), to: now });
      this.copies.splice(0, this.copies.length - SPANS_MAX);
      this.copiedAt = now;
    }
  }

  /** Returns the states of the request up to a time: stretches of one state, in order. */
  stretches(until) {
    const end = this.endedAt ?? until;
    const found = [];
    const first = this.row.ttft_ms === undefined ? Infinity : this.row.arrived_ms + this.row.ttft_ms;
    let [state, paused, from] = ["earlier", false, this.row.arrived_ms];
    const close = (to) => { if (to > from) found.push({ state, paused, from, to }); };
    for (const moment of this.moments) {
      close(moment.at);
      from = Math.max(from, moment.at);
      switch (moment.what) {
        case "queued": state = "waiting"; break;
        case "started": state = "prefill"; break;
        case "first_token": state = "decode"; break;
        case "preempted": state = "preempted"; break;
        case "resumed": state = moment.at >= first ? "decode" : "prefill"; break;
        case "paused": paused = true; break;
        case "unpaused": paused = false; break;
      }
    }
    close(end);
    return found;
  }

  /** Word for the present state. */
  get word() {
    if (this.endedAt !== null) return "ended";
    const { state, paused, copying } = this.row;
    if (paused) return "paused";
    if (copying && state === "preempted") return "copying out";
    if (copying) return "copying in";
    return state;
  }
}

/** Histories of the requests that the documents show. */
export class Histories {
  constructor() {
    this.of = new Map();
    this.last = null;
  }

  add(live) {
    const now = live.engine_ms;
    const seen = new Set();
    for (const row of live.requests) {
      if (!this.of.has(row.seq)) this.of.set(row.seq, new History(row));
      this.of.get(row.seq).add(row, now, this.last);
      seen.add(row.seq);
    }
    // All requests with blocks are listed before those that wait, so one that had blocks and is gone has ended, unless the
    // list has no waiting one and may have been cut.
    const all = live.requests.length >= live.requests_total || live.requests.at(-1)?.state === "waiting";
    for (const [seq, history] of this.of) {
      if (seen.has(seq) || history.endedAt !== null) continue;
      if (all && (history.active || live.requests.length >= live.requests_total)) history.endedAt = now;
      else this.of.delete(seq);
    }
    this.forget(now);
    this.last = now;
  }

  forget(now) {
    const ended = [...this.of].filter(([, history]) => history.endedAt !== null);
    ended.sort(([, a], [, b]) => a.endedAt - b.endedAt);
    for (const [seq, history] of ended) {
      if (now - history.endedAt <= KEPT_MS && this.of.size <= HISTORIES_MAX) return;
      this.of.delete(seq);
    }
  }

  /** Returns the histories to show: those that have blocks, or ended after `since`, by arrival; then the line. */
  rows(since) {
    const all = [...this.of.values()];
    const served = all.filter((of) => of.active && (of.endedAt === null || of.endedAt > since));
    served.sort((a, b) => a.row.seq - b.row.seq);
    const waiting = all.filter((of) => !of.active && of.endedAt === null);
    const place = (of) => TIERS.indexOf(of.row.tier) * 1e9 + (of.row.position ?? 1e8);
    waiting.sort((a, b) => place(a) - place(b) || a.row.seq - b.row.seq);
    return [...served.slice(-ROWS_MAX), ...waiting].slice(0, ROWS_MAX);
  }
}
