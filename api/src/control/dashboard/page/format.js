// Numbers as texts.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1, signDisplay: "negative" });

export const count = (number) => whole.format(number);

/** A rate: with one digit behind the point below 10. */
export const rate = (number) => (number > 0 && number < 9.95 ? tenth.format(number) : whole.format(number));

/** A time of so many milliseconds. */
export function time(ms) {
  if (ms === null || ms === undefined) return "–";
  const size = Math.abs(ms);
  if (size < 9.95) return `${tenth.format(ms)} ms`;
  if (size < 1_999.5) return `${whole.format(ms)} ms`;
  if (size < 119_950) return `${tenth.format(ms / 1_000)} s`;
  return `${whole.format(ms / 60_000)} min`;
}

/** A share from 0 to 1. All and nothing are told only where they are exact. */
export function percent(share) {
  const text = tenth.format(100 * share);
  if (text === "100.0") return Math.abs(share - 1) < 1e-9 ? "100 %" : "99.9 %";
  return `${text} %`;
}

/** A short name of a request: the client's id, or the end of the server's. */
export function shortName(row) {
  const made = /^(req|chatcmpl|cmpl)-/.test(row.request_id);
  return made ? `#${row.seq}` : row.request_id;
}
