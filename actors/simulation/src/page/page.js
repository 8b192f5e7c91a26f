// The page: the results, the range of time, and a chart of requests for each policy.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const LEFT = 132;
const ROW = 13;
/// Height of a state's bar: told apart without colour, too.
const HEIGHTS = [3, 9, 9, 5, 7, 3, 7];
const SHORTEST_US = 1000;
const view = { from: data.window_us[0], to: data.window_us[1] };
if (view.to <= view.from) [view.from, view.to] = [0, Math.max(1, data.end_us)];
const opened = { ...view };
const panels = [];

function results() {
  const head = element("tr", {}, ...data.heads.map((text) => element("th", { scope: "col" }, text)));
  const rows = data.rows.map((cells) =>
    element("tr", cells[0] ? { class: "first" } : {}, ...cells.map((text) => element("td", {}, text))));
  byId("results").append(element("thead", {}, head), element("tbody", {}, ...rows));
}

function curves() {
  data.policies.forEach((policy, number) => {
    const key = shape("svg", { width: 34, height: 10, "aria-hidden": "true" });
    key.append(shape("line", { class: `curve c${number}`, x1: 0, x2: 34, y1: 5, y2: 5,
      "stroke-dasharray": DASHES[number] }));
    byId("curve-legend").append(element("span", {}, key, policy.name));
  });
  data.tiers.forEach((name, tier) => {
    const used = data.policies.some((policy) => policy.curves.some((curve) => curve.tier === tier));
    if (used) byId("curves").append(curveChart(tier, name, data));
  });
}

function legend() {
  data.states.forEach((name, state) => {
    const key = shape("svg", { width: 22, height: 10, "aria-hidden": "true" });
    key.append(bar(state, 0, 22, 0.5));
    byId("state-legend").append(element("span", {}, key, name));
  });
  for (const [kind, name] of [["device", "device blocks in use"], ["host", "host blocks in use"]]) {
    const key = shape("svg", { width: 22, height: 10, "aria-hidden": "true" });
    key.append(shape("line", { class: kind, x1: 0, x2: 22, y1: 5, y2: 5 }));
    byId("state-legend").append(element("span", {}, key, name));
  }
  const key = shape("svg", { width: 10, height: 10, "aria-hidden": "true" });
  key.append(shape("path", { class: "mark", d: "M1 1L9 1L5 9Z" }));
  byId("state-legend").append(element("span", {}, key, "preemption"));
}

function bar(state, x, width, top) {
  const height = HEIGHTS[state];
  return shape("rect", { class: `s${state}`, x: x.toFixed(2), width: Math.max(0.6, width).toFixed(2),
    y: top + (9 - height) / 2, height });
}

function shownLanes(policy) {
  const tier = Number(byId("tier").value);
  const order = byId("order").value;
  const overlaps = (lane) => {
    for (let i = 0; i < lane.spans.length; i += 3) {
      if (lane.spans[i + 1] < view.to && lane.spans[i + 2] > view.from) return true;
    }
    return false;
  };
  const lanes = policy.lanes.filter((lane) => (tier < 0 || lane.tier === tier) && overlaps(lane));
  if (order === "tier") lanes.sort((a, b) => a.tier - b.tier || a.seq - b.seq);
  if (order === "preemptions") lanes.sort((a, b) => b.preemptions - a.preemptions || a.seq - b.seq);
  return lanes;
}

function describe(lane) {
  const spent = data.states.map(() => 0);
  for (let i = 0; i < lane.spans.length; i += 3) spent[lane.spans[i]] += lane.spans[i + 2] - lane.spans[i + 1];
  const parts = [`Request ${lane.seq}, ${data.tiers[lane.tier]}: prompt ${lane.prompt}, at most ${lane.max_tokens} tokens`,
    `arrived ${seconds(lane.arrived)}`];
  parts.push(lane.first_token === null ? "no first token"
    : `first token after ${milliseconds(lane.first_token - lane.arrived)}`);
  if (lane.ended !== null) {
    parts.push(`ended (${lane.ending}) at ${seconds(lane.ended)} with ${lane.tokens} tokens`);
    if (lane.tokens > 1 && lane.first_token !== null) {
      parts.push(`${milliseconds((lane.ended - lane.first_token) / (lane.tokens - 1))} a token`);
    }
  } else {
    parts.push("not ended in this run");
  }
  parts.push(`preempted ${lane.preemptions} times`);
  const times = spent.map((us, state) => (us > 0 ? `${data.states[state]} ${milliseconds(us)}` : "")).filter(Boolean);
  return `${parts.join("; ")}. In the window: ${times.join(", ") || "nothing"}.`;
}

