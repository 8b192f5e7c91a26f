//! Texts of fields that are passed on while they arrive.

/// Maximum length of whitespace that is held back, bytes.
const SPACE_BYTES_MAX: usize = 1024;

/// Text of one field. Whitespace at the ends of the text is left out, unless the field says otherwise.
#[derive(Debug)]
pub(super) struct FieldText {
    strip: bool,
    /// Whether a part of the text has been passed on.
    begun: bool,
    /// Whitespace that is passed on if more text follows.
    space: String,
}

impl FieldText {
    pub(super) fn new(strip: bool) -> FieldText {
        FieldText { strip, begun: false, space: String::new() }
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
        if kept.is_empty() {
            self.space.push_str(text);
            if self.space.len() <= SPACE_BYTES_MAX {
                return String::new();
            }
            return std::mem::take(&mut self.space);
        }
        self.begun = true;
        let out = std::mem::take(&mut self.space) + kept;
        self.space = text[kept.len()..].to_owned();
        out
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
        let mut spaces = FieldText::new(true);
        let mut begun = FieldText::new(true);
        begun.skip("Once");
        assert_eq!(begun.push(" upon "), " upon");
        let parts = ["a", &" ".repeat(SPACE_BYTES_MAX), "  "].map(|part| spaces.push(part));
        assert_eq!(parts.concat().len(), 1 + SPACE_BYTES_MAX + 2);
    }
}
