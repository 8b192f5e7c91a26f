// The live page: polls the server, and passes each document to the parts of the page.

import { drawSeries } from "./charts.js";
import { Chosen } from "./chosen.js";
import { hasKey, Poll, Refused, useKey } from "./client.js";
import { byId, write } from "./elements.js";
import { Events } from "./events.js";
import { count, rate, time } from "./format.js";
import { Histories } from "./histories.js";
import { Lanes } from "./lanes.js";
import { Pools } from "./pools.js";
import { Rates } from "./rates.js";
import { Requests } from "./requests.js";
import { Latencies, Tenants, Tiers } from "./tables.js";

/** Shortest time between two drawings of the lanes, ms; where they move slowly, they are drawn for each two pixels. */
const FRAME_MS = 100;
const CHARTS = ["output", "prefill", "step", "waiting", "preemption"];

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const parts = { tiers: new Tiers(), latencies: new Latencies(), tenants: new Tenants(), pools: new Pools(),
  lanes: new Lanes(), events: new Events() };
const chosen = new Chosen(() => poll.now());
const requests = new Requests((seq) => {
  const history = life?.histories.of.get(seq);
  if (history) chosen.choose(history);
});
/** What the page knows of the server since it was started: null before the first document. */
let life = null;
let lost = false;

function seen(live) {
  if (!life || life.started !== live.started_unix_s || live.engine_ms < life.live.engine_ms) begin(live);
  else if (lost) parts.events.note("the connection is back");
  lost = false;
  life.live = live;
  life.at = performance.now();
  life.histories.add(live);
  chosen.connect(true);
  byId("main").hidden = false;
  byId("key-form").hidden = true;
  byId("forget").hidden = !hasKey();
  linked("live", "good");
  showFigures(live, life.rates.add(live));
  parts.tiers.show(live);
  parts.latencies.show(live.tiers);
  parts.tenants.show(live);
  parts.pools.show(live.pools);
  showRequests();
  // A browser gives all tabs of a server six connections together, so a hidden page keeps none open.
  if (document.hidden) parts.events.stop();
  else parts.events.listen();
}

/** Begins a new life of the server: nothing of the one before counts. */
function begin(live) {
  if (life) parts.events.note("the server was started again");
  life = { started: live.started_unix_s, live, at: performance.now(), rates: new Rates(), histories: new Histories() };
  requests.chosen = null;
  chosen.clear();
  write(byId("server"), `${live.model} · ${live.device} · version ${live.version}`);
  document.title = `${live.model} · Tiercel`;
}

function showFigures(live, now) {
  const value = (id, text, unit) => {
    const place = byId(id);
    if (!place.firstElementChild) place.replaceChildren("", document.createElement("small"));
    if (place.firstChild.data !== text) place.firstChild.data = text;
    write(place.firstElementChild, ` ${unit}`);
  };
  const { counters, step_time: steps, engine } = live;
  value("output-rate", rate(now.output), `${count(counters.output_tokens)} in all`);
  value("prefill-rate", rate(now.prefill), `${count(counters.prefill_tokens)} in all`);
  value("step-time", time(steps.p50_ms), `p99 ${time(steps.p99_ms)}`);
  value("waiting", count(now.waiting), `${count(engine.running)} run, at most ${count(engine.max_num_seqs)}`);
  value("preemption-rate", count(now.preemptions), `${count(counters.swaps)} swap, ${count(counters.recomputes)} recompute`);
  const series = life.rates.shown;
  const of = { ...series, preemption: series.preemptions };
  for (const name of CHARTS) drawSeries(byId(`${name}-chart`), of[name], live.engine_ms);
  const critical = Object.entries(live.pressure).filter(([, level]) => level !== "none");
  const pressure = critical.map(([resource, level]) => `${resource}: ${level}`).join(", ");
  const left = live.deadline_in_ms === null ? "" : `, ${time(live.deadline_in_ms)} left`;
  const stage = byId("stage");
  stage.hidden = false;
  write(stage, `${live.stage}${left} · step ${count(live.step)}${pressure ? ` · pressure on ${pressure}` : ""}`);
  stage.className = live.stage === "ready" ? "pill good" : "pill bad";
}

function showRequests() {
  const { live, histories } = life;
  const rows = histories.rows(live.engine_ms - parts.lanes.spanMs);
  parts.lanes.rows = rows;
  requests.show(rows, live);
  const history = histories.of.get(requests.chosen);
  chosen.follow(history);
  if (calm.matches) parts.lanes.draw(live.engine_ms);
}

/** Says how the connection is. */
function linked(text, kind) {
  const link = byId("link");
  write(link, text);
  link.className = `pill ${kind}`;
  document.body.classList.toggle("lost", kind === "bad" && life !== null);
  byId("banner").hidden = kind !== "bad" || life === null;
}

function failed(error, retryMs) {
  parts.events.stop();
  chosen.connect(false);
  const refused = error instanceof Refused ? error : null;
  if (refused?.status === 401 || refused?.code === "role_needed") return askForKey(refused);
  if (refused?.code === "loading") return linked("the model is loading", "");
  if (!lost && life) parts.events.note("the connection is lost");
  lost = true;
  const why = refused ? `the server answers: ${refused.message}` : "no connection to the server";
  linked(`${refused ? "error" : "connection lost"}, next try in ${time(retryMs)}`, "bad");
  write(byId("banner"), `${why}. The figures below are old; the page tries again by itself.`);
}

function askForKey(refused) {
  const note = !hasKey() ? "This server wants an API key with the role viewer or operator."
    : refused.code === "role_needed"
      ? "This key has no role. The page needs a key whose entry in the keys file has role = \"viewer\" or \"operator\"."
      : `This key is not accepted: ${refused.message}`;
  write(byId("key-note"), note);
  byId("main").hidden = true;
  byId("forget").hidden = !hasKey();
  const form = byId("key-form");
  if (form.hidden) {
    form.hidden = false;
    byId("key").focus();
  }
  linked(hasKey() ? "the key is refused" : "waiting for a key", "");
}

/** Draws the lanes some times a second, as far as they have moved since the last document. */
function animate() {
  if (life && !lost && !document.hidden && !calm.matches) {
    const since = Math.min(3_000, performance.now() - life.at);
    requestAnimationFrame(() => parts.lanes.draw(life.live.engine_ms + since));
  }
  const pixel = parts.lanes.spanMs / Math.max(1, byId("lane-canvas").clientWidth);
  setTimeout(animate, Math.min(500, Math.max(FRAME_MS, 2 * pixel)));
}

function redraw() {
  parts.lanes.drawLegend();
  parts.lanes.axisState = null;
  if (!life) return;
  parts.pools.show(life.live.pools);
  showRequests();
  parts.lanes.draw(life.live.engine_ms);
}

const poll = new Poll(seen, failed);
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value.trim());
  byId("key").value = "";
  poll.now();
});
byId("forget").addEventListener("click", () => {
  useKey(null);
  parts.events.stop();
  poll.now();
});
byId("span").addEventListener("change", redraw);
addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
redraw();
animate();
poll.run();
