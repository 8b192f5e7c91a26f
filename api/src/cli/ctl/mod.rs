//! The command `tiercel ctl`: operators see and change the requests of a running server.

mod client;
mod drain;
mod event_text;
mod keys;
mod reach;
mod record;
mod text;
mod trace;
mod what_if;

use crate::cli::failure::Failure;
use crate::cli::report_file::ReportFile;
use clap::{Args, Subcommand, ValueEnum};
pub(super) use client::{Address, Client, Trouble};
pub(super) use event_text::event as event_line;
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
pub(super) use text::duration;

const EXAMPLES: &str = "\
ID is the id in the response (chatcmpl-...), the client's X-Request-Id, or the number in the column SEQ.
If the server has API keys, TIERCEL_API_KEY must hold one with the role viewer or operator.
A server with TLS needs an https:// URL with a name of its certificate.

Examples:
  tiercel ctl requests --state waiting --sort age
  tiercel ctl reprioritize chatcmpl-0d5c... premium
  tiercel ctl --json show 17
  tiercel ctl policy set patience.standard_s=60 scheduler.policy=fcfs
  tiercel ctl policy set slo.premium.ttft_ms=150 reservation.premium_slots_percent=20
  tiercel ctl keys --tenant shop
  tiercel ctl drain --deadline-s 60
  tiercel ctl snapshot ticket.json
  tiercel ctl trace trace.json --seconds 20
  tiercel ctl record start --minutes 10
  tiercel ctl what-if --policy fcfs --minutes 5
  tiercel ctl --url http://127.0.0.1:9001 events
  tiercel ctl --url https://llm.example.com:8081 --connect 127.0.0.1:8081 status";

/// See and change the requests of a running server.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Ctl {
    #[command(flatten)]
    address: Address,
    /// Print the server's answer as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: CtlCommand,
}

#[derive(Debug, Subcommand)]
enum CtlCommand {
    /// List live requests in the order of service
    Requests(Requests),
    /// Show one request, and what happened to it so far
    Show {
        id: String,
    },
    /// Change the tier of a request, and its priority within the tier (lower numbers go first)
    Reprioritize {
        id: String,
        tier: Tier,
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        priority: Option<i32>,
    },
    /// Stop scheduling a request until `resume`; it keeps its KV blocks until others need them
    Pause {
        id: String,
    },
    /// Schedule a paused request again
    Resume {
        id: String,
    },
    /// End a request with an error
    Cancel {
        id: String,
    },
    /// Show or change the settings of the running engine
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// List the API keys in force, with their rights and what is left of their rates
    Keys(keys::Keys),
    /// Show the stage of the server, queues and memory
    Status,
    /// Refuse new requests, let running ones finish, and stop the server
    Drain {
        /// Longest time that running requests have to finish, seconds; by default http.drain_grace_ms
        #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(0..=86_400))]
        deadline_s: Option<u64>,
        /// Return at once instead of showing the progress until the server has stopped
        #[arg(long)]
        no_wait: bool,
    },
    /// Print every change that operators make from now on, and how far a drain is
    Events,
    Record(record::Record),
    WhatIf(what_if::WhatIf),
    /// Write a document about the whole engine, for support: status, requests, settings and targets, without prompts
    Snapshot {
        /// File to write; by default the document is printed
        file: Option<PathBuf>,
    },
    /// Record steps, copies and requests for some seconds, as a file for https://ui.perfetto.dev
    Trace(trace::Trace),
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    /// List the settings that can be changed, with their values and what is allowed
    Get,
    /// Change settings, all or none, such as patience.standard_s=60 or scheduler.policy=fcfs
    Set {
        #[arg(required = true, value_name = "NAME=VALUE", value_parser = assignment)]
        assignments: Vec<(String, String)>,
    },
}

fn assignment(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// Which requests to list.
#[derive(Debug, Args)]
struct Requests {
    /// Only requests of this tier
    #[arg(long)]
    tier: Option<Tier>,
    /// Only requests in this state: waiting, prefill, decode, preempted or resuming
    #[arg(long)]
    state: Option<String>,
    /// Only requests of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Order: the least slack first, the oldest first, or the longest output first; by default the order of service
    #[arg(long, value_parser = ["slack", "age", "output"])]
    sort: Option<String>,
    /// Most requests to show
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1000))]
    limit: u64,
    /// Number of requests to skip
    #[arg(long, value_name = "N", default_value_t = 0)]
    offset: u64,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Tier {
    Premium,
    Standard,
    Background,
}

