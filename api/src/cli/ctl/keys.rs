//! The command `tiercel ctl keys`: its arguments, and the table of API keys.

use clap::Args;
use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use serde_json::Value;

/// Which keys to list.
#[derive(Debug, Args)]
pub(super) struct Keys {
    /// Only keys of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Most keys to show
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1000))]
    limit: u64,
    /// Number of keys to skip
    #[arg(long, value_name = "N", default_value_t = 0)]
    offset: u64,
}

impl Keys {
    /// Returns the query parameters.
    pub(super) fn query(self) -> Vec<(&'static str, String)> {
        let tenant = self.tenant.map(|tenant| ("tenant", tenant));
        let page = [("limit", self.limit.to_string()), ("offset", self.offset.to_string())];
        tenant.into_iter().chain(page).collect()
    }
}

/// Returns the table of the keys in a listing, and a line that says how many there are.
pub(super) fn table(listing: &Value) -> String {
    let rows = listing["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
    let total = listing["total"].as_u64().unwrap_or(rows.len() as u64);
    let mut table = Table::new();
    table.load_preset(NOTHING);
    if table.is_tty() {
        // Fit the table into the terminal. Programs that read the output get a line for each key.
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    table.set_header([
        "NAME",
        "TENANT",
        "SHARE",
        "HIGHEST",
        "DEFAULT",
        "ABOVE",
        "TIGHTEN",
        "ROLE",
        "EXPIRES",
        "REQUESTS LEFT",
        "TOKENS LEFT",
        "LIVE",
    ]);
    for row in rows {
        table.add_row(cells(row));
    }
    let shown = match rows.len() as u64 == total {
        true => String::new(),
        false => format!(", {} shown (--limit, --offset)", rows.len()),
    };
    let count = format!("{total} key{}{shown}", if total == 1 { "" } else { "s" });
    if rows.is_empty() { count } else { format!("{table}\n{count}") }
}

fn cells(row: &Value) -> [String; 12] {
    let text = |name: &str| match &row[name] {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let rate = |name: &str| match &row[name] {
        Value::Null => "-".to_owned(),
        rate => format!("{} ({}/min)", rate["remaining"], rate["limit"]),
    };
    let is = |name: &str| row[name].as_bool() == Some(true);
    let of_live = row["max_live"].as_u64().map(|most| format!("/{most}")).unwrap_or_default();
    [
        text("name"),
        text("tenant"),
        text("share"),
        text("highest_tier"),
        text("default_tier"),
        text("above_highest"),
        if is("may_tighten_targets") { "yes" } else { "no" }.to_owned(),
        text("role"),
        format!("{}{}", text("expires"), if is("expired") { ", expired" } else { "" }),
        rate("requests_per_min"),
        rate("tokens_per_min"),
        format!("{}{of_live}", row["live"]),
    ]
}

#[cfg(test)]
mod tests {
    use super::table;
    use serde_json::json;

    #[test]
    fn a_key_is_a_line_with_its_rights_and_what_is_left_of_its_rates() {
        let key = json!({
            "name": "shop", "tenant": "shop", "share": 3.0, "highest_tier": "premium",
            "default_tier": "standard", "above_highest": "cap", "may_tighten_targets": true, "role": null,
            "expires": "2020-01-01T00:00:00Z", "expired": true,
            "requests_per_min": {"limit": 60, "remaining": 9, "reset_ms": 1_000}, "tokens_per_min": null,
            "live": 2, "max_live": 8,
        });
        let text = table(&json!({"total": 7, "keys": [key], "next_offset": 1}));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        let shown = ["shop", "3.0", "premium", "cap", "yes", "Z, expired", "9 (60/min)", "2/8"];
        for shown in shown {
            assert!(lines[1].contains(shown), "{shown}: {text}");
        }
        assert_eq!(lines[2], "7 keys, 1 shown (--limit, --offset)");
        assert_eq!(table(&json!({"total": 0, "keys": []})), "0 keys");
    }
}
