//! Changes of settings while the server runs: which settings an operator may change, and how far.

use crate::load::{LoadError, Loader, Origin};
use crate::{EngineSettings, FIELDS, Field, ServerSettings};

/// Tables whose settings may be changed while the server runs.
const TABLES: [&str; 8] = [
    "scheduler",
    "preemption",
    "shedding",
    "shares",
    "patience",
    "admission",
    "slo",
    "reservation",
];
/// Settings of these tables that stay as they were at the start, because memory was set aside by them.
const FIXED: [&str; 5] = [
    "scheduler.steps_in_flight",
    "preemption.max_in_transit_mib",
    "admission.max_requests",
    "slo.window_s",
    "slo.max_tenants",
];
/// Settings that may not exceed their value at the start, for the same reason.
const AT_MOST: [&str; 2] = ["scheduler.max_num_seqs", "scheduler.max_num_batched_tokens"];

/// Reason why settings cannot be changed while the server runs. Nothing is changed then.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// A setting is unknown, its value is not allowed, or values cannot go together.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The setting cannot be changed while the server runs.
    #[error(
        "{path} cannot be changed while the server runs; restart the server with another value"
    )]
    Fixed {
        /// Name of the setting.
        path: String,
    },
    /// The value is larger than the one at the start.
    #[error("{path} = {value} is more than {most}, the value that the server was started with")]
    TooLarge {
        /// Name of the setting.
        path: &'static str,
        /// Value that was asked for.
        value: u32,
        /// Largest value that is allowed.
        most: u32,
    },
}

/// Whether the setting of this name may be changed while the server runs.
fn is_changeable(path: &str) -> bool {
    let table = path.split('.').next().unwrap_or_default();
    TABLES.contains(&table) && !FIXED.contains(&path)
}

/// Returns the settings that an operator may change while the server runs, each with its largest value if that depends
/// on how the server was started.
pub fn changeable(started: &EngineSettings) -> Vec<(&'static Field, Option<u32>)> {
    let fields = FIELDS.iter().filter(|field| is_changeable(&field.path));
    fields.map(|field| (field, at_most(&field.path, started))).collect()
}

/// Returns the largest value of a setting that may not exceed its value at the start.
fn at_most(path: &str, of: &EngineSettings) -> Option<u32> {
    let position = AT_MOST.iter().position(|limited| *limited == path)?;
    Some([of.scheduler.max_num_seqs, of.scheduler.max_num_batched_tokens][position])
}

