// Small charts of a series over the last minutes.

import { fitted } from "./elements.js";
import { palette } from "./palette.js";

/** Time that a chart shows, ms. */
const SPAN_MS = 120_000;
const HEIGHT = 34;

/** Draws a series as an area under a line, from 0 to the largest value that is shown. */
export function drawSeries(canvas, series, now) {
  const width = canvas.parentElement.clientWidth - 24;
  if (width <= 0) return;
  const context = fitted(canvas, width, HEIGHT);
  const { soft, line, standard } = palette();
  context.strokeStyle = line;
  context.beginPath();
  context.moveTo(0, HEIGHT - 0.5);
  context.lineTo(width, HEIGHT - 0.5);
  context.stroke();
  let first = series.times.length;
  let most = 1e-9;
  while (first > 0 && now - series.times[first - 1] <= SPAN_MS) {
    first -= 1;
    most = Math.max(most, series.values[first]);
  }
  if (first >= series.times.length) return;
  const x = (time) => width * (1 - (now - time) / SPAN_MS);
  const y = (value) => HEIGHT - 1 - (value / most) * (HEIGHT - 5);
  context.beginPath();
  for (let at = first; at < series.times.length; at += 1) context.lineTo(x(series.times[at]), y(series.values[at]));
  context.strokeStyle = soft;
  context.lineWidth = 1.4;
  context.stroke();
  context.lineTo(x(series.times[series.times.length - 1]), HEIGHT);
  context.lineTo(x(series.times[first]), HEIGHT);
  context.globalAlpha = 0.16;
  context.fillStyle = standard;
  context.fill();
  context.globalAlpha = 1;
}
