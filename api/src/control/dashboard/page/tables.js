// The tables: tiers, latencies against targets, tenants.

import { byId, Facts, make, tierLabel, Table, write } from "./elements.js";
import { count, percent, time } from "./format.js";

const TIERS = ["premium", "standard", "background"];
const METRICS = [["ttft", "TTFT"], ["tpot", "TPOT"], ["e2e", "E2E"]];
const STATES = ["waiting", "prefill", "decode", "preempted", "resuming", "paused", "late"];

/** Requests of each tier by state, and totals of the engine. */
export class Tiers {
  constructor() {
    this.totals = new Facts(byId("totals"));
    this.table = new Table(byId("tiers"), ["Tier", ...STATES]);
    TIERS.forEach((tier, number) => this.table.row(number).cells[0].append(tierLabel(tier)));
  }

  show({ tiers, engine, counters }) {
    TIERS.forEach((tier, number) => {
      const { cells } = this.table.row(number);
      STATES.forEach((state, column) => write(cells[column + 1], count(tiers[tier][state])));
    });
    const { prefix_query_tokens: looked, prefix_hit_tokens: found } = counters;
    this.totals.show("Requests", `${count(engine.requests)} of ${count(engine.max_requests)}`);
    this.totals.show("Slots in use", `${count(engine.running)} of ${count(engine.max_num_seqs)}`);
    this.totals.show("Prefix cache hits", looked > 0 ? percent(found / looked) : "–");
    this.totals.show("Steps", `${count(counters.steps)}, ${count(counters.failed_steps)} failed`);
    this.totals.show("Blocks copied", count(counters.copied_blocks));
    this.totals.show("Tokens recomputed", count(counters.recomputed_tokens));
  }
}

/** Compliance and headroom of each tier and metric. */
export class Latencies {
  constructor() {
    this.table = new Table(byId("slo"), ["Tier", "", "target", "p99", "compliance", "", "headroom", "overdue"]);
  }

  show(tiers) {
    let number = 0;
    for (const tier of TIERS) {
      METRICS.forEach(([metric, name], place) => {
        const slo = tiers[tier].slo[metric];
        if (slo.target_ms === null && slo.samples === 0) return;
        this.showRow(this.table.row(number), [tier, name, place === 0 || !this.isSame(number, tier)], slo);
        number += 1;
      });
    }
    this.table.cut(number);
  }

  /** Whether the row before this one is of the same tier. */
  isSame(number, tier) {
    return number > 0 && this.table.row(number - 1).dataset.tier === tier;
  }

  showRow(row, [tier, name, first], slo) {
    const { cells } = row;
    if (row.dataset.tier !== tier || row.dataset.first !== String(first)) {
      [row.dataset.tier, row.dataset.first] = [tier, String(first)];
      row.className = first ? "first" : "";
      cells[0].replaceChildren(...(first ? [tierLabel(tier)] : []));
    }
    const judged = slo.target_ms !== null && (slo.samples > 0 || slo.overdue > 0 || slo.compliance < 1);
    write(cells[1], name);
    write(cells[2], time(slo.target_ms));
    write(cells[3], slo.samples > 0 ? time(slo.p99_ms) : "–");
    write(cells[4], judged ? percent(slo.compliance) : "–");
    cells[4].classList.toggle("bad-text", judged && slo.compliance < 0.99);
    this.showMeter(cells[5], judged ? slo.compliance : null);
    write(cells[6], judged ? percent(Math.max(-99.99, slo.headroom)) : "–");
    cells[6].classList.toggle("bad-text", judged && slo.headroom < 0);
    write(cells[7], count(slo.overdue));
  }

  showMeter(cell, share) {
    if (!cell.firstChild) cell.append(make("span", { class: "meter", "aria-hidden": "true" }, make("i")));
    const meter = cell.firstChild;
    meter.hidden = share === null;
    meter.classList.toggle("low", share !== null && share < 0.99);
    meter.firstChild.style.width = `${100 * (share ?? 0)}%`;
  }
}

/** Live requests and blocks of tenants, and the tokens and device time that they used since the start of the server. */
export class Tenants {
  constructor() {
    this.table = new Table(byId("tenants"), [
      "Tenant", "running", "waiting", "preempted", "device blocks", "host blocks", "prompt tokens", "output tokens", "device time", "last minute",
    ]);
  }

  show(live) {
    live.tenants.forEach((tenant, number) => {
      const { cells } = this.table.row(number);
      const { running, waiting, preempted, device_blocks, host_blocks, used } = tenant;
      write(cells[0], tenant.tenant);
      [running, waiting, preempted, device_blocks, host_blocks]
        .forEach((value, column) => write(cells[column + 1], count(value)));
      const shown = used === null ? ["–", "–", "–", "–"]
        : [count(used.prompt_tokens), count(used.output_tokens), time(1_000 * used.device_s), percent(used.recent_share)];
      shown.forEach((text, column) => write(cells[column + 6], text));
    });
    this.table.cut(live.tenants.length);
    const rest = live.tenants_total - live.tenants.length;
    write(byId("tenants-title"), rest > 0 ? `Tenants, without ${count(rest)} smaller ones` : "Tenants");
  }
}
