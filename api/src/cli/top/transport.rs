//! Threads that speak to the control API: one asks for figures each second and carries out changes, the other listens
//! to events. Both go on when the connection is lost, until the connection comes back.

use super::model::{Change, Command, Event, Query, Verb};
use super::sample::Sample;
use crate::cli::ctl::{Client, Trouble, event_line, path};
use crate::cli::failure::Failure;
use serde_json::{Value, json};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tiercel_device::Clock;

/// Interval between two questions for figures, and between two attempts to listen to events.
const INTERVAL: Duration = Duration::from_secs(1);
/// Most rows that are asked for.
const ROWS_MAX: usize = 200;
/// Most changes that may wait for the server; further keys are refused.
const CHANGES_MAX: usize = 8;

/// The threads that speak to the server.
pub(super) struct Transport {
    orders: SyncSender<Command>,
    asker: JoinHandle<()>,
}

impl Transport {
    /// Starts the threads, which send the server's answers and their own failures to `events`.
    ///
    /// # Errors
    /// If the operating system starts no thread.
    pub(super) fn start(
        client: Client,
        clock: Clock,
        events: SyncSender<Event>,
    ) -> std::io::Result<Transport> {
        let (orders, ordered) = sync_channel(CHANGES_MAX);
        let (listener, listened) = (client.clone(), events.clone());
        thread::Builder::new().name("events".into()).spawn(move || listen(&listener, &listened))?;
        let asker = thread::Builder::new()
            .name("figures".into())
            .spawn(move || ask(&client, &clock, &ordered, &events))?;
        Ok(Transport { orders, asker })
    }

    /// Passes a command to the server, in the order of the calls. Returns whether there was room for it.
    pub(super) fn order(&self, command: &Command) -> bool {
        self.orders.try_send(command.clone()).is_ok()
    }

    /// Whether the thread that asks for figures has ended, which it does only if it fails.
    pub(super) fn has_ended(&self) -> bool {
        self.asker.is_finished()
    }
}

/// Asks for figures each second, and at once after each command. Ends with the view.
fn ask(client: &Client, clock: &Clock, orders: &Receiver<Command>, events: &SyncSender<Event>) {
    let mut query = Query::default();
    loop {
        let told = match look(client, clock, query) {
            Ok(sample) => Event::Sample(Box::new(sample)),
            Err(why) => Event::Lost(why),
        };
        if events.send(told).is_err() {
            return;
        }
        match orders.recv_timeout(INTERVAL) {
            Ok(Command::Look(next)) => query = next,
            Ok(Command::Change(change)) => {
                if events.send(Event::Answered(carry_out(client, &change))).is_err() {
                    return;
                }
            }
            Ok(Command::Quit) | Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

fn look(client: &Client, clock: &Clock, query: Query) -> Result<Sample, String> {
    let live = client.get("/control/v1/live", &[]).map_err(reason)?;
    let limit = ("limit", ROWS_MAX.to_string());
    let sort = query.sort.parameter().map(|sort| ("sort", sort.to_owned()));
    let tier = query.tier.map(|tier| ("tier", tier.name().to_owned()));
    let parameters: Vec<_> = [Some(limit), sort, tier].into_iter().flatten().collect();
    let listing = client.get("/control/v1/requests", &parameters).map_err(reason)?;
    Sample::read(clock.now(), &live, listing)
}

fn carry_out(client: &Client, change: &Change) -> Result<String, String> {
    let (verb, body, done) = match change.verb {
        Verb::Move(tier) => {
            ("/reprioritize", json!({"tier": tier.name()}), format!("moved to {tier}"))
        }
        Verb::Pause => ("/pause", json!({}), "paused; p resumes it".to_owned()),
        Verb::Resume => ("/resume", json!({}), "resumed".to_owned()),
        Verb::Cancel => ("/cancel", json!({}), "cancelled".to_owned()),
    };
    let answer: Value = client.post(&path(&change.id, verb), &body).map_err(reason)?;
    Ok(format!("{}: {done}", answer["id"].as_str().unwrap_or(&change.id)))
}

/// Sends a line for each event of the server. Listens again each second if there is no connection. Ends with the view.
fn listen(client: &Client, events: &SyncSender<Event>) {
    let mut told = None;
    loop {
        let lost = match client.listen("/control/v1/events") {
            Err(trouble) => Some(trouble),
            Ok(mut heard) => loop {
                match heard.next() {
                    None => break None,
                    Some(Err(trouble)) => break Some(trouble),
                    Some(Ok(event)) => {
                        if events.send(Event::Happened(event_line(&event))).is_err() {
                            return;
                        }
                    }
                }
            },
        };
        // A server that refuses its events says why, once. That a server cannot be reached is told with its figures.
        if let Some(Trouble::Refused(why)) = lost
            && told.as_ref() != Some(&why)
        {
            if events.send(Event::Happened(format!("no events: {why}"))).is_err() {
                return;
            }
            told = Some(why);
        }
        thread::park_timeout(INTERVAL);
    }
}

fn reason(trouble: Trouble) -> String {
    let Failure { message, .. } = trouble.into();
    message
}
