//! Call parser of the pythonic dialect: `[f(a=1), g(b="x")]`, as the whole answer or after `<|python_start|>`.

use super::closing::Closing;
use super::form::{Form, Held, NAME_BYTES_MAX, Step, give_back, is_space};
use super::json::{Scan, quoted};
use super::python::Literal;
use super::sink::Sink;

/// Call parser of the pythonic dialect, after the trigger if there is one.
#[derive(Debug)]
pub(super) struct Pythonic {
    held: Held,
    place: Place,
    /// Name of the function, until the call has begun.
    name: String,
    /// Name of the argument that is being read.
    argument: String,
    has_arguments: bool,
}

#[derive(Debug)]
enum Place {
    /// Before the opening bracket.
    Start,
    /// In a function's name, or in whitespace around the name.
    Function,
    /// After the opening parenthesis of a call that has not begun.
    First,
    /// After the closing parenthesis of a call without arguments that has not begun.
    Empty,
    /// In an argument's name, or in whitespace around the name; or before a closing parenthesis.
    Argument,
    Value(Literal),
    AfterValue,
    AfterCall,
    Closing(Closing),
}

impl Pythonic {
    pub(super) fn new(opening: &str) -> Pythonic {
        Pythonic {
            held: Held::new(opening),
            place: Place::Start,
            name: String::new(),
            argument: String::new(),
            has_arguments: false,
        }
    }

    /// Parses a character of a call's head, which ends with the `=` after the first argument's name; `None` if the text
    /// is no call.
    fn head(&mut self, ch: char, out: &mut Sink) -> Option<Step> {
        match (&self.place, ch) {
            (Place::Function, '(') if !self.name.is_empty() => self.place = Place::First,
            (Place::First, ')') if self.argument.is_empty() => self.place = Place::Empty,
            (Place::First, '=') if !self.argument.is_empty() => {
                self.begin(out);
                self.begin_value(out);
            }
            (Place::Start | Place::Function | Place::First | Place::Empty, _) if is_space(ch) => {
                // A space marks the end of the name, so that a further character of the name is refused.
                let name = if matches!(self.place, Place::First) {
                    &mut self.argument
                } else {
                    &mut self.name
                };
                if !name.is_empty() && !matches!(self.place, Place::Empty) {
                    name.push(' ');
                }
            }
            (Place::Start, '[') => self.place = Place::Function,
            (Place::Function, _) => push_name(&mut self.name, ch, "-.")?,
            (Place::First, _) => push_name(&mut self.argument, ch, "")?,
            (Place::Empty, ',' | ']') => {
                self.begin(out);
                self.end(out);
                return Some(self.after_call(ch));
            }
            _ => return None,
        }
        Some(Step::Taken)
    }

    /// Parses a character after a call's head, outside of a value; `None` if the text does not continue the call.
    fn body(&mut self, ch: char, out: &mut Sink) -> Option<Step> {
        match (&self.place, ch) {
            (Place::Argument, _) if is_space(ch) => {
                if !self.argument.is_empty() {
                    self.argument.push(' ');
                }
            }
            (Place::Argument, '=') if !self.argument.trim_end().is_empty() => self.begin_value(out),
            (Place::Argument, ')') if self.argument.is_empty() => self.end(out),
            (Place::Argument, _) => push_name(&mut self.argument, ch, "")?,
            (Place::AfterValue | Place::AfterCall, _) if is_space(ch) => (),
            (Place::AfterValue, ',') => self.place = Place::Argument,
            (Place::AfterValue, ')') => self.end(out),
            (Place::AfterCall, _) => return Some(self.after_call(ch)),
            _ => return None,
        }
        Some(Step::Taken)
    }

    fn begin(&mut self, out: &mut Sink) {
        out.begin(self.name.trim_end());
        out.arguments("{");
        self.has_arguments = false;
        self.name.clear();
        self.held.clear();
    }

    fn begin_value(&mut self, out: &mut Sink) {
        let comma = if std::mem::replace(&mut self.has_arguments, true) { ", " } else { "" };
        out.arguments(&format!("{comma}{}: ", quoted(self.argument.trim_end())));
        self.argument.clear();
        self.place = Place::Value(Literal::new());
        self.held.clear();
    }

    fn value(&mut self, ch: char, out: &mut Sink) -> Step {
        let Place::Value(literal) = &mut self.place else { return Step::Taken };
        let mut json = String::new();
        let scan = literal.feed(ch, &mut json);
        out.arguments(&json);
        match scan {
            Scan::More => return Step::Taken,
            Scan::Invalid => return give_back(ch.to_string()),
            Scan::End | Scan::Before => self.place = Place::AfterValue,
        }
        if scan == Scan::Before { self.feed(ch, out) } else { Step::Taken }
    }

    fn end(&mut self, out: &mut Sink) {
        out.arguments("}");
        out.end();
        self.place = Place::AfterCall;
        self.held.clear();
    }

    fn after_call(&mut self, ch: char) -> Step {
        match ch {
            ']' => self.place = Place::Closing(Closing::new("<|python_end|>")),
            ',' => self.place = Place::Function,
            _ => return give_back(self.held.take()),
        }
        Step::Taken
    }
}

/// Appends a character to a name of letters, digits, `_` and the characters of `more`; `None` if the character is not
/// allowed.
fn push_name(name: &mut String, ch: char, more: &str) -> Option<()> {
    let first = name.is_empty();
    let fits = ch.is_ascii_alphabetic()
        || ch == '_'
        || !first && (ch.is_ascii_digit() || more.contains(ch));
    let fits = fits && name.len() < NAME_BYTES_MAX && !name.ends_with(' ');
    fits.then(|| name.push(ch))
}

impl Form for Pythonic {
    fn feed(&mut self, ch: char, out: &mut Sink) -> Step {
        match &mut self.place {
            Place::Value(_) => return self.value(ch, out),
            Place::Closing(closing) => return closing.feed(ch),
            _ => (),
        }
        self.held.push(ch);
        let head =
            matches!(self.place, Place::Start | Place::Function | Place::First | Place::Empty);
        let step = if head { self.head(ch, out) } else { self.body(ch, out) };
        match step {
            Some(step) if !self.held.is_full() => step,
            _ if head => self.held.refuse(),
            _ => give_back(self.held.take()),
        }
    }

    fn finish(&mut self, out: &mut Sink) -> String {
        match &mut self.place {
            Place::Start | Place::Function | Place::First | Place::Empty => self.held.take(),
            Place::Value(literal) => {
                out.arguments(&literal.finish());
                String::new()
            }
            Place::Argument => self.argument.clone(),
            Place::AfterValue | Place::AfterCall | Place::Closing(_) => String::new(),
        }
    }
}