function laneRow(panel, lane, row, width) {
  const group = shape("g", { class: "lane", tabindex: "-1", role: "img", "data-seq": lane.seq,
    transform: `translate(0 ${row * ROW})`, "aria-label": lane.text });
  group.append(shape("rect", { class: "back", x: 1, y: 0, width: width - 2, height: ROW }));
  const name = shape("text", { x: 6, y: 10 });
  name.textContent = `${lane.seq} ${data.tiers[lane.tier]}`;
  group.append(name);
  const scale = (width - LEFT) / (view.to - view.from);
  for (let i = 0; i < lane.spans.length; i += 3) {
    const [state, begin, end] = lane.spans.slice(i, i + 3);
    if (end <= view.from || begin >= view.to) continue;
    const from = Math.max(begin, view.from);
    const to = Math.min(end, view.to);
    group.append(bar(state, LEFT + (from - view.from) * scale, (to - from) * scale, 2));
  }
  const title = shape("title");
  title.textContent = lane.text;
  group.append(title);
  group.addEventListener("click", () => choose(panel, lane.seq, false));
  return group;
}

function choose(panel, seq, focus) {
  panel.chosen = seq;
  for (const group of panel.box.querySelectorAll(".lane")) {
    const chosen = Number(group.dataset.seq) === seq;
    group.classList.toggle("chosen", chosen);
    group.setAttribute("tabindex", chosen ? "0" : "-1");
    if (chosen && focus) {
      group.focus({ preventScroll: true });
      group.scrollIntoView({ block: "nearest" });
    }
  }
  const lane = panel.policy.lanes.find((candidate) => candidate.seq === seq);
  panel.detail.textContent = lane ? lane.text : "";
}

function drawPanel(panel, width) {
  panel.stale = false;
  panel.memory.replaceChildren(memoryChart(panel.policy, view, LEFT, width));
  const lanes = shownLanes(panel.policy);
  const height = lanes.length * ROW;
  const chart = shape("svg", { class: "time", width, height: height + 18, viewBox: `0 0 ${width} ${height + 18}` });
  const scale = (width - LEFT) / (view.to - view.from);
  const last = panel.policy.cut_us ?? data.window_us[1];
  for (const [from, to] of [[view.from, data.window_us[0]], [last, view.to]]) {
    const [a, b] = [Math.max(from, view.from), Math.min(to, view.to)];
    if (b > a) chart.append(shape("rect", { class: "outside", x: LEFT + (a - view.from) * scale, y: 0,
      width: (b - a) * scale, height }));
  }
  chart.append(timeAxis(view, LEFT, width, height + 18));
  lanes.forEach((lane, row) => chart.append(laneRow(panel, lane, row, width)));
  const focused = panel.box.contains(document.activeElement);
  panel.box.replaceChildren(chart);
  const first = lanes.some((lane) => lane.seq === panel.chosen) ? panel.chosen : lanes[0]?.seq;
  if (first !== undefined) choose(panel, first, focused);
  panel.count.textContent = `${lanes.length} of ${panel.policy.lanes.length} requests shown.` + panel.note;
}

function draw() {
  const share = (us) => Math.round((1000 * us) / Math.max(1, data.end_us));
  byId("from").value = share(view.from);
  byId("to").value = share(view.to);
  byId("from-text").textContent = seconds(view.from);
  byId("to-text").textContent = seconds(view.to);
  panels.forEach((panel) => { panel.stale = true; });
  drawSeen();
}

/// Draws what is in sight or nearly; the rest when it comes there. Sizes are read before anything is changed.
function drawSeen() {
  const near = (box) => box.bottom > -window.innerHeight && box.top < 2 * window.innerHeight;
  panels.filter((panel) => panel.stale && near(panel.whole.getBoundingClientRect()))
    .map((panel) => [panel, panel.box.clientWidth])
    .forEach(([panel, width]) => drawPanel(panel, Math.max(500, width || 1000)));
}

let planned = false;
function show(from, to) {
  const length = Math.min(data.end_us, Math.max(SHORTEST_US, to - from));
  view.from = Math.min(Math.max(0, from), Math.max(0, data.end_us - length));
  view.to = view.from + Math.max(1, length);
  if (planned) return;
  planned = true;
  requestAnimationFrame(() => { planned = false; draw(); });
}

function zoom(factor, around = (view.from + view.to) / 2) {
  show(around - (around - view.from) * factor, around + (view.to - around) * factor);
}

