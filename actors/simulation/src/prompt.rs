//! Makes the tokens of the prompts that a simulation sends.

use std::sync::Arc;
use tiercel_device::TokenId;
use tiercel_workload::{Planned, Random, RecordedRequest};

/// Part of the seed of texts of recorded sequences.
const RECORDED: u64 = 0x7265_636f_7264;

/// Makes the prompt of a simulated request from random tokens of 1 to `last_token`. A text that prompts share (a prefix
/// or named blocks) has the same tokens in each. The last prompt token tells the mock device the length of the output.
pub(crate) fn prompt(seed: u64, last_token: TokenId, planned: &Planned) -> Arc<[TokenId]> {
    if let Some(recorded) = &planned.recorded {
        return of_recorded(seed, last_token, recorded, planned.output_tokens);
    }
    let tokens = u64::from(last_token);
    let length = planned.prompt_tokens as usize;
    let mut prompt = Vec::with_capacity(length);
    for (text, length) in planned.shared_texts() {
        let [kind, name] = text.path();
        let mut shared = Random::stream(seed, &[kind, name, 1]);
        prompt.extend((0..length).map(|_| 1 + shared.below(tokens) as TokenId));
    }
    let path = [planned.class as u64, u64::from(planned.stream), planned.number, 1];
    let mut own = Random::stream(seed, &path);
    prompt.resize_with(length, || 1 + own.below(tokens) as TokenId);
    if let Some(last) = prompt.last_mut() {
        *last = planned.output_tokens;
    }
    prompt.into()
}

/// Makes the prompt of a recorded sequence: pieces of the texts of recorded sequences, so that prompts that began alike
/// do so again.
fn of_recorded(
    seed: u64,
    last_token: TokenId,
    recorded: &RecordedRequest,
    output_tokens: u32,
) -> Arc<[TokenId]> {
    let mut prompt = Vec::with_capacity(recorded.sent_prompt_tokens() as usize);
    for piece in recorded.text.iter() {
        let mut text = Random::stream(seed, &[RECORDED, u64::from(piece.of)]);
        let mut token = || 1 + text.below(u64::from(last_token)) as TokenId;
        // The text of a sequence is the same in each prompt, so the tokens before the piece are drawn too.
        (0..piece.from).for_each(|_| _ = token());
        prompt.extend((piece.from..piece.to).map(|_| token()));
        if let Some((last, closing)) = prompt.last_mut().zip(piece.closing) {
            *last = closing;
        }
    }
    if let Some(last) = prompt.last_mut() {
        *last = output_tokens;
    }
    prompt.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_workload::SharedPrefix;

    fn planned(number: u64, blocks: Option<&[u64]>, prefix: Option<SharedPrefix>) -> Planned {
        Planned {
            class: number as usize % 2,
            stream: 0,
            number,
            at_us: 0,
            prefix,
            blocks: blocks.map(Arc::from),
            recorded: None,
            prompt_tokens: 1100,
            output_tokens: 9,
        }
    }

    #[test]
    fn equal_block_names_are_equal_tokens_and_the_rest_is_a_requests_own() {
        let first = prompt(5, 31_999, &planned(0, Some(&[7, 8, 9]), None));
        let turn = prompt(5, 31_999, &planned(1, Some(&[7, 8, 4]), None));
        let moved = prompt(5, 31_999, &planned(2, Some(&[8, 7, 9]), None));
        assert_eq!((first.len(), first[1099]), (1100, 9));
        assert!(first.iter().all(|token| (1..=31_999).contains(token)));
        assert_eq!(first[..1024], turn[..1024]);
        assert!(first[1024..1099].iter().zip(&turn[1024..1099]).any(|(one, other)| one != other));
        assert_eq!((&first[..512], &first[512..1024]), (&moved[512..1024], &moved[..512]));
        assert_ne!(first[..512], first[512..1024]);
        let another_seed = prompt(6, 31_999, &planned(0, Some(&[7, 8, 9]), None));
        assert_ne!(first[..512], another_seed[..512]);
    }

    // The expected prompt tokens were recorded once: a seed must give the same prompts in all versions.
    #[test]
    fn prefixes_and_own_text_are_what_they_were() {
        let shared = Some(SharedPrefix { number: 3, tokens: 2 });
        let tokens = prompt(5, 31_999, &planned(1, None, shared));
        assert_eq!(tokens[..4], PROMPT_OF_SEED_5);
    }

    const PROMPT_OF_SEED_5: [TokenId; 4] = [20423, 18951, 14490, 27970];
}
