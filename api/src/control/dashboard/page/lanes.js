// Draws the lanes: the states of each request over time. Only the rows in view are drawn.

import { byId, fitted, make } from "./elements.js";
import { hatch, palette } from "./palette.js";

export const ROW = 22;
const STATES = [["waiting", "waiting"], ["prefill", "prefill"], ["decode", "decode"], ["preempted", "preempted"],
  ["copying", "blocks copied"], ["paused", "paused"]];

/** Draws a stretch of a state. Heights and patterns differ, so that no colour is needed to tell the states apart. */
function drawStretch(context, [x, y, width], state, tier) {
  const colours = palette();
  const colour = colours[tier];
  context.fillStyle = colour;
  if (state === "waiting" || state === "earlier") {
    context.fillStyle = colours.waiting;
    context.fillRect(x, y + 10, width, 2);
  } else if (state === "prefill") {
    context.globalAlpha = 0.35;
    context.fillRect(x, y + 5, width, 12);
    context.globalAlpha = 1;
    hatch(context, [x, y + 5, width, 12], colour, 4);
  } else if (state === "decode") {
    context.fillRect(x, y + 4, width, 14);
  } else if (state === "preempted") {
    context.strokeStyle = colours.preempted;
    context.lineWidth = 1.5;
    context.strokeRect(x + 0.75, y + 7.75, Math.max(0.5, width - 1.5), 6.5);
  } else if (state === "copying") {
    context.fillStyle = colours.preempted;
    for (let at = x; at < x + width; at += 5) context.fillRect(at, y + 7, Math.min(2.5, x + width - at), 8);
  } else if (state === "paused") {
    context.fillStyle = colours.text;
    context.fillRect(x, y + 2, width, 1.5);
    context.fillRect(x, y + 18.5, width, 1.5);
  }
}

/** A mark at a moment: a triangle for a preemption, a diamond for a move to another tier. */
function drawMark(context, x, y, what) {
  const colours = palette();
  context.beginPath();
  if (what === "preempted") {
    context.fillStyle = colours.preempted;
    context.moveTo(x - 4, y + 1);
    context.lineTo(x + 4, y + 1);
    context.lineTo(x, y + 8);
  } else {
    context.fillStyle = colours.text;
    context.moveTo(x, y + 6);
    context.lineTo(x + 4.5, y + 11);
    context.lineTo(x, y + 16);
    context.lineTo(x - 4.5, y + 11);
  }
  context.fill();
}

function drawLane(context, history, y, x, view) {
  const { tier } = history.row;
  const part = (state, from, to) => {
    if (to <= view.from || from >= view.to) return;
    const begin = x(Math.max(from, view.from));
    drawStretch(context, [begin, y, Math.max(1, x(Math.min(to, view.to)) - begin)], state, tier);
  };
  for (const { state, paused, from, to } of history.stretches(view.to)) {
    part(state, from, to);
    if (paused) part("paused", from, to);
  }
  for (const { from, to } of history.copies) part("copying", from, to);
  for (const moment of history.moments) {
    const marked = moment.what === "preempted" || moment.what === "moved";
    if (marked && moment.at > view.from && moment.at <= view.to) drawMark(context, x(moment.at), y, moment.what);
  }
  if (history.endedAt !== null && history.endedAt > view.from) {
    context.fillStyle = palette().soft;
    context.fillRect(x(Math.min(history.endedAt, view.to)), y + 3, 1.5, 16);
  }
}

/** Draws a time axis: seconds before now. */
function drawAxis(canvas, width, spanMs) {
  const context = fitted(canvas, width, 18);
  const { soft, line } = palette();
  const step = [2_500, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000].find((of) => (of / spanMs) * width >= 64) ?? spanMs;
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = soft;
  context.strokeStyle = line;
  for (let before = 0; before <= spanMs; before += step) {
    const x = width * (1 - before / spanMs);
    context.textAlign = before === 0 ? "right" : x < 24 ? "left" : "center";
    context.fillText(before === 0 ? "now" : `−${before / 1_000} s`, x, 13);
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, 4);
    context.stroke();
  }
}

/** The lanes' canvas over the list of requests. */
export class Lanes {
  constructor() {
    this.box = byId("lanes-box");
    this.canvas = byId("lane-canvas");
    this.axis = byId("axis");
    this.rows = [];
    this.box.addEventListener("scroll", () => this.draw(this.now), { passive: true });
    this.legend();
  }

  legend() {
    this.swatches = STATES.map(([state, text]) => {
      const swatch = make("canvas", { "aria-hidden": "true" });
      byId("lane-legend").append(make("li", {}, swatch, text));
      return [swatch, (context) => drawStretch(context, [0, 0, 26], state, "standard")];
    });
    for (const [what, text] of [["preempted", "preemption"], ["moved", "moved to another tier"]]) {
      const swatch = make("canvas", { "aria-hidden": "true" });
      byId("lane-legend").append(make("li", {}, swatch, text));
      this.swatches.push([swatch, (context) => drawMark(context, 13, 0, what)]);
    }
  }

  /** Draws the swatches, whose colours depend on the style sheet and on the scheme. */
  drawLegend() {
    for (const [swatch, paint] of this.swatches) paint(fitted(swatch, 26, ROW));
  }

  get spanMs() {
    return 1_000 * Number(byId("span").value);
  }

  /** Draws the rows in view up to the time `now` of the engine's clock. */
  draw(now) {
    if (now === undefined) return;
    this.now = now;
    const left = parseFloat(getComputedStyle(this.canvas).left);
    const width = this.box.clientWidth - left;
    const height = this.box.clientHeight;
    if (width <= 0 || height <= 0) return;
    // Keep the canvas within the list, so that it adds nothing to scroll to when the list gets shorter.
    const top = Math.min(this.box.scrollTop, Math.max(0, byId("lanes").offsetHeight - height));
    this.canvas.style.transform = `translateY(${top}px)`;
    const context = fitted(this.canvas, width, height);
    const view = { from: now - this.spanMs, to: now };
    const x = (at) => ((at - view.from) / (view.to - view.from)) * width;
    const first = Math.floor(top / ROW);
    const last = Math.min(this.rows.length, Math.ceil((top + height) / ROW));
    for (let row = first; row < last; row += 1) drawLane(context, this.rows[row], row * ROW - top, x, view);
    const axis = `${width} ${this.spanMs} ${palette().text}`;
    if (axis !== this.axisState) drawAxis(this.axis, width, this.spanMs);
    this.axisState = axis;
  }
}
