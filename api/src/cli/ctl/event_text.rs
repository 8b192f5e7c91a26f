//! Text for people about the events of a server.

use super::text::{changed_settings, changes, duration};
use serde_json::Value;

/// Returns how far a drain is, by one of its events.
pub(super) fn drain(event: &Value) -> String {
    let number = |name: &str| event[name].as_u64().unwrap_or(0);
    match event["action"].as_str() {
        Some("draining") => {
            let left = duration(number("deadline_in_ms") as f64 / 1e3);
            format!("{} requests left, deadline in {left}", number("requests"))
        }
        Some("drained") if event["finished"].is_u64() => format!(
            "{} requests finished, {} ended at the deadline, {} ended otherwise",
            number("finished"),
            number("ended"),
            number("other"),
        ),
        Some("drained") => "the step in flight did not end in time".to_owned(),
        _ => format!("{} requests, deadline {} ms", number("requests"), number("deadline_ms")),
    }
}

/// Returns the line of an event.
pub(crate) fn event(event: &Value) -> String {
    let of = |name: &str| event[name].as_str().unwrap_or("?");
    if let Some(lost) = event["lost"].as_u64() {
        return format!("{lost} events were lost, because this listener is too slow");
    }
    let changed = match &event["before"] {
        Value::Null if event["settings"].is_object() => {
            let lines = changed_settings(
                &serde_json::json!({"changed": event["settings"], "step": event["step"]}),
            );
            lines.replace('\n', ", ")
        }
        Value::Null if of("action").starts_with("record") => {
            format!("{} sequences", event["requests"].as_u64().unwrap_or(0))
        }
        Value::Null if event["keys"].is_u64() => format!("{} keys", event["keys"]),
        Value::Null if of("action") == "certificate_read" => "the files of the start".to_owned(),
        Value::Null if of("action") == "trace" => format!("{} ms", event["deadline_ms"]),
        Value::Null => drain(event),
        before => {
            let step = event["step"].clone();
            let change =
                serde_json::json!({"before": before, "after": event["after"], "step": step});
            changes(&serde_json::json!({"id": before["id"], "changes": [change]}))
        }
    };
    let of_day = event["unix_s"].as_u64().unwrap_or(0) % 86_400;
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    let (action, by) = (of("action"), of("by"));
    format!("{hour:02}:{minute:02}:{second:02} UTC {action} by {by}: {changed}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_has_its_time_of_day_and_its_author() {
        let drain = json!({"unix_s": 86_400 + 3_723, "action": "drain", "by": "ann", "deadline_ms": 5, "requests": 2});
        assert_eq!(event(&drain), "01:02:03 UTC drain by ann: 2 requests, deadline 5 ms");
        let row = json!({"id": "chatcmpl-1", "seq": 7, "tier": "background", "priority": 0, "state": "waiting", "late": true});
        let change =
            json!({"unix_s": 0, "action": "cancel", "by": "bob", "step": 4, "before": row});
        assert_eq!(
            event(&change),
            "00:00:00 UTC cancel by bob: chatcmpl-1 (seq 7): background priority 0, waiting, late -> ended, from step 5"
        );
        let read = json!({"unix_s": 0, "action": "keys_read", "by": "[server]", "keys": 3});
        assert_eq!(event(&read), "00:00:00 UTC keys_read by [server]: 3 keys");
        assert!(event(&json!({"lost": 3})).starts_with("3 events were lost"));
    }

    #[test]
    fn a_drain_is_told_by_what_is_left_and_by_how_it_ended() {
        let left = json!({"action": "draining", "requests": 3, "deadline_in_ms": 12_000});
        assert_eq!(drain(&left), "3 requests left, deadline in 12s");
        let ends = json!({"action": "drained", "finished": 2, "ended": 1, "other": 0});
        let text = "2 requests finished, 1 ended at the deadline, 0 ended otherwise";
        assert_eq!(drain(&ends), text);
        assert_eq!(drain(&json!({"action": "drained"})), "the step in flight did not end in time");
    }
}