impl Tier {
    fn name(self) -> &'static str {
        match self {
            Tier::Premium => "premium",
            Tier::Standard => "standard",
            Tier::Background => "background",
        }
    }
}

impl Ctl {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let client = match &self.command {
            CtlCommand::Trace(trace) => self.address.client_within(trace.patience())?,
            _ => self.address.client()?,
        };
        let json = self.json;
        let print = |answer: &Value, text: fn(&Value) -> String| {
            print_line(&if json { answer.to_string() } else { text(answer) });
        };
        match self.command {
            CtlCommand::Requests(which) => {
                print(&client.get("/control/v1/requests", &which.query())?, text::requests);
            }
            CtlCommand::Show { id } => print(&client.get(&path(&id, ""), &[])?, text::shown),
            CtlCommand::Reprioritize { id, tier, priority } => {
                let body = json!({"tier": tier.name(), "priority": priority});
                print(&client.post(&path(&id, "/reprioritize"), &body)?, text::changes);
            }
            CtlCommand::Pause { id } => print(&post(&client, &id, "/pause")?, text::changes),
            CtlCommand::Resume { id } => print(&post(&client, &id, "/resume")?, text::changes),
            CtlCommand::Cancel { id } => print(&post(&client, &id, "/cancel")?, text::changes),
            CtlCommand::Policy(PolicyCommand::Get) => {
                print(&client.get("/control/v1/policy", &[])?, text::settings);
            }
            CtlCommand::Policy(PolicyCommand::Set { assignments }) => {
                let body: Value =
                    assignments.into_iter().map(|(name, value)| (name, json!(value))).collect();
                print(&client.patch("/control/v1/policy", &body)?, text::changed_settings);
            }
            CtlCommand::Keys(which) => {
                print(&client.get("/control/v1/keys", &which.query())?, keys::table);
            }
            CtlCommand::Status => print(&client.get("/control/v1/status", &[])?, text::status),
            CtlCommand::Drain { deadline_s, no_wait } => {
                let body = json!({"deadline_ms": deadline_s.map(|seconds| seconds * 1_000)});
                drain::run(&client, &body, no_wait, &print)?;
            }
            CtlCommand::Events => {
                for event in client.listen("/control/v1/events")? {
                    print(&event?, event_text::event);
                }
            }
            CtlCommand::Record(record) => record.run(&client, &print)?,
            CtlCommand::WhatIf(what_if) => what_if.run(&client, json)?,
            CtlCommand::Snapshot { file } => {
                let document = client.get("/control/v1/snapshot", &[])?;
                match file {
                    Some(file) => ReportFile::create(file)?.write(&document)?,
                    None => print_line(&format!("{document:#}")),
                }
            }
            CtlCommand::Trace(trace) => print_line(&trace.run(&client)?),
        }
        Ok(())
    }
}

impl Requests {
    fn query(self) -> Vec<(&'static str, String)> {
        let Requests { tier, state, tenant, sort, limit, offset } = self;
        let optional = [
            ("tier", tier.map(|tier| tier.name().to_owned())),
            ("state", state),
            ("tenant", tenant),
            ("sort", sort),
        ];
        let stated = optional.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let page = [("limit", limit.to_string()), ("offset", offset.to_string())];
        stated.chain(page).collect()
    }
}

/// Prints a line. If the reader of the output, such as `head`, wants no more lines, ends the process, which is no
/// error.
fn print_line(line: &str) {
    if writeln!(std::io::stdout().lock(), "{line}").is_err() {
        std::process::exit(0);
    }
}

fn post(client: &Client, id: &str, verb: &str) -> Result<Value, Trouble> {
    client.post(&path(id, verb), &json!({}))
}

/// Returns the path of a request in the control API. Characters of the id that have a meaning in a path are escaped.
pub(super) fn path(id: &str, verb: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    format!("/control/v1/requests/{}{verb}", id.bytes().map(escape).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::path;

    #[test]
    fn ids_are_escaped_in_paths() {
        assert_eq!(path("chatcmpl-1", ""), "/control/v1/requests/chatcmpl-1");
        assert_eq!(path("a/b?c d", "/pause"), "/control/v1/requests/a%2Fb%3Fc%20d/pause");
    }
}
