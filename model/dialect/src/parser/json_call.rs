//! Parser of a call that is a JSON object with the function's name and arguments. Several dialects have such calls.

use super::arguments::Arguments;
use super::form::{Held, NAME_BYTES_MAX, Step, give_back, is_space};
use super::json::{Scan, Scanner};
use super::sink::Sink;
use serde_json::{Map, Value};

/// Parser of `{"name": …, "arguments": {…}}`. The keys may come in any order, and other keys are skipped. The call
/// begins when its name and the first character of its arguments are known. Arguments before the name are buffered
/// until the name is known.
#[derive(Debug)]
pub(super) struct JsonCall {
    held: Held,
    /// Whether an object without arguments is refused.
    needs_arguments: bool,
    place: Place,
    stage: Stage,
    scanner: Scanner,
    /// Text of the key or value that is being read.
    part: String,
    key: Key,
    name: Option<String>,
    /// Arguments that came before the name.
    early: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Open,
    KeyOrEnd,
    Key,
    InKey,
    Colon,
    Value,
    InValue,
    AfterValue,
}

/// Part of the call that has been passed on.
#[derive(Debug)]
enum Stage {
    Nothing,
    Some(Arguments),
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Name,
    Arguments,
    Other,
}

impl JsonCall {
    /// Creates the parser. `held` is the text before the object, which is content if the object is no call.
    pub(super) fn new(held: Held, needs_arguments: bool) -> JsonCall {
        JsonCall {
            held,
            needs_arguments,
            place: Place::Open,
            stage: Stage::Nothing,
            scanner: Scanner::new(),
            part: String::new(),
            key: Key::Other,
            name: None,
            early: None,
        }
    }

    /// Whether the whole call has been passed on. The object may go on with other keys.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self.stage, Stage::All)
    }

    /// Parses the next character; the closing brace of the object ends the call. If the text is invalid before the call
    /// has begun, the text is refused from the trigger on. If the text is invalid after the call is complete, only the
    /// text after the arguments is refused.
    pub(super) fn feed(&mut self, ch: char, out: &mut Sink) -> Step {
        if let Stage::Some(arguments) = &mut self.stage {
            let step = arguments.feed(ch, out);
            if step != Step::Over {
                return step;
            }
            self.complete();
            self.place = Place::AfterValue;
            return Step::Taken;
        }
        self.held.push(ch);
        match self.read(ch, out) {
            Some(step) if !self.held.is_full() => step,
            _ if self.is_complete() => give_back(self.held.take()),
            _ => self.held.refuse(),
        }
    }

    /// Ends the text, and returns the buffered text of a call that has not begun.
    pub(super) fn finish(&mut self) -> String {
        if self.is_complete() { String::new() } else { self.held.take() }
    }

    /// Parses a character outside of arguments that are passed on; `None` if the character makes the text invalid.
    fn read(&mut self, ch: char, out: &mut Sink) -> Option<Step> {
        match (self.place, ch) {
            (Place::InKey, _) => self.in_key(ch)?,
            (Place::InValue, _) => match self.scanner.feed(ch, &mut self.part) {
                Scan::More => (),
                Scan::End => self.end_value(out)?,
                Scan::Before => {
                    self.end_value(out)?;
                    return self.read(ch, out);
                }
                Scan::Invalid => return None,
            },
            (_, ch) if is_space(ch) => (),
            (Place::Open, '{') => self.place = Place::KeyOrEnd,
            (Place::Key | Place::KeyOrEnd, '"') => {
                self.place = Place::InKey;
                self.start(ch)?;
            }
            (Place::Colon, ':') => self.place = Place::Value,
            (Place::Value, _) => return self.value(ch, out),
            (Place::AfterValue, ',') => self.place = Place::Key,
            (Place::AfterValue | Place::KeyOrEnd, '}') => return self.close(out),
            _ => return None,
        }
        Some(Step::Taken)
    }

    /// Begins to scan a key or value with its first character.
    fn start(&mut self, ch: char) -> Option<Scan> {
        self.scanner = Scanner::new();
        self.part.clear();
        let scan = self.scanner.feed(ch, &mut self.part);
        (scan != Scan::Invalid).then_some(scan)
    }

    fn in_key(&mut self, ch: char) -> Option<()> {
        match self.scanner.feed(ch, &mut self.part) {
            Scan::More => (),
            Scan::End => {
                let known = self.name.is_some();
                let sent = self.is_complete() || self.early.is_some();
                self.key = match self.part.as_str() {
                    "\"name\"" if !known => Key::Name,
                    "\"arguments\"" | "\"parameters\"" if !sent => Key::Arguments,
                    _ => Key::Other,
                };
                self.place = Place::Colon;
            }
            Scan::Before | Scan::Invalid => return None,
        }
        Some(())
    }

    fn value(&mut self, ch: char, out: &mut Sink) -> Option<Step> {
        if let (Key::Arguments, '{', Some(name)) = (self.key, ch, &self.name) {
            out.begin(name);
            self.held.clear();
            let mut arguments = Arguments::new();
            let step = arguments.feed(ch, out);
            self.stage = Stage::Some(arguments);
            return Some(step);
        }
        self.place = Place::InValue;
        self.start(ch)?;
        Some(Step::Taken)
    }

    fn end_value(&mut self, out: &mut Sink) -> Option<()> {
        self.place = Place::AfterValue;
        match self.key {
            Key::Name => {
                let name: String = serde_json::from_str(&self.part).ok()?;
                if name.is_empty() || name.len() > NAME_BYTES_MAX {
                    return None;
                }
                self.name = Some(name);
                if let Some(early) = self.early.take() {
                    self.send(&early, out)?;
                }
            }
            Key::Arguments if self.name.is_none() => {
                self.early = Some(std::mem::take(&mut self.part));
            }
            Key::Arguments => {
                let arguments = std::mem::take(&mut self.part);
                self.send(&arguments, out)?;
            }
            Key::Other => (),
        }
        Some(())
    }

    /// Passes on a whole call; `None` if the arguments are neither an object, nor `null`, nor a string that holds an
    /// object.
    fn send(&mut self, arguments: &str, out: &mut Sink) -> Option<()> {
        let object = match arguments {
            "null" => "{}".to_owned(),
            _ if arguments.starts_with('{') => arguments.to_owned(),
            // Some models write the arguments as a JSON string that holds the object, which is the form of OpenAI's
            // API.
            _ => {
                let text: String = serde_json::from_str(arguments).ok()?;
                serde_json::from_str::<Map<String, Value>>(&text).ok()?;
                text
            }
        };
        out.begin(self.name.as_deref()?);
        out.arguments(&object);
        out.end();
        self.complete();
        Some(())
    }

    fn complete(&mut self) {
        self.stage = Stage::All;
        self.held.clear();
    }

    fn close(&mut self, out: &mut Sink) -> Option<Step> {
        if !self.is_complete() {
            if self.needs_arguments || self.early.is_some() {
                return None;
            }
            self.send("{}", out)?;
        }
        Some(Step::Over)
    }
}