/// Returns the settings `current` after all of `changes` (names and values). If `scheduler.policy` is among them, all
/// settings that the policy's name stands for change with it. The result is checked as a whole. `started` holds the
/// settings at the start of the server.
///
/// # Errors
/// [`ChangeError`], which names the setting and what is allowed.
pub fn changed(
    current: &EngineSettings,
    started: &EngineSettings,
    changes: &[(String, String)],
) -> Result<EngineSettings, ChangeError> {
    let mut base = ServerSettings { engine: current.clone(), ..ServerSettings::default() };
    // `slo.max_tenants` needs API keys, which was checked at the start.
    base.http.keys_file = Some("of the start".to_owned());
    let mut loader = Loader::over(base);
    for (path, value) in changes {
        loader.named(path, value, Origin::Request)?;
    }
    if let Some(path) = loader.given().find(|path| !is_changeable(path)) {
        return Err(ChangeError::Fixed { path: path.to_owned() });
    }
    let (settings, _) = loader.finish()?;
    let mut engine = settings.engine;
    // These settings stay as they were at the start, because they cannot be changed while the server runs. The preset
    // of a policy may turn the prefix cache on or off.
    engine.scheduler.steps_in_flight = started.scheduler.steps_in_flight;
    engine.preemption.max_in_transit_mib = started.preemption.max_in_transit_mib;
    engine.prefix_cache = started.prefix_cache.clone();
    for path in AT_MOST {
        let (value, most) = (at_most(path, &engine), at_most(path, started));
        if let (Some(value), Some(most)) = (value, most)
            && value > most
        {
            return Err(ChangeError::TooLarge { path, value, most });
        }
    }
    Ok(engine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Policy, Reservation, Target};

    fn change(changes: &[(&str, &str)]) -> Result<EngineSettings, String> {
        let current = EngineSettings::default();
        let changes: Vec<(String, String)> =
            changes.iter().map(|(path, value)| (path.to_string(), value.to_string())).collect();
        changed(&current, &current, &changes).map_err(|error| error.to_string())
    }

    #[test]
    fn a_server_with_metrics_of_tenants_takes_changes_too() {
        let mut current = EngineSettings::default();
        current.slo.max_tenants = 10;
        let change = [("patience.standard_s".to_owned(), "33".to_owned())];
        let changed = changed(&current, &current, &change).unwrap();
        assert_eq!((changed.patience.standard_s, changed.slo.max_tenants), (33.0, 10));
    }

    #[test]
    fn changes_are_applied_together_and_the_rest_stays() {
        let changed =
            change(&[("shares.premium_percent", "50"), ("shares.standard_percent", "20")]);
        let mut expected = EngineSettings::default();
        if let Ok(changed) = &changed {
            assert_eq!(
                (changed.shares.premium_percent, changed.shares.standard_percent),
                (50.0, 20.0)
            );
        }
        expected.patience.standard_s = 33.0;
        assert_eq!(change(&[("patience.standard_s", "33")]).unwrap(), expected);
    }

    #[test]
    fn targets_and_reservations_are_checked_with_what_is_in_effect() {
        let changed = change(&[
            ("slo.premium.ttft_ms", "150"),
            ("slo.standard.e2e_ms", "none"),
            ("slo.premium.assurance", "0.99"),
            ("slo.requests_may_tighten", "true"),
            ("reservation.kind", "hard"),
            ("reservation.premium_blocks_percent", "30"),
        ])
        .unwrap();
        assert_eq!(changed.slo.premium.ttft_ms, Target::Ms(150.0));
        assert_eq!(changed.slo.standard.e2e_ms, Target::None);
        assert_eq!((changed.slo.assurance(), changed.slo.requests_may_tighten), (0.99, true));
        assert_eq!(changed.reservation.kind, Reservation::Hard);
        assert_eq!(changed.reservation.premium_blocks_percent, 30.0);
        let started = EngineSettings::default();
        let next = |path: &str, value: &str| {
            super::changed(&changed, &started, &[(path.to_owned(), value.to_owned())])
        };
        assert_eq!(next("slo.premium.ttft_ms", "auto").unwrap().slo.premium.ttft_ms, Target::Auto);
        for (path, value) in [
            ("reservation.standard_blocks_percent", "61"),
            ("slo.standard.ttft_ms_per_token", "0.5"),
            ("slo.premium.assurance", "1"),
            ("slo.premium.ttft_ms", "soon"),
            ("slo.premium.ttft_ms", "1e308"),
            ("slo.premium.ttft_ms", "0"),
        ] {
            let why = next(path, value).expect_err(path).to_string();
            assert!(why.contains(path), "{why}");
        }
    }

    #[test]
    fn a_policy_brings_its_settings_but_not_its_sizes() {
        let changed = change(&[("scheduler.policy", "fcfs")]).unwrap();
        let mut expected = EngineSettings::default();
        let (sizes, copies) = (expected.scheduler, expected.preemption.max_in_transit_mib);
        expected.use_policy(Policy::Fcfs);
        assert_eq!(changed.scheduler.order, expected.scheduler.order);
        assert_eq!(changed.scheduler.steps_in_flight, sizes.steps_in_flight);
        assert_eq!(changed.preemption.max_in_transit_mib, copies);
        assert_eq!(changed.prefix_cache, EngineSettings::default().prefix_cache);
    }

    #[test]
    fn what_cannot_be_changed_says_so() {
        let refused = |path: &str, value: &str| change(&[(path, value)]).unwrap_err();
        for path in [
            "http.listen",
            "admission.max_requests",
            "slo.window_s",
            "slo.max_tenants",
            "stream.buffer_tokens",
        ] {
            let value = if path == "http.listen" { "127.0.0.1:1" } else { "100" };
            assert!(refused(path, value).contains("cannot be changed"), "{path}");
        }
        assert!(refused("scheduler.max_num_batched_tokens", "20000").contains("started with"));
        assert!(refused("patience.standard_s", "soon").contains("patience.standard_s = \"soon\""));
        assert!(refused("patience.standrad_s", "5").contains("did you mean patience.standard_s?"));
        assert!(
            change(&[("patience.standard_s", "5"), ("shares.x", "1")]).is_err(),
            "all or nothing"
        );
    }
}
