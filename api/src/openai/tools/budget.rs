//! Budget of reasoning tokens: a constraint that makes a model end its reasoning.

use crate::http::ApiError;
use crate::openai::fields::Fields;
use crate::openai::tools::Parsing;
use crate::text::{Forms, ShownTokens, StreamDecoder, Text};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tiercel_device::{Constraint, ConstraintState, NoToken, TokenId, TokenMask};
use tiercel_dialect::Parser;

/// Field of a chat request that states the budget. The name of the field is vLLM's.
const FIELD: &str = "thinking_token_budget";
/// Maximum number of tokens that finish a character after the budget is spent.
const FINISHING_TOKENS: u32 = 3;

/// Budget of reasoning tokens that a request states.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThinkingBudget {
    tokens: u32,
    /// Token of the tag that closes the reasoning.
    close: TokenId,
    vocab_size: u32,
}

impl ThinkingBudget {
    /// Reads the budget of a chat request, if the request states a budget.
    ///
    /// # Errors
    /// 400 for a budget that is no whole number, and for a model whose reasoning tags are not single tokens.
    pub(crate) fn read(
        body: &Fields<'_>,
        (forms, vocab_size): (&Forms, u32),
    ) -> Result<Option<ThinkingBudget>, ApiError> {
        let Some(tokens) = body.count(FIELD, 0..=u32::MAX)? else { return Ok(None) };
        let tags = forms.reasoning.map(|dialect| [dialect.open_tag(), dialect.close_tag()]);
        match tags.map(|tags| tags.map(|tag| forms.tokens.get(tag).copied())) {
            Some([Some(_), Some(close)]) => Ok(Some(ThinkingBudget { tokens, close, vocab_size })),
            _ => {
                let why = "'thinking_token_budget' needs a model that writes tags of one token around its reasoning";
                Err(ApiError::unsupported(FIELD, why))
            }
        }
    }

    /// Returns the budget as a constraint on the answers that `parsing` splits into parts.
    pub(crate) fn of_answers(self, text: Arc<Text>, parsing: Parsing) -> ReasoningLimit {
        ReasoningLimit { budget: self, text, parsing, other: None }
    }
}

/// Constraint that limits the reasoning of an answer: after the tokens of the budget, the only allowed token is the tag
/// that closes the reasoning. At all other positions, the allowed tokens are those of the other constraint `other`, or
/// all tokens without such a constraint.
///
/// The parser of the answer says which tokens are reasoning, so that a tag in the content has no effect. The tag is not
/// forced at a position where `other` does not allow the tag, for example within a character; without `other`, the tag
/// waits until the character is complete, for at most [`FINISHING_TOKENS`] tokens.
#[derive(Clone)]
pub(crate) struct ReasoningLimit {
    budget: ThinkingBudget,
    text: Arc<Text>,
    parsing: Parsing,
    other: Option<Arc<dyn Constraint>>,
}

impl ReasoningLimit {
    /// Returns the limit together with another constraint on the same output.
    pub(crate) fn beside(self, other: Option<Arc<dyn Constraint>>) -> ReasoningLimit {
        ReasoningLimit { other, ..self }
    }
}

impl fmt::Debug for ReasoningLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("ReasoningLimit");
        fields.field("budget", &self.budget).field("other", &self.other).finish_non_exhaustive()
    }
}

impl Constraint for ReasoningLimit {
    fn start(&self) -> Box<dyn ConstraintState> {
        let decoder = self.text.decoder(ShownTokens::Only(self.parsing.shown()));
        let reading = Reading { decoder, parser: self.parsing.reads(), used: 0 };
        let other = self.other.as_ref().map(|other| other.start());
        Box::new(State { budget: self.budget, other, reading: Some(reading) })
    }

    fn slow(&self) -> Option<&AtomicBool> {
        self.other.as_ref().and_then(|other| other.slow())
    }
}

/// Reader of an answer, which finds the answer's reasoning.
struct Reading {
    decoder: StreamDecoder,
    parser: Parser,
    /// Number of tokens of the reasoning so far.
    used: u32,
}

