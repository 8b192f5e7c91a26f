//! State of the terminal view, and what changes it: a pure function of state and event, which returns the command that
//! follows, if any.

use super::sample::{History, Rates, RequestRow, Sample};
use std::collections::VecDeque;
use tiercel_device::{Tier, Timestamp};

/// Number of events that are kept.
const EVENTS_KEPT: usize = 100;
/// Rows that the keys for pages move the selection by.
const PAGE: usize = 10;

/// A key that the view knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    Escape,
    /// Ctrl-C.
    Interrupt,
    Letter(char),
}

/// What can happen to the view.
#[derive(Debug, Clone)]
pub(super) enum Event {
    Key(Key),
    /// The server told its figures.
    Sample(Box<Sample>),
    /// The server could not be asked, for this reason.
    Lost(String),
    /// An operator changed something, or a drain goes on; the line says what.
    Happened(String),
    /// The server carried out a change that this view asked for, or refused it.
    Answered(Result<String, String>),
    /// Time has passed, or the terminal has another size: draw again.
    Redraw,
    /// The process shall end.
    Stop,
}

/// What the view asks its surroundings for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    /// Ask the server for the requests that the query wants, now and from now on.
    Look(Query),
    /// Ask the server to change a request.
    Change(Change),
    Quit,
}

/// Which requests the view shows, and in which order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) tier: Option<Tier>,
    pub(super) sort: Sort,
}

/// Order of the rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// The least slack first.
    #[default]
    Slack,
    /// The oldest first.
    Age,
    /// The longest output first.
    Output,
    /// Order of service.
    Service,
}

impl Sort {
    fn next(self) -> Sort {
        match self {
            Sort::Slack => Sort::Age,
            Sort::Age => Sort::Output,
            Sort::Output => Sort::Service,
            Sort::Service => Sort::Slack,
        }
    }

    /// Returns the value of the parameter `sort` of the listing; `None` for the order of service.
    pub(super) fn parameter(self) -> Option<&'static str> {
        match self {
            Sort::Slack => Some("slack"),
            Sort::Age => Some("age"),
            Sort::Output => Some("output"),
            Sort::Service => None,
        }
    }

    /// Returns the description of the order for people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Sort::Slack => "least slack first",
            Sort::Age => "oldest first",
            Sort::Output => "longest output first",
            Sort::Service => "in the order of service",
        }
    }
}

/// A change of a request that the user asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) id: String,
    pub(super) verb: Verb,
}

/// Kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Move(Tier),
    Pause,
    Resume,
    Cancel,
}

/// What the keys are for at the moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Mode {
    /// Keys act on the table of requests.
    #[default]
    Table,
    /// The list of keys is shown; the next key closes it.
    Help,
    /// The table of tenants is shown in place of the table of requests.
    Tenants,
    /// The view asks whether to make this change, which cannot be undone.
    Ask(Change),
}

/// State of the connection to the server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Link {
    /// No answer came so far.
    #[default]
    Opening,
    Up,
    /// The last question to the server failed, for this reason.
    Lost(String),
}

/// Line about the last key or change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Notice {
    pub(super) text: String,
    pub(super) failed: bool,
}

/// The selected request: its sequence, and its place in the table when it was seen last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Selected {
    seq: u64,
    place: usize,
}

/// State of the view.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// URL of the control API.
    pub(super) url: String,
    pub(super) link: Link,
    /// Figures that came last; `None` before the first.
    pub(super) sample: Option<Sample>,
    history: History,
    pub(super) query: Query,
    selected: Option<Selected>,
    pub(super) mode: Mode,
    pub(super) notice: Option<Notice>,
    /// Lines of the last events, the oldest first.
    pub(super) events: VecDeque<String>,
    /// Time of the last event of any kind.
    pub(super) now: Timestamp,
}

impl Model {
    /// Makes the state of a view of the server at `url`.
    pub(super) fn new(url: String) -> Model {
        Model { url, ..Model::default() }
    }

    /// Returns the rows of the table.
    pub(super) fn rows(&self) -> &[RequestRow] {
        self.sample.as_ref().map(|sample| sample.rows.as_slice()).unwrap_or_default()
    }

    /// Returns the place of the selected row in the table.
    pub(super) fn place(&self) -> Option<usize> {
        self.selected.map(|selected| selected.place)
    }

    /// Returns the selected row.
    pub(super) fn selected(&self) -> Option<&RequestRow> {
        self.rows().get(self.place()?)
    }

    /// Returns the rates over the last seconds.
    pub(super) fn rates(&self) -> Rates {
        self.history.rates()
    }

    /// Takes over an event that happened at the time `now`, and returns the command that follows.
    pub(super) fn update(&mut self, event: Event, now: Timestamp) -> Option<Command> {
        self.now = now;
        match event {
            Event::Key(key) => return self.key(key),
            Event::Sample(sample) => {
                self.link = Link::Up;
                self.history.add(sample.at, sample.counters);
                self.sample = Some(*sample);
                self.keep_selection();
            }
            Event::Lost(why) => self.link = Link::Lost(why),
            Event::Happened(line) => {
                if self.events.len() == EVENTS_KEPT {
                    self.events.pop_front();
                }
                self.events.push_back(line);
            }
            Event::Answered(Ok(text)) => self.notice = Some(Notice { text, failed: false }),
            Event::Answered(Err(text)) => self.notice = Some(Notice { text, failed: true }),
            Event::Redraw => {}
            Event::Stop => return Some(Command::Quit),
        }
        None
    }

