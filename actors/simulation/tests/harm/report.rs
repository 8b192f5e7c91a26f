//! Formats the comparisons of policies as a table, with the figures of both policies in each row.

use crate::rules::Check;
use std::fmt;

/// Makes a table with one row per comparison of two policies. `known` returns the reason if the comparison is a known
/// exception to its rule.
pub(crate) fn table<'a>(checks: &[Check], known: impl Fn(&Check) -> Option<&'a str>) -> String {
    let mut rows = String::from(
        "| rule | workload | tier | figure | `tiercel` | other | its figure | worse by, % | |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for check in checks {
        let Check { rule, workload, tier, figure, default, other, policy, worse, .. } = check;
        let verdict = match (&check.excuse, known(check)) {
            _ if check.few => "too few requests to compare".to_owned(),
            _ if check.worse <= check.allowed => String::new(),
            (Some(excuse), _) => format!("allowed: {excuse}"),
            (None, Some(reason)) => format!("known: {reason}"),
            (None, None) => "**broken**".to_owned(),
        };
        rows += &format!(
            "| {rule} | `{workload}` | {tier} | {figure} | {default:.1} | `{policy}` | {other:.1} | {:.1} | {verdict} |\n",
            100.0 * worse
        );
    }
    rows
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Check { rule, workload, tier, figure, default, other, policy, .. } = self;
        let [worse, allowed] = [self.worse, self.allowed].map(|share| 100.0 * share);
        write!(
            f,
            "rule ({rule}), {workload}, {tier}, {figure}: {default:.1} under the default, {other:.1} under {policy}: \
             {worse:.1} % worse, {allowed} % allowed"
        )
    }
}
