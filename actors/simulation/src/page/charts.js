"use strict";
// What draws: scales, axes, curves and memory. It knows nothing of the page around a chart.

const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "12 4", "4 4", "1 4", "14 3 1 3"];

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function seconds(us, digits = 3) {
  return (us / 1e6).toFixed(digits) + " s";
}

function milliseconds(us) {
  const ms = us / 1000;
  return ms >= 10000 ? (ms / 1000).toFixed(1) + " s" : ms.toFixed(ms < 10 ? 1 : 0) + " ms";
}

/// Round times between two, at most `most` of them.
function ticks(from, to, most) {
  const rough = Math.max((to - from) / most, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return { found, digits: Math.max(0, Math.min(6, 6 - Math.floor(Math.log10(step)))) };
}

function timeAxis(view, left, width, height) {
  const axis = shape("g");
  const { found, digits } = ticks(view.from, view.to, Math.max(2, (width - left) / 110));
  for (const at of found) {
    const x = left + ((at - view.from) / (view.to - view.from)) * (width - left);
    axis.append(shape("line", { class: "axis", x1: x, x2: x, y1: 0, y2: height - 14 }));
    const anchor = x > width - 30 ? "end" : "middle";
    const label = shape("text", { class: "soft", x: Math.min(x, width - 2), y: height - 2, "text-anchor": anchor });
    label.textContent = seconds(at, digits);
    axis.append(label);
  }
  return axis;
}

/// Most blocks in use over time, as parts of all, and where preemptions fell.
function memoryChart(policy, view, left, width) {
  const height = 118;
  const top = 16;
  const bottom = 98;
  const chart = shape("svg", { class: "time", width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  chart.append(timeAxis(view, left, width, height));
  for (const [share, y] of [["100 %", top], ["0 %", bottom]]) {
    const label = shape("text", { class: "soft", x: left - 6, y: y + 4, "text-anchor": "end" });
    label.textContent = share;
    chart.append(label, shape("line", { class: "axis", x1: left, x2: width, y1: y, y2: y }));
  }
  const [whole, near] = policy.pressure;
  const inside = near.from_us <= view.from && view.to <= near.to_us;
  const source = inside ? near : whole;
  const at = (bucket) => source.from_us + (bucket * (source.to_us - source.from_us)) / source.device.length;
  const x = (us) => left + ((us - view.from) / (view.to - view.from)) * (width - left);
  const line = (used, all) => {
    let path = "";
    let last = 0;
    used.forEach((value, bucket) => {
      last = value ?? last;
      const [begin, end] = [at(bucket), at(bucket + 1)];
      if (end < view.from || begin > view.to) return;
      const y = (bottom - (last / all) * (bottom - top)).toFixed(1);
      const [a, b] = [x(Math.max(begin, view.from)), x(Math.min(end, view.to))];
      path += `${path ? "L" : "M"}${a.toFixed(1)} ${y}L${b.toFixed(1)} ${y}`;
    });
    return path;
  };
  chart.append(shape("path", { class: "device", d: line(source.device, Math.max(1, policy.device_blocks)) }));
  if (policy.host_blocks > 0) chart.append(shape("path", { class: "host", d: line(source.host, policy.host_blocks) }));
  let seen = 0;
  source.preempted.forEach((count, bucket) => {
    const middle = (at(bucket) + at(bucket + 1)) / 2;
    if (count === 0 || middle < view.from || middle > view.to) return;
    seen += count;
    const size = Math.min(7, 3 + count);
    const px = x(middle);
    const mark = shape("path", { class: "mark", d: `M${px - size / 2} 2L${px + size / 2} 2L${px} ${2 + size}Z` });
    const title = shape("title");
    title.textContent = `${count} preemption${count > 1 ? "s" : ""} at ${seconds(middle)}`;
    mark.append(title);
    chart.append(mark);
  });
  const most = Math.max(0, ...source.device.map((value) => value ?? 0));
  chart.setAttribute("aria-label", `Memory of ${policy.name}: at most ${most} of ${policy.device_blocks} device blocks
    in use, ${seen} preemptions from ${seconds(view.from)} to ${seconds(view.to)}`);
  return chart;
}

/// One tier's times to the first token, a line for each policy.
function curveChart(tier, name, data) {
  const [width, height, left, right, top, bottom] = [430, 250, 44, 12, 10, 218];
  const lines = data.policies.map((policy) => policy.curves.find((curve) => curve.tier === tier));
  const time = (bucket) => 0.1 * 10 ** ((bucket + 1) / data.curve_buckets);
  const all = lines.flatMap((line) => (line ? line.points.map(([bucket]) => bucket) : []));
  const first = Math.floor(Math.log10(time(Math.min(...all, 200) - 1)));
  const last = Math.max(first + 1, Math.ceil(Math.log10(time(Math.max(...all, 200)))));
  const x = (ms) => left + ((Math.log10(ms) - first) / (last - first)) * (width - left - right);
  const y = (share) => bottom - share * (bottom - top);
  const chart = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  for (let decade = first; decade <= last; decade += 1) {
    const at = x(10 ** decade);
    const label = shape("text", { class: "soft", x: at, y: bottom + 14, "text-anchor": "middle" });
    label.textContent = decade >= 3 ? `${10 ** (decade - 3)} s` : `${10 ** decade} ms`;
    chart.append(shape("line", { class: "axis", x1: at, x2: at, y1: top, y2: bottom }), label);
  }
  for (const share of [0, 0.5, 0.9, 1]) {
    const label = shape("text", { class: "soft", x: left - 5, y: y(share) + 4, "text-anchor": "end" });
    label.textContent = `${share * 100} %`;
    chart.append(shape("line", { class: "axis", x1: left, x2: width - right, y1: y(share), y2: y(share) }), label);
  }
  const told = [];
  lines.forEach((line, number) => {
    if (!line || line.points.length === 0) return;
    let path = `M${left} ${y(0)}`;
    let before = 0;
    for (const [bucket, answered] of line.points) {
      const at = x(time(bucket)).toFixed(1);
      path += `L${at} ${y(before).toFixed(1)}L${at} ${y(answered / line.requests).toFixed(1)}`;
      before = answered / line.requests;
    }
    path += `L${width - right} ${y(before).toFixed(1)}`;
    chart.append(shape("path", { class: `curve c${number}`, "stroke-dasharray": DASHES[number], d: path }));
    const half = line.points.find(([, answered]) => answered * 2 >= line.requests);
    told.push(`${data.policies[number].name}: half within ${half ? milliseconds(time(half[0]) * 1000) : "never"}`);
  });
  chart.setAttribute("aria-label", `Time to the first token, ${name}. ${told.join("; ")}`);
  return element("figure", {}, element("figcaption", {}, name), chart);
}
