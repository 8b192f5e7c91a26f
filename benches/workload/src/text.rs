//! Pieces of text that several prompts of a run begin with, so that a prefix cache can reuse their KV.

use crate::schedule::{Planned, SharedPrefix};
use crate::trace::BLOCK_TOKENS;

/// Name of a piece of prompt text that several requests may share. Within a run, equal names mean equal text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Text {
    /// Shared prefix of a workload, by its number.
    Prefix(u32),
    /// Block of a prompt in Mooncake's recorded traffic, by its entry in the field `hash_ids`.
    Block(u64),
}

impl Text {
    /// Returns the path that selects the random generator ([`Random::stream`](crate::Random::stream)) for the tokens of
    /// the shared text, so that equal names give equal tokens.
    pub fn path(self) -> [u64; 2] {
        match self {
            Text::Prefix(number) => [u64::MAX, u64::from(number)],
            Text::Block(name) => [u64::MAX - 1, name],
        }
    }
}

impl Planned {
    /// Returns the pieces of text that the prompt begins with and may share with other prompts, each with its length in
    /// tokens. The rest of the prompt is unique to the request.
    pub fn shared_texts(&self) -> impl Iterator<Item = (Text, u32)> + '_ {
        let prefix =
            self.prefix.map(|SharedPrefix { number, tokens }| (Text::Prefix(number), tokens));
        let mut left = self.prompt_tokens;
        let blocks = self.blocks.iter().flat_map(|blocks| blocks.iter()).map(move |name| {
            let tokens = left.min(BLOCK_TOKENS);
            left -= tokens;
            (Text::Block(*name), tokens)
        });
        prefix.into_iter().chain(blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(prefix: Option<SharedPrefix>, blocks: Option<&[u64]>) -> Planned {
        Planned {
            class: 0,
            stream: 0,
            number: 0,
            at_us: 0,
            prefix,
            blocks: blocks.map(|names| names.to_vec().into()),
            recorded: None,
            prompt_tokens: 1100,
            output_tokens: 1,
        }
    }

    #[test]
    fn a_prompt_is_its_blocks_the_last_as_long_as_is_left() {
        let texts: Vec<_> = planned(None, Some(&[7, 8, 9])).shared_texts().collect();
        assert_eq!(texts, [(Text::Block(7), 512), (Text::Block(8), 512), (Text::Block(9), 76)]);
        let prefix = planned(Some(SharedPrefix { number: 3, tokens: 20 }), None);
        assert_eq!(prefix.shared_texts().collect::<Vec<_>>(), [(Text::Prefix(3), 20)]);
        assert_eq!(planned(None, None).shared_texts().count(), 0);
    }

    #[test]
    fn every_text_has_a_path_of_its_own() {
        assert_ne!(Text::Prefix(3).path(), Text::Block(3).path());
        assert_ne!(Text::Block(3).path(), Text::Block(4).path());
    }
}
