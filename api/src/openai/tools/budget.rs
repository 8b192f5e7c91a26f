//! Budget of reasoning tokens: a constraint that makes a model end its reasoning.

use crate::http::ApiError;
use crate::openai::fields::Fields;
use crate::text::Forms;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tiercel_device::{Constraint, ConstraintState, NoToken, TokenId, TokenMask};

/// Field of a chat request that states the budget. The name of the field is vLLM's.
const FIELD: &str = "thinking_token_budget";

/// Constraint that limits the reasoning of an output: after `budget` tokens of reasoning, the only allowed token is the
/// tag that closes the reasoning. At all other positions, the allowed tokens are those of the other constraint `other`,
/// or all tokens without such a constraint.
#[derive(Debug, Clone)]
pub(crate) struct ThinkingBudget {
    other: Option<Arc<dyn Constraint>>,
    /// Token of the tag that opens the reasoning; `None` if the prompt has opened the reasoning.
    open: Option<TokenId>,
    /// Token of the tag that closes the reasoning.
    close: TokenId,
    budget: u32,
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
        let Some(budget) = body.count(FIELD, 0..=u32::MAX)? else { return Ok(None) };
        let tags = forms.reasoning.map(|dialect| [dialect.open_tag(), dialect.close_tag()]);
        let tokens = tags.map(|tags| tags.map(|tag| forms.tokens.get(tag).copied()));
        match tokens {
            Some([open @ Some(_), Some(close)]) => {
                Ok(Some(ThinkingBudget { other: None, open, close, budget, vocab_size }))
            }
            _ => {
                let why = "'thinking_token_budget' needs a model that writes tags of one token around its reasoning";
                Err(ApiError::unsupported(FIELD, why))
            }
        }
    }

    /// Returns the budget for the output of a prompt. `open` says whether the prompt has opened the reasoning.
    pub(crate) fn of_prompt(self, open: bool) -> ThinkingBudget {
        ThinkingBudget { open: self.open.filter(|_| !open), ..self }
    }

    /// Returns the budget together with another constraint on the same output.
    pub(crate) fn beside(self, other: Option<Arc<dyn Constraint>>) -> ThinkingBudget {
        ThinkingBudget { other, ..self }
    }
}

impl Constraint for ThinkingBudget {
    fn start(&self) -> Box<dyn ConstraintState> {
        let phase = match self.open {
            Some(_) => Phase::Before,
            None => Phase::Thinking { used: 0 },
        };
        let other = self.other.as_ref().map(|other| other.start());
        Box::new(State { of: self.clone(), other, phase })
    }

    fn slow(&self) -> Option<&AtomicBool> {
        self.other.as_ref().and_then(|other| other.slow())
    }
}

enum Phase {
    Before,
    Thinking { used: u32 },
    After,
}

struct State {
    of: ThinkingBudget,
    other: Option<Box<dyn ConstraintState>>,
    phase: Phase,
}

impl ConstraintState for State {
    fn mask(&mut self) -> Result<TokenMask, NoToken> {
        let vocab = self.of.vocab_size as usize;
        match (&self.phase, &mut self.other) {
            (Phase::Thinking { used }, _) if *used >= self.of.budget => {
                let mut mask = TokenMask::none(vocab);
                mask.allow(self.of.close);
                Ok(mask)
            }
            (_, Some(other)) => other.mask(),
            (_, None) => Ok(TokenMask::from_words(vec![u32::MAX; vocab.div_ceil(32)])),
        }
    }

    fn advance(&mut self, token: TokenId) -> Result<(), NoToken> {
        if let Some(other) = &mut self.other {
            other.advance(token)?;
        }
        self.phase = match self.phase {
            Phase::Before if self.of.open == Some(token) => Phase::Thinking { used: 0 },
            Phase::Before => Phase::Before,
            Phase::Thinking { .. } if token == self.of.close => Phase::After,
            Phase::Thinking { used } => Phase::Thinking { used: used.saturating_add(1) },
            Phase::After => Phase::After,
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use tiercel_dialect::ReasoningDialect;

    const VOCAB: u32 = 40;

    fn read(
        body: Value,
        reasoning: Option<ReasoningDialect>,
    ) -> Result<Option<ThinkingBudget>, ApiError> {
        let tokens = [("<think>".to_owned(), 8), ("</think>".to_owned(), 9)].into();
        let forms = Forms { reasoning, tokens: Arc::new(tokens), ..Forms::default() };
        ThinkingBudget::read(&Fields::root(&body).unwrap(), (&forms, VOCAB))
    }

    fn budget(tokens: u32) -> ThinkingBudget {
        read(json!({FIELD: tokens}), Some(ReasoningDialect::Think)).unwrap().unwrap()
    }

    /// Returns the number of allowed tokens at the start and after each token of `tokens`.
    fn choices(of: &ThinkingBudget, tokens: &[TokenId]) -> Vec<usize> {
        let mut state = of.start();
        let mut choices = vec![state.mask().unwrap().count()];
        for token in tokens {
            state.advance(*token).unwrap();
            choices.push(state.mask().unwrap().count());
        }
        choices
    }

    #[test]
    fn the_closing_tag_is_forced_when_the_budget_is_spent() {
        let all = VOCAB.next_multiple_of(32) as usize;
        let opened = budget(2).of_prompt(true);
        assert_eq!(
            choices(&opened, &[1, 2, 9, 8, 1, 2, 3]),
            [all, all, 1, all, all, all, all, all]
        );
        let whole = budget(1).of_prompt(false);
        assert_eq!(choices(&whole, &[1, 8, 1, 9, 1]), [all, all, all, 1, all, all]);
        assert_eq!(choices(&budget(0).of_prompt(true), &[9]), [1, all]);
        let mut state = opened.start();
        [1, 2].into_iter().for_each(|token| state.advance(token).unwrap());
        assert!(state.mask().unwrap().allows(9), "the closing tag");
    }

    #[test]
    fn another_constraint_holds_outside_the_forced_tag() {
        let inner = budget(1).of_prompt(true);
        let both = budget(5).of_prompt(true).beside(Some(Arc::new(inner)));
        let all = VOCAB.next_multiple_of(32) as usize;
        assert_eq!(choices(&both, &[1, 9]), [all, 1, all]);
    }

    #[test]
    fn a_model_without_tags_has_no_budget() {
        let error = read(json!({FIELD: 5}), None).unwrap_err();
        assert_eq!(error.body()["error"]["param"], FIELD);
        let error = read(json!({FIELD: -1}), Some(ReasoningDialect::Think)).unwrap_err();
        assert_eq!(error.body()["error"]["param"], FIELD);
        assert!(read(json!({}), None).unwrap().is_none());
    }
}
