//! Texts of fields that are passed on while they arrive.

/// Maximum length of whitespace that is held back, bytes. Longer whitespace is passed on, even at the end of a text.
const SPACE_BYTES_MAX: usize = 1024;

/// Text of one field. Whitespace at the ends of the text is left out, unless the field says otherwise.
#[derive(Debug)]
pub(super) struct FieldText {
    strip: bool,
    /// Whether a part of the text has been passed on.
    begun: bool,
    /// Whitespace that is passed on if more text follows.
    space: String,
    /// Whether the whitespace at the end of the text is longer than the maximum, so that more of it is passed on.
    is_long: bool,
}

impl FieldText {
    pub(super) fn new(strip: bool) -> FieldText {
        FieldText { strip, begun: false, space: String::new(), is_long: false }
    }

    /// Whether no part of the text has been passed on.
    pub(super) fn is_fresh(&self) -> bool {
        !self.begun
    }

    /// Takes the beginning of the text, which the prompt has and which is not passed on.
    pub(super) fn skip(&mut self, text: &str) {
        self.begun |= !text.trim().is_empty();
    }

    /// Takes more of the text, and returns the text that can be passed on.
    pub(super) fn push(&mut self, text: &str) -> String {
        if !self.strip {
            self.begun |= !text.is_empty();
            return text.to_owned();
        }
        let text = if self.begun { text } else { text.trim_start() };
        let kept = text.trim_end();
        let mut out = String::new();
        if !kept.is_empty() {
            out = self.verbatim(kept);
        }
        self.space.push_str(&text[kept.len()..]);
        self.is_long |= self.space.len() > SPACE_BYTES_MAX;
        if self.is_long {
            out.push_str(&std::mem::take(&mut self.space));
        }
        out
    }

    /// Takes more of the text, whose whitespace is not left out. Returns the text that can be passed on.
    pub(super) fn verbatim(&mut self, text: &str) -> String {
        self.begun = true;
        self.is_long = false;
        std::mem::take(&mut self.space) + text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whitespace_at_the_ends_is_left_out() {
        let mut text = FieldText::new(true);
        let parts = ["\n ", " a", "", " \n", "b ", "c\n", "\n"].map(|part| text.push(part));
        assert_eq!(parts.concat(), "a \nb c");
        assert_eq!(FieldText::new(false).push(" a "), " a ");
        let mut begun = FieldText::new(true);
        begun.skip("Once");
        assert_eq!(begun.push(" upon "), " upon");
        let long = " ".repeat(SPACE_BYTES_MAX);
        for parts in [vec!["a", &long, "  ", "", " "], vec!["a", &format!("{long}   ")]] {
            let mut text = FieldText::new(true);
            let out: String = parts.into_iter().map(|part| text.push(part)).collect();
            assert_eq!(out.len(), 1 + SPACE_BYTES_MAX + 3);
            assert_eq!(text.push("b ") + &text.push(" ") + &text.verbatim(" c "), "b   c ");
        }
    }
}
