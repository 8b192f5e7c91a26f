// What the page computes from successive documents: rates, and their values over the last minutes.

/** Most values of a series: at two documents a second, five minutes. */
const VALUES_MAX = 600;
/** Time over which a rate is the mean, ms. */
const RATE_MS = 2_000;
/** Time over which preemptions a minute are counted, ms. */
const MINUTE_MS = 60_000;

/** A bounded series of values with their times. */
export class Series {
  constructor() {
    this.times = [];
    this.values = [];
  }

  add(time, value) {
    this.times.push(time);
    this.values.push(value);
    if (this.times.length > VALUES_MAX) {
      this.times.shift();
      this.values.shift();
    }
  }

  /** Returns the growth of a counter over the last `ms`, and the time that it took. */
  growth(ms) {
    const last = this.times.length - 1;
    let first = last;
    while (first > 0 && this.times[last] - this.times[first] < ms) first -= 1;
    return last < 1 ? [0, 0] : [this.values[last] - this.values[first], this.times[last] - this.times[first]];
  }
}

/** Series of one server's life; another life begins with a new object. */
export class Rates {
  constructor() {
    this.counters = { output: new Series(), prefill: new Series(), preemptions: new Series() };
    this.shown = { output: new Series(), prefill: new Series(), preemptions: new Series(), step: new Series(),
      waiting: new Series() };
  }

  /** Adds a document; returns the current values. */
  add(live) {
    const at = live.engine_ms;
    const { output_tokens, prefill_tokens, swaps, recomputes, drops } = live.counters;
    this.counters.output.add(at, output_tokens);
    this.counters.prefill.add(at, prefill_tokens);
    this.counters.preemptions.add(at, swaps + recomputes + drops);
    const rate = (series, ms, unit) => {
      const [growth, took] = series.growth(ms);
      return took > 0 ? (growth * unit) / took : 0;
    };
    const now = {
      output: rate(this.counters.output, RATE_MS, 1_000),
      prefill: rate(this.counters.prefill, RATE_MS, 1_000),
      preemptions: this.preemptions(),
      step: live.step_time.p50_ms ?? 0,
      waiting: Object.values(live.tiers).reduce((sum, tier) => sum + tier.waiting, 0),
    };
    for (const [name, value] of Object.entries(now)) this.shown[name].add(at, value);
    return now;
  }

  /**
   * Returns the preemptions of the last minute. A page that was opened later counts the preemptions since then. After a gap
   * between two documents the growth took more than a minute, and the mean over that time counts.
   */
  preemptions() {
    const [growth, took] = this.counters.preemptions.growth(MINUTE_MS);
    return took > MINUTE_MS ? Math.round((growth * MINUTE_MS) / took) : growth;
  }
}
