//! Metrics in Prometheus' text format, read into families.

use std::collections::{BTreeMap, BTreeSet};

/// A family of metrics: one name with its description, its type and its series.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Family {
    pub(crate) help: String,
    pub(crate) kind: String,
    /// Names of the samples, such as `..._bucket`, and the labels of each.
    pub(crate) samples: Vec<(String, BTreeSet<String>)>,
}

/// Metrics of a server.
#[derive(Debug)]
pub(crate) struct Exposition {
    pub(crate) text: String,
    pub(crate) families: BTreeMap<String, Family>,
    /// Names of samples that no family declares.
    pub(crate) undeclared: Vec<String>,
}

impl Exposition {
    /// Reads the text of `/metrics`.
    pub(crate) fn parse(text: &str) -> Exposition {
        let mut families: BTreeMap<String, Family> = BTreeMap::new();
        let mut undeclared = Vec::new();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').unwrap();
                families.entry(name.to_owned()).or_default().help = help.to_owned();
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                families.entry(name.to_owned()).or_default().kind = kind.to_owned();
            } else {
                let (series, value) = line.rsplit_once(' ').unwrap();
                value.parse::<f64>().unwrap();
                let (name, labels) = series.split_once('{').unwrap_or((series, ""));
                match families.get_mut(family_of(name)) {
                    Some(family) => family.samples.push((name.to_owned(), label_names(labels))),
                    None => undeclared.push(name.to_owned()),
                }
            }
        }
        Exposition { text: text.to_owned(), families, undeclared }
    }

    /// Whether the metrics have a sample with this name.
    pub(crate) fn has(&self, sample: &str) -> bool {
        let family = self.families.get(family_of(sample));
        family.is_some_and(|family| family.samples.iter().any(|(name, _)| name == sample))
    }
}

/// Returns the name of the family that a sample belongs to. Only histograms have samples with these endings here.
fn family_of(sample: &str) -> &str {
    let ending = ["_bucket", "_sum", "_count"].iter().find_map(|end| sample.strip_suffix(end));
    ending.unwrap_or(sample)
}

/// Returns the names of labels in a text such as `tier="premium",metric="ttft"}`.
fn label_names(labels: &str) -> BTreeSet<String> {
    let names = labels.split("=\"").filter_map(|before| {
        let name = before.rsplit([',', '{', '"']).next()?;
        Some(name.to_owned())
    });
    names.filter(|name| !name.is_empty() && name != "}").collect()
}