    /// Selects the row of the selected sequence in a new sample, or the row at its place if the sequence is not in it.
    fn keep_selection(&mut self) {
        let rows = self.rows();
        let before = self.selected.unwrap_or_default();
        let found = rows.iter().position(|row| row.seq == before.seq);
        let place = found.unwrap_or(before.place).min(rows.len().saturating_sub(1));
        self.selected = rows.get(place).map(|row| Selected { seq: row.seq, place });
        // A question about a request that has ended needs no answer.
        if let Mode::Ask(change) = &self.mode
            && !self.rows().iter().any(|row| row.id == change.id)
        {
            let text = format!("{} is not in the table any more; nothing was cancelled", change.id);
            self.mode = Mode::Table;
            self.notice = Some(Notice { text, failed: false });
        }
    }

    fn key(&mut self, key: Key) -> Option<Command> {
        if key == Key::Interrupt {
            return Some(Command::Quit);
        }
        match std::mem::take(&mut self.mode) {
            Mode::Table => self.table_key(key),
            Mode::Help => None,
            Mode::Tenants => self.tenants_key(key),
            Mode::Ask(change) if matches!(key, Key::Letter('y' | 'Y')) => {
                self.say(format!("cancelling {} ...", change.id));
                Some(Command::Change(change))
            }
            Mode::Ask(_) => {
                self.say("nothing was cancelled".into());
                None
            }
        }
    }

    /// Handles a key while the table of tenants is shown. Keys that select or change requests do nothing.
    fn tenants_key(&mut self, key: Key) -> Option<Command> {
        match key {
            Key::Letter('u') | Key::Escape => None,
            Key::Letter('q') => Some(Command::Quit),
            _ => {
                self.mode = Mode::Tenants;
                None
            }
        }
    }

    fn table_key(&mut self, key: Key) -> Option<Command> {
        let place = self.place().unwrap_or(0);
        match key {
            Key::Up | Key::Letter('k') => self.select(place.saturating_sub(1)),
            Key::Down | Key::Letter('j') => self.select(place + 1),
            Key::PageUp => self.select(place.saturating_sub(PAGE)),
            Key::PageDown => self.select(place + PAGE),
            Key::First | Key::Letter('g') => self.select(0),
            Key::Last | Key::Letter('G') => self.select(usize::MAX),
            Key::Letter('r' | '+') => return self.shift(true),
            Key::Letter('l' | '-') => return self.shift(false),
            Key::Letter('p' | ' ') => return self.pause(),
            Key::Letter('c') => self.ask(),
            Key::Letter('t') => return Some(self.filter()),
            Key::Letter('s') => return Some(self.sort()),
            Key::Letter('u') => self.mode = Mode::Tenants,
            Key::Letter('?' | 'h') => self.mode = Mode::Help,
            Key::Letter('q') => return Some(Command::Quit),
            Key::Escape => self.notice = None,
            Key::Letter(other) => {
                self.say(format!("the key {other:?} does nothing; ? lists the keys"))
            }
            Key::Interrupt => {}
        }
        None
    }

    fn say(&mut self, text: String) {
        self.notice = Some(Notice { text, failed: false });
    }

    fn select(&mut self, place: usize) {
        let place = place.min(self.rows().len().saturating_sub(1));
        self.selected = self.rows().get(place).map(|row| Selected { seq: row.seq, place });
    }

    /// Asks for the next higher or lower tier for the selected request.
    fn shift(&mut self, up: bool) -> Option<Command> {
        let row = self.selected()?;
        let (id, from) = (row.id.clone(), row.tier);
        let to = match (from, up) {
            (Tier::Background, true) | (Tier::Premium, false) => Tier::Standard,
            (Tier::Standard, true) => Tier::Premium,
            (Tier::Standard, false) => Tier::Background,
            (Tier::Premium, true) | (Tier::Background, false) | (Tier::System, _) => {
                let end = if up { "highest" } else { "lowest" };
                self.say(format!("{id} is in the {end} tier already"));
                return None;
            }
        };
        self.say(format!("moving {id} from {from} to {to} ..."));
        Some(Command::Change(Change { id, verb: Verb::Move(to) }))
    }

    fn pause(&mut self) -> Option<Command> {
        let row = self.selected()?;
        let (id, verb) = (row.id.clone(), if row.paused { Verb::Resume } else { Verb::Pause });
        self.say(format!("{} {id} ...", if verb == Verb::Pause { "pausing" } else { "resuming" }));
        Some(Command::Change(Change { id, verb }))
    }

    fn ask(&mut self) {
        if let Some(row) = self.selected() {
            self.mode = Mode::Ask(Change { id: row.id.clone(), verb: Verb::Cancel });
        }
    }

    fn filter(&mut self) -> Command {
        self.query.tier = match self.query.tier {
            None => Some(Tier::Premium),
            Some(Tier::Premium) => Some(Tier::Standard),
            Some(Tier::Standard) => Some(Tier::Background),
            Some(_) => None,
        };
        Command::Look(self.query)
    }

    fn sort(&mut self) -> Command {
        self.query.sort = self.query.sort.next();
        Command::Look(self.query)
    }
}

#[cfg(test)]
mod tests;
