//! Chooses the next token from a row of logits.
//!
//! Options apply in vLLM's order: logit bias, repetition penalty, frequency penalty and presence penalty. Then the mask
//! of the sequence's constraint excludes tokens, and so does the least number of output tokens. Then the
//! log-probabilities that a client asked for are computed. The token is chosen last: by greedy decoding, or by
//! temperature, min-p, top-k, top-p and a random draw. Min-p is relative to the most likely token. Top-p is a share of
//! the weight that min-p and top-k left. Tokens of equal weight are ranked by id, the lower id first.
//!
//! A draw depends only on the logits and `(seed, output index)`. Other sequences in the batch and repeats of a step
//! cannot change the text. An option that is off costs nothing. No option sorts the vocabulary.

mod draw;
mod logprobs;
mod numeric;
mod penalties;
#[cfg(test)]
mod tests;
mod truncate;

use penalties::Penalties;
use std::sync::Arc;
use tiercel_device::{
    ConstrainedOutput, MaskThreads, MaskWait, MinTokens, NotSampled, Sampled, SamplingParams,
    TokenId, TokenMask,
};
use tiercel_gpu::Draw;

/// Temperature below which sampling is greedy: dividing by a smaller temperature would overflow.
const TEMPERATURE_MIN: f32 = 1e-5;

/// Sampler of one sequence: its sampling parameters, the token counts for penalties, and the state of its constraint.
#[derive(Debug)]
pub struct Sampler {
    params: Arc<SamplingParams>,
    vocab: usize,
    penalties: Option<Penalties>,
    constrained: Option<ConstrainedOutput>,
}

impl Sampler {
    /// Creates the sampler of a sequence that starts with `prompt`. Only the first `vocab` logits can be chosen: some
    /// models pad their output matrix with more rows. `masks` computes the masks of the sequence's constraint.
    pub fn new(
        params: Arc<SamplingParams>,
        prompt: &[TokenId],
        vocab: usize,
        masks: &MaskThreads,
    ) -> Sampler {
        let penalties = Penalties::new(&params, prompt);
        let constraint = params.constraint.clone();
        let constrained = constraint.map(|constraint| ConstrainedOutput::start(constraint, masks));
        Sampler { params, vocab, penalties, constrained }
    }

