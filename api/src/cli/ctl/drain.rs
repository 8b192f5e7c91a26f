//! The command `tiercel ctl drain`: asks the server to drain, and shows the progress until the server has stopped.

use super::client::Client;
use super::event_text;
use crate::cli::failure::Failure;
use serde_json::{Value, json};
use std::time::Duration;

/// Interval at which the command looks whether the server has stopped.
const LOOK: Duration = Duration::from_millis(100);
/// Most such looks after the drain: a minute. The server itself waits a few seconds for clients that read slowly.
const LOOKS_MAX: u32 = 600;

/// Asks the server to drain. Unless `no_wait` is set, shows how far the drain is, and returns when the server has
/// stopped.
pub(super) fn run(
    client: &Client,
    body: &Value,
    no_wait: bool,
    print: &impl Fn(&Value, fn(&Value) -> String),
) -> Result<(), Failure> {
    if no_wait {
        print(&client.post("/control/v1/drain", body)?, begun);
        return Ok(());
    }
    // Listen before the drain begins, so that no event is missed.
    let events = client.listen("/control/v1/events")?;
    print(&client.post("/control/v1/drain", body)?, begun);
    let mut drained = false;
    for event in events {
        let event = event?;
        let action = event["action"].as_str();
        if matches!(action, Some("draining" | "drained")) {
            print(&event, event_text::drain);
        }
        drained |= action == Some("drained");
    }
    if !drained {
        return Err(Failure::new("the server ended before it had drained"));
    }
    // Take every answer but "draining" for the end of the server: a supervisor may start the server again at once, and
    // another program may answer at its address.
    let drains = || {
        let status = client.get("/control/v1/status", &[]);
        status.is_ok_and(|status| status["stage"] == "draining")
    };
    let mut looks = 0;
    while drains() {
        if looks == LOOKS_MAX {
            return Err(Failure::new("the server has drained, but does not stop"));
        }
        looks += 1;
        std::thread::park_timeout(LOOK);
    }
    print(&json!({"stopped": true}), |_| "the server has stopped".to_owned());
    Ok(())
}

fn begun(answer: &Value) -> String {
    format!(
        "draining: {} requests may finish within {} ms",
        answer["requests"], answer["deadline_ms"]
    )
}