function pan(share) {
  const by = (view.to - view.from) * share;
  show(view.from + by, view.to + by);
}

function onKey(panel, event) {
  const groups = [...panel.box.querySelectorAll(".lane")];
  const at = groups.findIndex((group) => Number(group.dataset.seq) === panel.chosen);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: groups.length - 1 }[event.key];
  const moves = { ArrowLeft: () => pan(-0.1), ArrowRight: () => pan(0.1), "+": () => zoom(0.7), "=": () => zoom(0.7),
    "-": () => zoom(1 / 0.7) };
  if (to !== undefined && groups[to]) choose(panel, Number(groups[to].dataset.seq), true);
  else if (moves[event.key]) moves[event.key]();
  else return;
  event.preventDefault();
}

function onPointer(panel) {
  let last = null;
  panel.whole.addEventListener("pointerdown", (event) => { last = event.target.closest(".time") ? event.clientX : null; });
  panel.whole.addEventListener("pointermove", (event) => {
    if (last === null || event.buttons === 0) return;
    pan((last - event.clientX) / Math.max(1, panel.box.clientWidth - LEFT));
    last = event.clientX;
  });
  panel.whole.addEventListener("wheel", (event) => {
    if (!event.ctrlKey || !event.target.closest(".time")) return;
    event.preventDefault();
    const box = panel.box.getBoundingClientRect();
    const share = Math.min(1, Math.max(0, (event.clientX - box.left - LEFT) / (box.width - LEFT)));
    zoom(event.deltaY > 0 ? 1.25 : 0.8, view.from + share * (view.to - view.from));
  }, { passive: false });
}

function addPanel(policy) {
  const panel = { policy, chosen: null, memory: element("div"), count: element("p", { class: "note" }),
    box: element("div", { class: "lanes", role: "group", "aria-label": `Requests under ${policy.name}` }),
    detail: element("p", { class: "detail", role: "status" }) };
  panel.note = (policy.left_out > 0 ? ` ${policy.left_out} more of the window have no room on this page.` : "")
    + (policy.cut_us !== null ? ` Nothing after ${seconds(policy.cut_us)} is drawn: there is too much of it.` : "");
  panel.whole = element("section", { class: "policy" }, element("h3", {}, `${policy.name}, seed ${policy.seed}`),
    panel.memory, panel.count, panel.box, panel.detail);
  panel.box.addEventListener("keydown", (event) => onKey(panel, event));
  onPointer(panel);
  policy.lanes.forEach((lane) => { lane.text = describe(lane); });
  byId("policies").append(panel.whole);
  panels.push(panel);
}

function controls() {
  data.tiers.forEach((name, tier) => byId("tier").append(element("option", { value: tier }, name)));
  const at = (id) => (Number(byId(id).value) / 1000) * data.end_us;
  byId("from").addEventListener("input", () => show(at("from"), Math.max(view.to, at("from") + SHORTEST_US)));
  byId("to").addEventListener("input", () => show(Math.min(view.from, at("to") - SHORTEST_US), at("to")));
  const buttons = { "zoom-in": () => zoom(0.5), "zoom-out": () => zoom(2), earlier: () => pan(-0.5), later: () => pan(0.5),
    "show-window": () => show(opened.from, opened.to), "show-run": () => show(0, data.end_us) };
  for (const [id, act] of Object.entries(buttons)) byId(id).addEventListener("click", act);
  for (const id of ["tier", "order"]) byId(id).addEventListener("change", draw);
  window.addEventListener("resize", draw);
  window.addEventListener("scroll", drawSeen, { passive: true });
}

byId("title").textContent = `Tiercel: ${data.workload}`;
byId("facts").textContent = `Load ${data.load} on ${data.profile}, ${seconds(data.end_us, 0)}, noise ${data.noise}, `
  + `seeds ${data.seeds.join(" ")}. Modelled device, simulated time. Sizes: ${data.sizes.join("; ")}.`
  + data.notes.map((note) => ` ${note}.`).join("");
byId("window").textContent = `Requests one by one from ${seconds(data.window_us[0], 1)} to `
  + `${seconds(data.window_us[1], 1)} of the first seed (--html-window chooses); memory for the whole run.`;
results();
curves();
legend();
data.policies.forEach(addPanel);
controls();
draw();
// What is found in the page, printed or read aloud has all of it.
panels.filter((panel) => panel.stale).forEach((panel) => drawPanel(panel, Math.max(500, panel.box.clientWidth)));
