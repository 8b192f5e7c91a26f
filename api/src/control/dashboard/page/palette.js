// Colours and patterns of canvases. Each meaning has a shape beside its colour, so that no colour is needed to tell
// them apart.

const NAMES = ["premium", "standard", "background", "other", "free", "cached", "waiting", "preempted", "text", "soft", "line",
  "card", "good", "bad", "shade"];
let colours = null;

/** Returns the colours of the style sheet, which has light and dark ones. */
export function palette() {
  if (!colours) {
    const style = getComputedStyle(document.documentElement);
    colours = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }
  return colours;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colours = null; });

/** Draws oblique lines in a box. */
export function hatch(context, [x, y, width, height], colour, gap = 5) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = 1.2;
  context.beginPath();
  // Begin at a multiple of the gap, so that the lines do not move when the box grows.
  for (let at = Math.floor((x - height) / gap) * gap; at < x + width; at += gap) {
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
  }
  context.stroke();
  context.restore();
}
