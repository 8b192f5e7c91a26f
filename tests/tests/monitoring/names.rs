//! Tests of the names, types, units and descriptions of metrics, by Prometheus' conventions.

use crate::metrics;

/// Endings of names that are no base units, or that belong into the type.
const WRONG: [&str; 12] = [
    "_ms",
    "_us",
    "_ns",
    "_milliseconds",
    "_microseconds",
    "_minutes",
    "_hours",
    "_percent",
    "_kib",
    "_mib",
    "_count",
    "_sum",
];

#[test]
fn every_metric_has_a_type_and_a_description() {
    let metrics = metrics();
    assert!(metrics.undeclared.is_empty(), "without a type: {:?}", metrics.undeclared);
    assert!(metrics.families.len() > 45, "{}", metrics.families.len());
    for (name, family) in &metrics.families {
        assert!(!family.help.is_empty(), "{name} has no description");
        assert!(["counter", "gauge", "histogram"].contains(&family.kind.as_str()), "{name}");
        assert!(!family.help.ends_with('.'), "{name}: {}", family.help);
    }
}

#[test]
fn names_end_in_base_units_and_in_total_for_counters_alone() {
    for (name, family) in &metrics().families {
        if name.starts_with("vllm:") {
            continue;
        }
        assert!(name.starts_with("tiercel_"), "{name}");
        let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(name.chars().all(letters), "{name}");
        assert_eq!(name.ends_with("_total"), family.kind == "counter", "{name}");
        let unit = name.strip_suffix("_total").unwrap_or(name);
        assert!(!WRONG.iter().any(|wrong| unit.ends_with(wrong)), "{name}");
        if family.kind == "histogram" {
            assert!(unit.ends_with("_seconds") || unit.ends_with("_tokens"), "{name}");
        }
    }
}

#[test]
fn labels_of_histograms_and_summaries_are_used_by_nothing_else() {
    for (name, family) in &metrics().families {
        for (sample, labels) in &family.samples {
            assert!(!labels.contains("quantile"), "{sample}");
            assert_eq!(labels.contains("le"), sample.ends_with("_bucket"), "{name}: {sample}");
        }
    }
}

#[test]
fn the_operators_page_describes_every_metric() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operator.md");
    let page = std::fs::read_to_string(page).unwrap();
    for name in metrics().families.keys() {
        assert!(page.contains(name.as_str()), "{name} is not in docs/operator.md");
    }
}

#[test]
fn refusals_and_usage_are_counted() {
    let text = &metrics().text;
    for line in [
        "tiercel_refused_requests_total{tier=\"standard\",code=\"queue_full\"} 1",
        "tiercel_refused_requests_total{tier=\"premium\",code=\"rate_limit_exceeded\"} 0",
        "tiercel_stage{stage=\"ready\"} 1",
        "tiercel_drain_deadline_timestamp_seconds 0",
        "tiercel_fair_share_deviation_ratio{tier=\"premium\"} 0",
    ] {
        assert!(text.lines().any(|seen| seen == line), "no {line} in {text}");
    }
    let seconds = |tier: &str| -> f64 {
        let start = format!("tiercel_device_seconds_total{{tier=\"{tier}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&start)).unwrap().parse().unwrap()
    };
    // Twenty steps of the mock device take some milliseconds.
    for tier in ["premium", "standard", "background"] {
        assert!((0.001..1.0).contains(&seconds(tier)), "{tier}: {}", seconds(tier));
    }
}