impl Reading {
    /// Reads the next token. Returns whether reasoning may follow.
    fn read(&mut self, token: TokenId, close: TokenId) -> bool {
        let inside = self.parser.is_in_reasoning();
        self.used = self.used.saturating_add(u32::from(inside));
        self.parser.push(&self.decoder.push(token));
        self.parser.may_reason() && !(inside && token == close)
    }

    /// Whether the next token is reasoning and the budget of `tokens` has no token left.
    fn exceeds(&self, tokens: u32) -> bool {
        self.parser.is_in_reasoning() && self.used >= tokens
    }

    /// Whether the model may finish a character although the budget of `tokens` is spent.
    fn may_finish_character(&self, tokens: u32) -> bool {
        self.decoder.is_within_character() && self.used - tokens < FINISHING_TOKENS
    }
}

struct State {
    budget: ThinkingBudget,
    other: Option<Box<dyn ConstraintState>>,
    /// Reader of the answer; `None` after the reasoning.
    reading: Option<Reading>,
}

impl ConstraintState for State {
    fn mask(&mut self) -> Result<TokenMask, NoToken> {
        let ThinkingBudget { tokens, close, vocab_size } = self.budget;
        let vocab = vocab_size as usize;
        let other = self.other.as_mut().map(|other| other.mask()).transpose()?;
        if let Some(reading) = self.reading.as_ref().filter(|reading| reading.exceeds(tokens)) {
            let may_close = match &other {
                Some(mask) => mask.allows(close),
                None => !reading.may_finish_character(tokens),
            };
            if may_close {
                let mut mask = TokenMask::none(vocab);
                mask.allow(close);
                return Ok(mask);
            }
        }
        Ok(other.unwrap_or_else(|| TokenMask::from_words(vec![u32::MAX; vocab.div_ceil(32)])))
    }

