//! The command `tiercel top`: a live view of a running server in the terminal.
//!
//! `model` holds the state of the view and the events that change the state, and `draw` draws the state; neither knows
//! time, terminal or server. `terminal` (keys and signals) and `transport` (the server) run threads, which send events.

mod draw;
mod model;
mod sample;
mod terminal;
mod transport;

use crate::cli::ctl::Address;
use crate::cli::failure::Failure;
use clap::Args;
use draw::Palette;
use model::{Command, Event, Model};
use ratatui::DefaultTerminal;
use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;
use tiercel_device::Clock;
use transport::Transport;

/// Longest wait for an answer of the server, after which the connection counts as lost.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which the view is drawn if nothing happens, because it shows ages.
const REDRAW: Duration = Duration::from_secs(1);
/// Most events that may wait to be drawn.
const EVENTS_MAX: usize = 64;

const HELP: &str = "\
The view shows the server's speed, both pools of KV blocks, each tier with its latencies against their targets, the
requests with the least slack, and what operators do. It asks the server once a second, like `tiercel ctl`; a lost
connection is shown and comes back by itself.

Keys:
  up, k / down, j    select a request (page up, page down, home, end too)
  r / l              raise or lower the selected request by a tier
  p                  pause it, or resume it
  c                  cancel it, after a question
  t                  show the requests of one tier only
  s                  order by slack, age, output or service
  ?                  list the keys
  q, ctrl-C          quit

If the server has API keys, TIERCEL_API_KEY must hold one with the role viewer (to look) or operator (to change
requests too). With NO_COLOR the view has no colours.

Examples:
  tiercel top
  tiercel top --url http://127.0.0.1:9001
  tiercel top --url https://llm.example.com:8081 --connect 127.0.0.1:8081 --ca ca.pem";

/// Watch a running server in the terminal, and change its requests by keys.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct Top {
    #[command(flatten)]
    address: Address,
}

impl Top {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if !std::io::stdout().is_terminal() {
            return Err(Failure::usage(
                "top draws on a terminal, and stdout is none; `tiercel ctl status` and `tiercel ctl requests` print lines",
            ));
        }
        let model = Model::new(self.address.url.clone());
        let client = self.address.client_within(TIMEOUT)?;
        let clock = Clock::wall();
        let (events, happened) = sync_channel(EVENTS_MAX);
        let no_thread = |error| Failure::new(format!("cannot start a thread: {error}"));
        terminal::heed_signals(events.clone()).map_err(no_thread)?;
        // From here on a panic restores the terminal too.
        let mut screen = ratatui::try_init()
            .map_err(|error| Failure::new(format!("cannot use the terminal: {error}")))?;
        let watched = terminal::read_keys(events.clone())
            .and_then(|()| Transport::start(client, clock.clone(), events))
            .map_err(no_thread)
            .and_then(|transport| watch(&mut screen, model, &clock, &happened, &transport));
        ratatui::restore();
        watched
    }
}

/// Draws the view and takes over events, until the user quits.
fn watch(
    screen: &mut DefaultTerminal,
    mut model: Model,
    clock: &Clock,
    events: &Receiver<Event>,
    transport: &Transport,
) -> Result<(), Failure> {
    let palette = Palette::of_environment();
    loop {
        screen
            .draw(|frame| draw::draw(frame, &model, palette))
            .map_err(|error| Failure::new(format!("cannot draw on the terminal: {error}")))?;
        let event = events.recv_timeout(REDRAW).unwrap_or(Event::Redraw);
        match model.update(event, clock.now()) {
            Some(Command::Quit) => return Ok(()),
            Some(command) if !transport.order(&command) => {
                let text = "the server does not answer, so the last key did nothing".to_owned();
                model.update(Event::Answered(Err(text)), clock.now());
            }
            _ => {}
        }
        if transport.has_ended() {
            return Err(Failure::new("the thread that asks the server has ended"));
        }
    }
}