    /// Samples output token number `output_index` (from 0) and overwrites the logits. If this output token was sampled
    /// before, the earlier token and all later tokens no longer count for penalties and for the constraint.
    ///
    /// # Errors
    /// [`NotSampled::BadLogits`] if a logit is NaN or +inf, or none is finite; [`NotSampled::NoToken`] if the
    /// constraint of the sequence leaves no token; [`NotSampled::MaskLate`] if its mask is not ready before `wait`
    /// ends.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        output_index: u32,
        wait: &MaskWait,
    ) -> Result<Sampled, NotSampled> {
        let vocab = self.vocab.min(logits.len());
        let row = &mut logits[..vocab];
        for &(token, bias) in &self.params.logit_bias {
            if let Some(logit) = row.get_mut(token as usize) {
                *logit += bias;
            }
        }
        if let Some(penalties) = &mut self.penalties {
            penalties.rewind(output_index);
            penalties.apply(row);
        }
        if let Some(constrained) = &mut self.constrained {
            constrained.mask(output_index, wait)?.apply(row);
        }
        let max = self.exclude_ends(row, output_index).ok_or(NotSampled::BadLogits)?;
        let want = self.params.logprobs.map(|k| logprobs::Best::of(row, max, usize::from(k)));
        let (token, logit) = if self.is_greedy() {
            let id = numeric::position(row, max).ok_or(NotSampled::BadLogits)?;
            (id as TokenId, max)
        } else {
            self.draw(row, max, output_index)?
        };
        if let Some(penalties) = &mut self.penalties {
            penalties.record(token);
        }
        if let Some(constrained) = &mut self.constrained {
            constrained.push(token);
        }
        let logprobs = want.map(|best| Box::new(best.with_chosen(logit)));
        Ok(Sampled { token, logprobs })
    }

    /// Returns whether a device can sample output token number `output_index` with `params`: no penalties, biases or
    /// log-probabilities, and not before the least number of output tokens.
    pub fn is_drawn(params: &SamplingParams, output_index: u32) -> bool {
        let changes_logits = Penalties::are_on(params)
            || !params.logit_bias.is_empty()
            || output_index < params.min_tokens.count;
        !changes_logits && params.logprobs.is_none()
    }

    /// Returns the sampling parameters of the sequence.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Returns the parameters with which a device can sample output token number `output_index` from row `row` of the
    /// logits, without the mask of the sequence's constraint ([`Sampler::mask`]); `None` if only the host can sample
    /// with the sampling parameters ([`Sampler::is_drawn`]).
    pub fn draw_on_device(&self, row: usize, output_index: u32) -> Option<Draw<'static>> {
        let params = &*self.params;
        let temperature = if self.is_greedy() { 0.0 } else { params.temperature };
        Sampler::is_drawn(params, output_index).then(|| Draw {
            row,
            temperature,
            top_k: params.top_k,
            top_p: params.top_p,
            min_p: params.min_p,
            at: draw::uniform(params.seed, output_index),
            mask: None,
        })
    }

    /// Returns the mask with which a device can sample output token number `output_index`; `None` if the sequence has
    /// no constraint. If this output token was sampled before, the earlier token and all later tokens no longer count
    /// for the constraint.
    ///
    /// # Errors
    /// [`NotSampled`] if the constraint of the sequence leaves no token, or if its mask is not ready before `wait`
    /// ends.
    pub fn mask(
        &mut self,
        output_index: u32,
        wait: &MaskWait,
    ) -> Result<Option<&TokenMask>, NotSampled> {
        let constrained = self.constrained.as_mut();
        constrained.map(|constrained| constrained.mask(output_index, wait)).transpose()
    }

    /// Records the output token that a device sampled with [`Sampler::mask`] as the next token of the output.
    pub fn record(&mut self, token: TokenId) {
        if let Some(constrained) = &mut self.constrained {
            constrained.push(token);
        }
    }

    /// Before the least number of output tokens, sets the logits of the tokens that end the output to -inf, unless no
    /// other token is left. Returns the largest logit; `None` if a logit is NaN or +inf, or if none is finite.
    fn exclude_ends(&self, row: &mut [f32], output_index: u32) -> Option<f32> {
        let MinTokens { count, ends } = &self.params.min_tokens;
        if output_index >= *count {
            return numeric::usable_max(row);
        }
        let mut excluded = Vec::with_capacity(ends.len());
        for &end in ends {
            if let Some(logit) = row.get_mut(end as usize) {
                excluded.push((end as usize, std::mem::replace(logit, f32::NEG_INFINITY)));
            }
        }
        numeric::usable_max(row).or_else(|| {
            // Put the logits back last first: a token that is named twice was replaced twice.
            excluded.into_iter().rev().for_each(|(end, logit)| row[end] = logit);
            numeric::usable_max(row)
        })
    }

    fn is_greedy(&self) -> bool {
        self.params.temperature < TEMPERATURE_MIN || self.params.top_k == 1
    }

    /// Draws a random token from the row of logits and returns it with its logit, which is computed back from the
    /// token's weight because the weights overwrite the logits.
    fn draw(
        &self,
        row: &mut [f32],
        max: f32,
        output_index: u32,
    ) -> Result<(TokenId, f32), NotSampled> {
        let params = &*self.params;
        numeric::to_weights(row, max, params.temperature);
        if params.min_p > 0.0 {
            truncate::keep_min_p(row, params.min_p);
        }
        if params.top_k > 0 && (params.top_k as usize) < row.len() {
            truncate::keep_top_k(row, params.top_k as usize);
        }
        if params.top_p < 1.0 {
            truncate::keep_top_p(row, params.top_p);
        }
        let at = draw::uniform(params.seed, output_index);
        let sums: Vec<f64> = numeric::chunk_sums(row).collect();
        let token = draw::pick(row, &sums, at).ok_or(NotSampled::BadLogits)?;
        let logit = max + params.temperature * row[token as usize].ln();
        Ok((token, logit))
    }
}
