//! Parser that reads the text of one argument between `<parameter=…>` and `</parameter>` and writes the argument as
//! JSON.

use super::form::{HELD_BYTES_MAX, is_space};
use super::json::push_escaped;
use super::sink::Sink;
use super::typed::Kind;
use crate::Tool;

const PARAMETER_END: &str = "</parameter>";
const FUNCTION_END: &str = "</function>";
const CALL_END: &str = "</tool_call>";
/// Maximum length of whitespace between two closing tags, bytes.
const SPACE_BYTES_MAX: usize = 64;

/// Parser of the text of one argument. One line break after the opening tag and one line break before the closing tag
/// are markup. A closing tag counts only together with a tag that may follow it, because a value may contain the
/// text of such tags.
#[derive(Debug)]
pub(super) struct XmlValue {
    kind: Kind,
    /// Whether the line break after the opening tag may still come.
    fresh: bool,
    /// Buffered text that may be the end of the value.
    ending: String,
    /// Buffered value whose type must be known before the value is written; `None` while a string is written.
    held: Option<String>,
}

/// End of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The closing tag of the value, and this text of the next tag.
    Parameter(&'static str),
    /// The closing tag of the call, after that of the value or of the function; the other one of these two is missing.
    Call,
}

enum Ending {
    No,
    Maybe,
    Yes(End),
}

impl XmlValue {
    pub(super) fn new(tool: Option<&Tool>, name: &str) -> XmlValue {
        let root = tool.and_then(|tool| tool.parameters.as_ref());
        let kind = Kind::of(tool.and_then(|tool| tool.argument(name)), root);
        XmlValue { kind, fresh: true, ending: String::new(), held: Some(String::new()) }
    }

    /// Parses the next character, and returns the end of the value if the character completes the end.
    pub(super) fn feed(&mut self, ch: char, out: &mut Sink) -> Option<End> {
        if std::mem::take(&mut self.fresh) && ch == '\n' {
            return None;
        }
        self.ending.push(ch);
        loop {
            match ending(&self.ending) {
                Ending::Maybe => return None,
                Ending::Yes(end) => {
                    self.close(out);
                    return Some(end);
                }
                Ending::No => {
                    let first = self.ending.remove(0);
                    self.write(first, out);
                }
            }
        }
    }

    /// Ends the text within the value, and writes the buffered text.
    pub(super) fn finish(&mut self, out: &mut Sink) {
        let ending = std::mem::take(&mut self.ending);
        // An incomplete closing tag is markup.
        if !ending.trim_start_matches('\n').starts_with("</") {
            ending.chars().for_each(|ch| self.write(ch, out));
        }
        if let Some(held) = self.held.take().filter(|held| !held.is_empty()) {
            self.begin_string(&held, out);
        }
    }

    fn write(&mut self, ch: char, out: &mut Sink) {
        let Some(held) = &mut self.held else {
            let mut json = String::new();
            push_escaped(ch, &mut json);
            out.arguments(&json);
            return;
        };
        held.push(ch);
        if held.len() > self.kind.held_bytes_max().unwrap_or(HELD_BYTES_MAX) {
            let held = std::mem::take(held);
            self.held = None;
            self.begin_string(&held, out);
        }
    }

    fn begin_string(&mut self, text: &str, out: &mut Sink) {
        let mut json = String::from("\"");
        text.chars().for_each(|ch| push_escaped(ch, &mut json));
        out.arguments(&json);
    }

    fn close(&mut self, out: &mut Sink) {
        match self.held.take() {
            Some(text) => out.arguments(&self.kind.json(&text)),
            None => out.arguments("\""),
        }
    }
}

/// Returns whether a text is the end of a value, or a prefix of such an end.
fn ending(text: &str) -> Ending {
    let tags = text.strip_prefix('\n').unwrap_or(text);
    let ends: [(&str, &'static str, End); 4] = [
        (PARAMETER_END, "<parameter=", End::Parameter("<parameter=")),
        (PARAMETER_END, FUNCTION_END, End::Parameter(FUNCTION_END)),
        (PARAMETER_END, CALL_END, End::Call),
        (FUNCTION_END, CALL_END, End::Call),
    ];
    let mut maybe = false;
    for (first, next, end) in ends {
        let Some(rest) = tags.strip_prefix(first) else {
            maybe |= first.starts_with(tags);
            continue;
        };
        let tag = rest.trim_start_matches(is_space);
        if tag == next {
            return Ending::Yes(end);
        }
        maybe |= next.starts_with(tag) && rest.len() - tag.len() <= SPACE_BYTES_MAX;
    }
    if maybe { Ending::Maybe } else { Ending::No }
}
