//! Call parser of Qwen3-Coder's dialect: `<tool_call><function=…><parameter=…>…</parameter></function></tool_call>`.
//! The arguments are texts without quotes.

use super::closing::Closing;
use super::form::{Form, Held, NAME_BYTES_MAX, Step, give_back, is_space};
use super::json::quoted;
use super::sink::Sink;
use super::xml_value::{End, XmlValue};
use crate::Tools;

const FUNCTION: &str = "<function=";
const PARAMETER: &str = "<parameter=";
const FUNCTION_END: &str = "</function>";

/// Call parser of Qwen3-Coder's dialect, after the trigger `<tool_call>` or `<function=`. The models of this dialect
/// sometimes leave out `<tool_call>`.
#[derive(Debug)]
pub(super) struct QwenXml {
    tools: Tools,
    held: Held,
    /// Text of the tag that is being read, from its first character.
    tag: String,
    place: Place,
    /// Name of the function until the call begins, which happens at the first tag after the tag with the name.
    name: Option<String>,
    /// Name of the function that is called.
    called: String,
    has_arguments: bool,
}

#[derive(Debug)]
enum Place {
    /// Before or within the tag with the function's name.
    Function,
    /// Before or within a tag of the function's body.
    Body,
    Value(XmlValue),
    Closing(Closing),
}

impl QwenXml {
    pub(super) fn new(opening: &str, tools: &Tools) -> QwenXml {
        let tag = if opening == FUNCTION { FUNCTION } else { "" };
        QwenXml {
            tools: tools.clone(),
            held: Held::new(opening),
            tag: tag.to_owned(),
            place: Place::Function,
            name: None,
            called: String::new(),
            has_arguments: false,
        }
    }

    fn function(&mut self, ch: char) -> Step {
        self.held.push(ch);
        if !(self.tag.is_empty() && is_space(ch)) {
            self.tag.push(ch);
        }
        if let Some(name) = named(&self.tag, FUNCTION) {
            self.called = name.to_owned();
            self.name = Some(name.to_owned());
            self.tag.clear();
            self.place = Place::Body;
            return Step::Taken;
        }
        let goes_on = may_be_named(&self.tag, FUNCTION) && !self.held.is_full();
        if goes_on { Step::Taken } else { self.held.refuse() }
    }

    fn body(&mut self, ch: char, out: &mut Sink) -> Step {
        self.held.push(ch);
        if !(self.tag.is_empty() && is_space(ch)) {
            self.tag.push(ch);
        }
        if self.tag == FUNCTION_END {
            self.begin(out);
            self.end(out);
        } else if let Some(name) = named(&self.tag, PARAMETER) {
            let name = name.to_owned();
            self.begin(out);
            self.begin_value(&name, out);
        } else if self.held.is_full()
            || !(FUNCTION_END.starts_with(&self.tag) || may_be_named(&self.tag, PARAMETER))
        {
            let begun = self.name.is_none();
            return if begun { give_back(self.held.take()) } else { self.held.refuse() };
        }
        Step::Taken
    }

    fn begin(&mut self, out: &mut Sink) {
        if let Some(name) = self.name.take() {
            out.begin(&name);
            out.arguments("{");
        }
        self.held.clear();
    }

    fn begin_value(&mut self, name: &str, out: &mut Sink) {
        self.tag.clear();
        let comma = if std::mem::replace(&mut self.has_arguments, true) { ", " } else { "" };
        out.arguments(&format!("{comma}{}: ", quoted(name)));
        self.place = Place::Value(XmlValue::new(self.tools.get(&self.called), name));
    }

    fn end(&mut self, out: &mut Sink) {
        out.arguments("}");
        out.end();
        self.place = Place::Closing(Closing::new("</tool_call>"));
    }
}

/// Returns the name in a complete tag such as `<function=name>`; `None` for any other text.
fn named<'a>(tag: &'a str, opening: &str) -> Option<&'a str> {
    let name = tag.strip_prefix(opening)?.strip_suffix('>')?.trim_matches(' ');
    (!name.is_empty()).then_some(name)
}

/// Whether a text is a prefix of a tag with a name. Only names of arguments may have blanks.
fn may_be_named(tag: &str, opening: &str) -> bool {
    let has_blanks = opening == PARAMETER;
    match tag.strip_prefix(opening) {
        Some(name) => {
            let ends_name = |ch| match ch {
                ' ' => !has_blanks,
                _ => is_space(ch) || matches!(ch, '<' | '>'),
            };
            name.len() <= NAME_BYTES_MAX && !name.contains(ends_name)
        }
        None => opening.starts_with(tag),
    }
}

impl Form for QwenXml {
    fn feed(&mut self, ch: char, out: &mut Sink) -> Step {
        match &mut self.place {
            Place::Function => self.function(ch),
            Place::Body => self.body(ch, out),
            Place::Value(value) => {
                match value.feed(ch, out) {
                    None => (),
                    Some(End::Parameter(tag)) => {
                        self.tag.push_str(tag);
                        self.held.clear();
                        self.place = Place::Body;
                        if tag == FUNCTION_END {
                            self.end(out);
                        }
                    }
                    Some(End::Call) => {
                        self.end(out);
                        return Step::Over;
                    }
                }
                Step::Taken
            }
            Place::Closing(closing) => closing.feed(ch),
        }
    }

    fn finish(&mut self, out: &mut Sink) -> String {
        match &mut self.place {
            Place::Function => self.held.take(),
            Place::Body if self.name.is_some() => self.held.take(),
            Place::Value(value) => {
                value.finish(out);
                String::new()
            }
            // An incomplete tag is markup.
            Place::Body | Place::Closing(_) => String::new(),
        }
    }
}
