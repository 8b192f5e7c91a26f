//! Pressure: how near each resource of the engine is to its limit.

use tiercel_config::PressureSettings;
use tiercel_device::Timestamp;

/// Hysteresis of pressure levels: how far usage must fall below the threshold of a level before the level is left,
/// percent of the resource's total. It keeps a load near the threshold from flapping between levels.
const HYSTERESIS_PERCENT: f64 = 5.0;
/// How long usage must stay more than [`HYSTERESIS_PERCENT`] below the threshold of a pressure level before the level
/// is left, us, because a busy engine may fill up again at once.
const CALM_US: u64 = 5_000_000;

/// Pressure level of a resource (none, warning or critical): how near the resource is to its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    /// No pressure: enough of the resource is left.
    #[default]
    None,
    /// Warning: little of the resource is left.
    Warning,
    /// Critical: almost nothing of the resource is left.
    Critical,
}

impl Level {
    /// Returns the name of the pressure level, for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Level::None => "none",
            Level::Warning => "warning",
            Level::Critical => "critical",
        }
    }
}

/// A resource of the engine that can run out, and whose pressure level is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// KV blocks of the device pool.
    Blocks,
    /// Slots of a step, one for each sequence in the batch.
    Slots,
    /// KV blocks of the host pool.
    Host,
    /// Room for KV blocks in transit between the device pool and the host pool, up to the limit on such blocks.
    Copies,
    /// Output tokens that may be buffered for the clients.
    Outputs,
}

impl Resource {
    /// All resources whose pressure level is watched.
    pub const ALL: [Resource; 5] =
        [Resource::Blocks, Resource::Slots, Resource::Host, Resource::Copies, Resource::Outputs];

    /// Returns the name of the resource, for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Resource::Blocks => "blocks",
            Resource::Slots => "slots",
            Resource::Host => "host",
            Resource::Copies => "copies",
            Resource::Outputs => "outputs",
        }
    }
}

/// Change of a resource's pressure level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transition {
    /// Resource whose pressure level changed.
    pub resource: Resource,
    /// Pressure level before the change.
    pub from: Level,
    /// Pressure level after the change.
    pub to: Level,
    /// Share of the resource that is in use, percent.
    pub used_percent: f64,
}

/// Pressure levels of all resources, and the state needed for their hysteresis.
#[derive(Debug, Clone)]
pub struct Pressure {
    settings: PressureSettings,
    levels: [Level; Resource::ALL.len()],
    /// For each resource whose usage is more than [`HYSTERESIS_PERCENT`] below the threshold of its present pressure
    /// level: the time since when it is, and the highest level that the usage alone would have had since.
    below: [Option<(Timestamp, Level)>; Resource::ALL.len()],
}

impl Pressure {
    /// Returns a state in which no resource is under pressure.
    pub fn new(settings: PressureSettings) -> Pressure {
        Pressure { settings, levels: Default::default(), below: Default::default() }
    }

    /// Returns the pressure levels, in the order of [`Resource::ALL`].
    pub fn levels(&self) -> [Level; Resource::ALL.len()] {
        self.levels
    }

    /// Records that `used_percent` of a resource is in use at time `now`. Returns the change of its pressure level, if
    /// there is one.
    pub fn observe(
        &mut self,
        resource: Resource,
        used_percent: f64,
        now: Timestamp,
    ) -> Option<Transition> {
        let from = self.levels[resource as usize];
        let seen = self.level(resource, used_percent, from);
        let below = &mut self.below[resource as usize];
        let to = if seen >= from {
            *below = None;
            seen
        } else {
            let (since, highest) = below.map_or((now, seen), |(at, level)| (at, level.max(seen)));
            let calm = now.since_us(since) >= CALM_US;
            *below = (!calm).then_some((since, highest));
            if calm { highest } else { from }
        };
        self.levels[resource as usize] = to;
        (from != to).then_some(Transition { resource, from, to, used_percent })
    }

