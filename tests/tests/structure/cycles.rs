//! Finds import cycles among the files of a crate.

use crate::imports::Edges;
use std::collections::BTreeSet;

/// Returns the import cycles: groups of files that import each other, directly or by way of others.
pub(crate) fn cycles(edges: &Edges) -> Vec<Vec<String>> {
    let reach = |from: &str| -> BTreeSet<String> {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(file) = open.pop() {
            for next in edges.get(&file).into_iter().flatten() {
                if reached.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        reached
    };
    let reached: Vec<(&String, BTreeSet<String>)> =
        edges.keys().map(|file| (file, reach(file))).collect();
    let mut found: BTreeSet<Vec<String>> = BTreeSet::new();
    for (file, forward) in reached.iter().filter(|(file, forward)| forward.contains(*file)) {
        let back = |(other, of_other): &&(&String, BTreeSet<String>)| {
            forward.contains(*other) && of_other.contains(*file)
        };
        found.insert(reached.iter().filter(back).map(|(other, _)| (*other).clone()).collect());
    }
    found.into_iter().collect()
}