    fn advance(&mut self, token: TokenId) -> Result<(), NoToken> {
        if let Some(other) = &mut self.other {
            other.advance(token)?;
        }
        if self.reading.as_mut().is_some_and(|reading| !reading.read(token, self.budget.close)) {
            self.reading = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::tools::Offer;
    use crate::text::MockVocabulary;
    use serde_json::{Value, json};
    use tiercel_config::ModelSettings;
    use tiercel_grammar::{Grammars, Source};

    /// Text of a vocabulary that has the tags as tokens, and all other characters as bytes.
    fn text() -> (Arc<Text>, u32) {
        let vocabulary = Arc::new(MockVocabulary::of_replies(["<think>"].into_iter()));
        let size = vocabulary.len();
        (Arc::new(Text::of_mock(vocabulary, None).unwrap()), size)
    }

    fn forms() -> Forms {
        text().0.forms(&ModelSettings::default())
    }

    fn read(body: Value, forms: &Forms) -> Result<Option<ThinkingBudget>, ApiError> {
        ThinkingBudget::read(&Fields::root(&body).unwrap(), (forms, text().1))
    }

    /// Returns the limit of `tokens` tokens for the answers to a prompt that ends with `tail`.
    fn limit(tokens: u32, tail: &str) -> ReasoningLimit {
        let parsing = Parsing::new(&forms(), Offer::default(), tail).unwrap();
        let budget = read(json!({FIELD: tokens}), &forms()).unwrap().unwrap();
        budget.of_answers(text().0, parsing)
    }

    /// Returns the position of the first token of an answer at which the limit forces the closing tag. The tokens are
    /// the tags in `answer`, and the bytes of the other text.
    fn forced(limit: &ReasoningLimit, answer: &[u8]) -> Option<usize> {
        let mut state = limit.start();
        let close = limit.budget.close;
        let open = forms().tokens["<think>"];
        let (mut rest, mut at) = (answer, 0);
        loop {
            let mask = state.mask().unwrap();
            if mask.count() == 1 && mask.allows(close) {
                return Some(at);
            }
            let tags = [(&b"<think>"[..], open), (&b"</think>"[..], close)];
            let tag = tags.into_iter().find(|(tag, _)| rest.starts_with(tag));
            let (text, token) = match (tag, rest.first()) {
                (Some(tag), _) => tag,
                (None, Some(byte)) => (&rest[..1], u32::from(*byte)),
                (None, None) => return None,
            };
            assert!(mask.allows(token), "token {at}");
            state.advance(token).unwrap();
            (rest, at) = (&rest[text.len()..], at + 1);
        }
    }

    const OPENED: &str = "<|im_start|>assistant\n<think>\n";

    #[test]
    fn the_closing_tag_is_forced_when_the_budget_is_spent() {
        assert_eq!(forced(&limit(2, OPENED), b"abc"), Some(2));
        assert_eq!(forced(&limit(0, OPENED), b"abc"), Some(0));
        assert_eq!(forced(&limit(2, OPENED), b"ab"), Some(2));
        assert_eq!(forced(&limit(2, OPENED), b"a</think>abc<think>abc"), None);
        assert_eq!(forced(&limit(1, ""), b"<think>abc"), Some(2));
        assert_eq!(forced(&limit(1, ""), b" \n<think>abc"), Some(4));
    }

    #[test]
    fn a_tag_that_is_content_for_the_parser_has_no_effect() {
        assert_eq!(forced(&limit(1, ""), b"x<think>abc"), None);
        assert_eq!(forced(&limit(1, ""), b"<th<think>abc"), None);
        let spaces = [&[b' '; 65][..], b"<think>abc"].concat();
        assert_eq!(forced(&limit(1, ""), &spaces), None);
        let closed = "assistant\n<think>\n\n</think>\n\n";
        assert_eq!(forced(&limit(1, closed), b"The tag <think> is for reasoning."), None);
    }

    /// Returns the position at which the limit forces the closing tag after the bytes of these texts.
    fn forced_after_bytes(limit: &ReasoningLimit, answer: &str) -> Option<usize> {
        let mut state = limit.start();
        for (at, byte) in answer.bytes().enumerate() {
            if state.mask().unwrap().count() == 1 {
                return Some(at);
            }
            state.advance(u32::from(byte)).unwrap();
        }
        None
    }

    #[test]
    fn tags_may_be_written_with_several_tokens() {
        assert_eq!(forced_after_bytes(&limit(2, ""), "<think>abc"), Some("<think>ab".len()));
        assert_eq!(forced_after_bytes(&limit(9, OPENED), "a</think>abcd"), None);
    }

    #[test]
    fn a_character_is_finished_before_the_closing_tag() {
        let limited = limit(1, OPENED);
        assert_eq!(forced(&limited, "€uro".as_bytes()), Some(3));
        assert_eq!(forced(&limited, "a€uro".as_bytes()), Some(1));
        assert_eq!(forced(&limited, "😀!".as_bytes()), Some(4));
        assert_eq!(forced(&limited, b"\xe2\xe2\xe2\xe2\xe2\xe2"), Some(4), "no character");

        let (text, size) = text();
        let grammars = Grammars::new(&text.vocabulary(size)).unwrap();
        let source = "start: thought \"ok\"\nthought[suffix=\"</think>\"]: TEXT\nTEXT: /(?s:.*)/";
        let grammar = grammars.compile(&Source::Lark(source.into())).unwrap().constraint;
        let both = limited.beside(Some(grammar));
        assert_eq!(forced(&both, "€uro".as_bytes()), Some(3));
        let mut state = both.start();
        let close = both.budget.close;
        for token in "😀".bytes().map(u32::from).chain([close, u32::from(b'o')]) {
            assert!(state.mask().unwrap().allows(token), "{token}");
            state.advance(token).unwrap();
        }
        assert!(!state.mask().unwrap().allows(u32::from(b'o')), "the grammar goes on");
    }

    #[test]
    fn a_model_without_tags_has_no_budget() {
        let error = read(json!({FIELD: 5}), &Forms::default()).unwrap_err();
        assert_eq!(error.body()["error"]["param"], FIELD);
        let error = read(json!({FIELD: -1}), &forms()).unwrap_err();
        assert_eq!(error.body()["error"]["param"], FIELD);
        assert!(read(json!({}), &forms()).unwrap().is_none());
    }
}