    fn level(&self, resource: Resource, used_percent: f64, from: Level) -> Level {
        let s = &self.settings;
        let (warning, critical) = match resource {
            Resource::Blocks => (s.blocks_warning_percent, s.blocks_critical_percent),
            _ => (s.warning_percent, s.critical_percent),
        };
        let reached = |level: Level, percent: f64| {
            let held = if from >= level { HYSTERESIS_PERCENT } else { 0.0 };
            used_percent >= percent - held
        };
        if reached(Level::Critical, critical) {
            Level::Critical
        } else if reached(Level::Warning, warning) {
            Level::Warning
        } else {
            Level::None
        }
    }
}

/// Returns `used` as a share of `total`, percent; 0 if `total` is 0.
pub fn percent(used: u64, total: u64) -> f64 {
    if total == 0 { 0.0 } else { 100.0 * used as f64 / total as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Level::{Critical, None as Calm, Warning};

    #[test]
    fn levels_have_the_names_that_metrics_and_logs_show() {
        assert_eq!([Calm, Warning, Critical].map(Level::name), ["none", "warning", "critical"]);
    }

    /// Returns the pressure level after each usage in `used`. Asserts that a transition is reported if and only if the
    /// level changed.
    fn levels(resource: Resource, used: &[f64]) -> Vec<Level> {
        let mut pressure = Pressure::new(PressureSettings::default());
        let mut before = Calm;
        let mut now = Timestamp(0);
        let seen = used.iter().map(|used| {
            // Observe each percentage in use twice, 5 s apart, so that a resource that may leave its pressure level
            // does so.
            let first = pressure.observe(resource, *used, now);
            now = now + CALM_US;
            let transition = first.or_else(|| pressure.observe(resource, *used, now));
            let level = pressure.levels()[resource as usize];
            let expected = (before != level).then_some((before, level));
            assert_eq!(transition.map(|t| (t.from, t.to)), expected, "{resource:?} at {used}");
            before = level;
            level
        });
        seen.collect()
    }

    #[test]
    fn every_transition_up_and_down_of_every_resource() {
        for resource in Resource::ALL {
            let (warning, critical) = match resource {
                Resource::Blocks => (85.0, 95.0),
                _ => (90.0, 99.0),
            };
            let used = [warning - 0.1, warning, critical - 0.1, critical, 100.0];
            assert_eq!(levels(resource, &used), [Calm, Warning, Warning, Critical, Critical]);
            let used = [100.0, critical - 5.0, critical - 5.1, warning - 5.0, warning - 5.1];
            assert_eq!(levels(resource, &used), [Critical, Critical, Warning, Warning, Calm]);
            assert_eq!(levels(resource, &[100.0, 0.0, 100.0]), [Critical, Calm, Critical]);
        }
    }

    #[test]
    fn a_load_that_hovers_does_not_flap() {
        let used = [84.0, 85.0, 84.0, 85.0, 81.0, 86.0];
        let expected = [Calm, Warning, Warning, Warning, Warning, Warning];
        assert_eq!(levels(Resource::Blocks, &used), expected);
    }

    #[test]
    fn a_level_is_left_after_a_while_for_the_highest_seen_in_it() {
        let mut pressure = Pressure::new(PressureSettings::default());
        let mut level = |used, s: u64| {
            pressure.observe(Resource::Blocks, used, Timestamp(s * 1_000_000));
            pressure.levels()[Resource::Blocks as usize]
        };
        assert_eq!(level(100.0, 0), Critical);
        assert_eq!([level(0.0, 1), level(87.0, 3), level(0.0, 5)], [Critical; 3]);
        assert_eq!(level(0.0, 6), Warning, "it was that 3 s ago");
        assert_eq!([level(0.0, 7), level(99.0, 8)], [Warning, Critical]);
        assert_eq!([level(0.0, 9), level(96.0, 12), level(0.0, 13)], [Critical; 3]);
        assert_eq!([level(0.0, 17), level(0.0, 18)], [Critical, Calm]);
    }

    #[test]
    fn resources_are_apart_and_what_is_not_there_is_not_full() {
        let mut pressure = Pressure::new(PressureSettings::default());
        pressure.observe(Resource::Slots, 100.0, Timestamp(0));
        assert_eq!(pressure.levels(), [Calm, Critical, Calm, Calm, Calm]);
        assert_eq!((percent(0, 0), percent(1, 4)), (0.0, 25.0));
    }
}
