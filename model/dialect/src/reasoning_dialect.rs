//! Reasoning dialects: the tags that models write around their reasoning.

use crate::UnknownDialect;
use std::fmt;
use std::str::FromStr;

/// Pair of tags around the reasoning of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReasoningDialect {
    /// `<think>` and `</think>`: Qwen3, DeepSeek-R1, SmolLM3 and many others.
    Think,
    /// `[THINK]` and `[/THINK]`: Mistral's reasoning models.
    Mistral,
}

impl ReasoningDialect {
    /// All reasoning dialects.
    pub const ALL: [ReasoningDialect; 2] = [ReasoningDialect::Think, ReasoningDialect::Mistral];

    /// Returns the name of the dialect in the settings.
    pub fn name(self) -> &'static str {
        match self {
            ReasoningDialect::Think => "think",
            ReasoningDialect::Mistral => "mistral",
        }
    }

    /// Returns the tag before the reasoning.
    pub fn open_tag(self) -> &'static str {
        match self {
            ReasoningDialect::Think => "<think>",
            ReasoningDialect::Mistral => "[THINK]",
        }
    }

    /// Returns the tag after the reasoning.
    pub fn close_tag(self) -> &'static str {
        match self {
            ReasoningDialect::Think => "</think>",
            ReasoningDialect::Mistral => "[/THINK]",
        }
    }

    /// Returns the reasoning dialect of a model, given the source of its chat template and the texts of its tokenizer's
    /// added tokens; `None` if neither contains the closing tag of a dialect.
    pub fn detect(template: &str, added_tokens: &[&str]) -> Option<ReasoningDialect> {
        ReasoningDialect::ALL.into_iter().find(|dialect| {
            let tag = dialect.close_tag();
            template.contains(tag) || added_tokens.contains(&tag)
        })
    }

    /// Whether a rendered prompt ends with the opening tag, so that the model's text begins with reasoning.
    pub fn is_open(self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.open_tag())
    }
}

impl fmt::Display for ReasoningDialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ReasoningDialect {
    type Err = UnknownDialect;

    fn from_str(given: &str) -> Result<ReasoningDialect, UnknownDialect> {
        let all = ReasoningDialect::ALL;
        all.into_iter().find(|dialect| dialect.name() == given).ok_or_else(|| UnknownDialect {
            given: given.to_owned(),
            known: all.map(ReasoningDialect::name).join(", "),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests state what must hold")]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for dialect in ReasoningDialect::ALL {
            assert_eq!(dialect.to_string().parse(), Ok(dialect));
        }
        let error = "qwen".parse::<ReasoningDialect>().unwrap_err();
        assert_eq!(error.to_string(), "`qwen` is no dialect; the dialects are think, mistral");
    }

    #[test]
    fn the_tags_of_a_template_or_tokenizer_decide() {
        let found = ReasoningDialect::detect("{{ content.split('</think>')[-1] }}", &[]);
        assert_eq!(found, Some(ReasoningDialect::Think));
        let found = ReasoningDialect::detect("{{ messages }}", &["[THINK]", "[/THINK]"]);
        assert_eq!(found, Some(ReasoningDialect::Mistral));
        assert_eq!(ReasoningDialect::detect("<|im_start|>", &["<|im_end|>"]), None);
    }

    #[test]
    fn a_prompt_that_ends_with_the_open_tag_is_open() {
        let dialect = ReasoningDialect::Think;
        assert!(dialect.is_open("<|im_start|>assistant\n<think>\n"));
        assert!(!dialect.is_open("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
        assert!(!dialect.is_open("<|im_start|>assistant\n"));
    }
}
