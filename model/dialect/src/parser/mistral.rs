//! Call parser of the Mistral dialect. Models with a tokenizer up to version 7 write `[TOOL_CALLS]` and a JSON array of
//! calls. Models with a tokenizer from version 11 on write `[TOOL_CALLS]`, a name, `[ARGS]` and a JSON object. From
//! version 13 on, `[CALL_ID]` and an id may stand between the name and `[ARGS]`.

use super::arguments::Arguments;
use super::form::{Form, Held, NAME_BYTES_MAX, Step, give_back, is_space};
use super::json_call::JsonCall;
use super::sink::Sink;

const ARGS: &str = "[ARGS]";
const CALL_ID: &str = "[CALL_ID]";

/// Call parser of the Mistral dialect, after `[TOOL_CALLS]`.
#[derive(Debug)]
pub(super) struct Mistral {
    held: Held,
    /// Head of a call without an array: the text from the name to the arguments.
    head: String,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Start,
    /// In the array, before or within a call.
    Array(JsonCall),
    /// In the array, after a call.
    Between,
    /// In a single object without an array.
    Object(JsonCall),
    Head,
    Arguments(Arguments),
}

impl Mistral {
    pub(super) fn new(opening: &str) -> Mistral {
        Mistral { held: Held::new(opening), head: String::new(), place: Place::Start }
    }

    fn start(&mut self, ch: char, out: &mut Sink) -> Step {
        match ch {
            _ if is_space(ch) => self.held.push(ch),
            '[' => {
                self.held.push(ch);
                self.place = Place::Array(JsonCall::new(std::mem::take(&mut self.held), false));
            }
            '{' => {
                let mut call = JsonCall::new(std::mem::take(&mut self.held), false);
                let step = call.feed(ch, out);
                self.place = Place::Object(call);
                return step;
            }
            _ => {
                self.place = Place::Head;
                return self.head(ch, out);
            }
        }
        if self.held.is_full() { self.held.refuse() } else { Step::Taken }
    }

    /// Parses `name[ARGS]` or `name[CALL_ID]id[ARGS]` up to the opening brace of the arguments. `[ARGS]` may be
    /// missing.
    fn head(&mut self, ch: char, out: &mut Sink) -> Step {
        if let ('{', Some(name)) = (ch, name(&self.head)) {
            out.begin(name);
            let mut arguments = Arguments::new();
            let step = arguments.feed(ch, out);
            self.place = Place::Arguments(arguments);
            self.held.clear();
            return step;
        }
        self.held.push(ch);
        self.head.push(ch);
        if may_be_head(&self.head) { Step::Taken } else { self.held.refuse() }
    }

    fn between(&mut self, ch: char) -> Step {
        self.held.push(ch);
        match ch {
            ']' => return Step::Over,
            ',' => self.place = Place::Array(JsonCall::new(std::mem::take(&mut self.held), false)),
            _ if is_space(ch) && !self.held.is_full() => (),
            _ => return give_back(self.held.take()),
        }
        Step::Taken
    }
}

/// Returns the function's name if the arguments may follow the head; `None` if the head is incomplete.
fn name(head: &str) -> Option<&str> {
    let head = head.trim_end_matches(is_space);
    let head = head.strip_suffix(ARGS).unwrap_or(head);
    let name = head.split('[').next()?;
    let id = &head[name.len()..];
    (!name.is_empty() && (id.is_empty() || id.starts_with(CALL_ID))).then_some(name)
}

fn may_be_head(head: &str) -> bool {
    let name_end = head.find(|ch: char| !is_name(ch)).unwrap_or(head.len());
    if name_end == 0 || name_end > NAME_BYTES_MAX {
        return false;
    }
    let mut rest = &head[name_end..];
    if let Some(after) = rest.strip_prefix(CALL_ID) {
        let id_end = after.find(|ch: char| !ch.is_ascii_alphanumeric()).unwrap_or(after.len());
        if id_end > NAME_BYTES_MAX {
            return false;
        }
        rest = &after[id_end..];
    } else if CALL_ID.starts_with(rest) {
        return true;
    }
    let space = rest.strip_prefix(ARGS).unwrap_or(rest);
    ARGS.starts_with(rest) || (space.len() <= NAME_BYTES_MAX && space.chars().all(is_space))
}

fn is_name(ch: char) -> bool {
    ch.is_ascii_alphanumeric() || matches!(ch, '_' | '-' | '.')
}

impl Form for Mistral {
    fn feed(&mut self, ch: char, out: &mut Sink) -> Step {
        match &mut self.place {
            Place::Start => self.start(ch, out),
            Place::Array(call) => match call.feed(ch, out) {
                Step::Over => {
                    self.place = Place::Between;
                    Step::Taken
                }
                step => step,
            },
            Place::Between => self.between(ch),
            Place::Object(call) => call.feed(ch, out),
            Place::Head => self.head(ch, out),
            Place::Arguments(arguments) => arguments.feed(ch, out),
        }
    }

    fn finish(&mut self, _: &mut Sink) -> String {
        match &mut self.place {
            Place::Array(call) | Place::Object(call) => call.finish(),
            Place::Start | Place::Head => self.held.take(),
            Place::Between | Place::Arguments(_) => String::new(),
        }
    }
}
