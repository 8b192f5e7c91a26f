//! Text for people: tables of requests, and lines about changes.

use comfy_table::presets::NOTHING;
use comfy_table::{Cell, Color, ContentArrangement, Table};
use serde_json::Value;

/// Returns the table of the requests in a listing, and a line that says how many there are.
pub(super) fn requests(listing: &Value) -> String {
    let rows = listing["requests"].as_array().map(Vec::as_slice).unwrap_or_default();
    let total = listing["total"].as_u64().unwrap_or(rows.len() as u64);
    let mut table = Table::new();
    table.load_preset(NOTHING);
    if table.is_tty() {
        // Fit the table into the terminal. Programs that read the output get a line for each request.
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    table.set_header([
        "SEQ",
        "TIER",
        "PRIO",
        "STATE",
        "POS",
        "FIRST IN",
        "AGE",
        "PROMPT",
        "OUTPUT",
        "BLOCKS",
        "ON HOST",
        "PREEMPTED",
        "SLACK",
        "TENANT",
        "ID",
        "REQUEST ID",
    ]);
    for row in rows {
        table.add_row(cells(row));
    }
    let shown = match rows.len() as u64 == total {
        true => String::new(),
        false => format!(", {} shown (--limit, --offset)", rows.len()),
    };
    let count = format!("{total} request{}{shown}", if total == 1 { "" } else { "s" });
    if rows.is_empty() { count } else { format!("{table}\n{count}") }
}

/// Returns the table of the requests that have an id, and the moments of each of their choices.
pub(super) fn shown(answer: &Value) -> String {
    let rows = answer["requests"].as_array().map(Vec::as_slice).unwrap_or_default();
    let timelines = rows.iter().filter(|row| row["timeline"].is_object()).map(timeline);
    std::iter::once(requests(answer)).chain(timelines).collect::<Vec<_>>().join("\n")
}

/// Returns the moments of a row's timeline, a line each.
fn timeline(row: &Value) -> String {
    let timeline = &row["timeline"];
    let moments = timeline["moments"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(["AFTER", "STEP", &format!("SEQ {}", row["seq"])]);
    for moment in moments {
        let after = duration(moment["at_ms"].as_f64().unwrap_or(0.0) / 1e3);
        table.add_row([after, moment["step"].to_string(), happening(moment)]);
    }
    match timeline["dropped"].as_u64() {
        None | Some(0) => table.to_string(),
        Some(dropped) => format!("{table}\n{dropped} earlier moments are not kept"),
    }
}

fn happening(moment: &Value) -> String {
    let of = |name: &str| moment[name].as_str().unwrap_or("?");
    match of("what") {
        "queued" => format!("queued, {}", of("tier")),
        "first_token" => "first token".to_owned(),
        "copying" => "blocks are copied to the device".to_owned(),
        "preempted" => format!("preempted, {}", of("strategy")),
        "paused" => "paused by an operator".to_owned(),
        "unpaused" => "resumed by an operator".to_owned(),
        "moved" => format!("moved from {} to {}", of("from"), of("to")),
        other => other.to_owned(),
    }
}

fn cells(row: &Value) -> Vec<Cell> {
    let text = |name: &str| match &row[name] {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let seconds = |name: &str| row[name].as_f64().map_or("-".to_owned(), |ms| duration(ms / 1e3));
    // The computed tokens include those of the output.
    let part = |done: &str, all: &str| {
        let (done, all) = (row[done].as_u64().unwrap_or(0), row[all].as_u64().unwrap_or(0));
        format!("{}/{all}", done.min(all))
    };
    let slack = Cell::new(seconds("slack_ms"));
    let behind = row["slack_ms"].as_f64().is_some_and(|ms| ms < 0.0);
    vec![
        Cell::new(text("seq")),
        tier(&text("tier")),
        Cell::new(text("priority")),
        Cell::new(state(row)),
        Cell::new(text("position")),
        Cell::new(seconds("first_token_in_ms")),
        Cell::new(seconds("age_ms")),
        Cell::new(part("computed_tokens", "prompt_tokens")),
        Cell::new(part("output_tokens", "max_tokens")),
        Cell::new(text("device_blocks")),
        Cell::new(text("host_blocks")),
        Cell::new(text("preemptions")),
        if behind { slack.fg(Color::Red) } else { slack },
        Cell::new(text("tenant")),
        Cell::new(text("id")),
        Cell::new(text("request_id")),
    ]
}

fn tier(name: &str) -> Cell {
    let cell = Cell::new(name);
    match name {
        "premium" => cell.fg(Color::Magenta),
        "background" => cell.fg(Color::DarkGrey),
        _ => cell,
    }
}

fn state(row: &Value) -> String {
    let is = |flag: &str| row[flag].as_bool() == Some(true);
    let state = row["state"].as_str().unwrap_or("?");
    match (is("paused"), is("slow_reader"), is("late")) {
        (true, _, _) => format!("{state}, paused"),
        (_, true, _) => format!("{state}, slow reader"),
        (_, _, true) => format!("{state}, late"),
        _ => state.to_owned(),
    }
}

/// Returns a duration in the unit that suits its size.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds.abs() {
        s if s < 10.0 => format!("{:.0}ms", seconds * 1e3),
        s if s < 600.0 => format!("{seconds:.0}s"),
        _ => format!("{:.0}min", seconds / 60.0),
    }
}

/// Returns a line for each choice that a command changed.
pub(super) fn changes(answer: &Value) -> String {
    let changes = answer["changes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let line = |change: &Value| {
        let (before, after) = (&change["before"], &change["after"]);
        let place = |row: &Value| {
            let of = |name: &str| row[name].as_str().unwrap_or("?").to_owned();
            format!("{} priority {}, {}", of("tier"), row["priority"], state(row))
        };
        let after = if after.is_null() { "ended".to_owned() } else { place(after) };
        format!(
            "{} (seq {}): {} -> {after}, from step {}",
            answer["id"].as_str().unwrap_or("?"),
            before["seq"],
            place(before),
            change["step"].as_u64().unwrap_or(0) + 1
        )
    };
    changes.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns a line for each setting that can be changed.
pub(super) fn settings(answer: &Value) -> String {
    let fields = answer["changeable"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(["SETTING", "VALUE", "ALLOWED"]);
    for field in fields {
        let most = field["at_most"].as_u64().map(|most| format!(", at most {most}"));
        let allowed =
            format!("{}{}", field["allowed"].as_str().unwrap_or("?"), most.unwrap_or_default());
        table.add_row([plain(&field["name"]), plain(&field["value"]), allowed]);
    }
    table.to_string()
}

/// Returns a line for each setting that a command changed.
pub(super) fn changed_settings(answer: &Value) -> String {
    let changed = answer["changed"].as_object().into_iter().flatten();
    let lines: Vec<String> = changed
        .map(|(name, change)| {
            format!("{name}: {} -> {}", plain(&change["before"]), plain(&change["after"]))
        })
        .collect();
    match lines.is_empty() {
        true => "nothing changed".to_owned(),
        false => {
            format!("{}\nfrom step {}", lines.join("\n"), answer["step"].as_u64().unwrap_or(0) + 1)
        }
    }
}

/// Returns a value as users write it in settings.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the lines of the server's status.
pub(super) fn status(status: &Value) -> String {
    let queued = status["queued"].as_object().into_iter().flatten();
    let queued: Vec<String> = queued.map(|(tier, count)| format!("{tier} {count}")).collect();
    let used = |pool: &str| {
        let (all, free) = (&status[pool], &status[format!("{pool}_free")]);
        format!("{} of {all}", all.as_u64().unwrap_or(0) - free.as_u64().unwrap_or(0))
    };
    let deadline = match status["deadline_in_ms"].as_f64() {
        Some(ms) => format!(" (deadline in {})", duration(ms / 1e3)),
        None => String::new(),
    };
    let tenants = status["usage"]["tenants"].as_array().into_iter().flatten();
    let tenants: String = tenants.map(tenant).collect();
    format!(
        "{}{deadline}: {} requests (at most {}), {} running, {} preempted\nwithout a first token: {}\nKV blocks in use: {} on \
         the device, {} on the host\nsteps: {}{tenants}",
        status["stage"].as_str().unwrap_or("?"),
        status["requests"],
        status["max_requests"],
        status["running"],
        status["preempted"],
        queued.join(", "),
        used("device_blocks"),
        used("host_blocks"),
        status["steps"],
    )
}

/// Returns a line, with the line break before it, about what a tenant used in a tier.
fn tenant(row: &Value) -> String {
    let seconds = |name: &str| duration(row[name].as_f64().unwrap_or(0.0));
    format!(
        "\n{} ({}): device time {}, due {}; {} prompt tokens, {} of them cached; {} output tokens",
        row["tenant"].as_str().unwrap_or("?"),
        row["tier"].as_str().unwrap_or("?"),
        seconds("device_s"),
        seconds("due_s"),
        row["prompt_tokens"],
        row["cached_tokens"],
        row["output_tokens"],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row() -> Value {
        json!({
            "id": "chatcmpl-1", "request_id": "trace", "seq": 7, "tenant": "shop", "tier": "background",
            "priority": 0, "state": "waiting", "paused": false, "slow_reader": false, "late": true,
            "position": 3, "first_token_in_ms": 61_000, "age_ms": 1_500, "prompt_tokens": 20,
            "computed_tokens": 0, "output_tokens": 0, "max_tokens": 64, "device_blocks": 0,
            "host_blocks": 0, "preemptions": 0, "slack_ms": -250.0,
        })
    }

    #[test]
    fn a_table_has_a_line_for_each_request_and_says_how_many_there_are() {
        let text = requests(&json!({"total": 12, "requests": [row()], "next_offset": 1}));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        for shown in
            ["7", "background", "waiting, late", "61s", "1500ms", "0/64", "-250ms", "chatcmpl-1"]
        {
            assert!(lines[1].contains(shown), "{shown}: {text}");
        }
        assert_eq!(lines[2], "12 requests, 1 shown (--limit, --offset)");
        assert_eq!(requests(&json!({"total": 0, "requests": []})), "0 requests");
    }

    #[test]
    fn a_change_is_a_line_with_both_states() {
        let mut raised = row();
        raised["tier"] = json!("premium");
        let change = json!({"step": 41, "before": row(), "after": raised});
        let answer = json!({"id": "chatcmpl-1", "changes": [change]});
        assert_eq!(
            changes(&answer),
            "chatcmpl-1 (seq 7): background priority 0, waiting, late -> premium priority 0, waiting, late, from step 42"
        );
    }

    #[test]
    fn a_timeline_has_a_line_for_each_moment_and_says_what_is_missing() {
        let mut row = row();
        row["timeline"] = json!({"dropped": 3, "moments": [
            {"at_ms": 0.0, "step": 5, "what": "queued", "tier": "background"},
            {"at_ms": 1_250.0, "step": 9, "what": "preempted", "strategy": "swap"},
            {"at_ms": 61_000.0, "step": 12, "what": "moved", "from": "background", "to": "premium"},
        ]});
        let text = shown(&json!({"requests": [row]}));
        let lines: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            lines[2..],
            [
                "1 request",
                "AFTER STEP SEQ 7",
                "0ms 5 queued, background",
                "1250ms 9 preempted, swap",
                "61s 12 moved from background to premium",
                "3 earlier moments are not kept",
            ]
        );
    }

    #[test]
    fn a_status_ends_with_a_line_for_each_tenant() {
        let row = json!({"tenant": "shop", "tier": "premium", "device_s": 1.5, "due_s": 61.0,
            "prompt_tokens": 9, "cached_tokens": 4, "output_tokens": 7});
        let text = status(&json!({"usage": {"tenants": [row]}}));
        let line = "\nshop (premium): device time 1500ms, due 61s; 9 prompt tokens, 4 of them cached; 7 output tokens";
        assert!(text.ends_with(line), "{text}");
    }

    #[test]
    fn durations_have_the_unit_of_their_size() {
        assert_eq!(
            [0.25, -0.25, 9.9, 61.0, 3_600.0].map(duration),
            ["250ms", "-250ms", "9900ms", "61s", "60min"]
        );
    }
}
