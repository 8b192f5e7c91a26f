//! The known tokens of a sequence (prompt and output), and the names of its full KV blocks.

use crate::blocks::{BlockHash, Salt, hash_block};
use std::sync::Arc;
use tiercel_device::{SamplingParams, TokenId};

/// Prompt and output of a sequence, and how the output is sampled and ends.
#[derive(Debug)]
pub(crate) struct Text {
    /// All known tokens of the sequence: the prompt, then the output so far.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) prompt: Arc<[TokenId]>,
    /// Largest number of output tokens.
    pub(crate) max_tokens: u32,
    pub(crate) stop_tokens: Arc<[TokenId]>,
    pub(crate) sampling: Arc<SamplingParams>,
    /// Salt (namespace) of the sequence's block names.
    pub(crate) salt: Salt,
    /// Names (hashes) of all full blocks of `tokens`, in order.
    pub(crate) hashes: Vec<BlockHash>,
    /// Number of leading full blocks of the sequence whose hashes (names) the block store knows; counted anew each time
    /// the sequence gets its blocks.
    pub(crate) registered: usize,
}

impl Text {
    pub(crate) fn prompt_len(&self) -> u32 {
        self.prompt.len() as u32
    }

    /// Returns the number of known tokens: prompt, and output so far.
    pub(crate) fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Returns the largest number of tokens that prompt and output together can have.
    pub(crate) fn longest(&self) -> u32 {
        self.prompt_len().saturating_add(self.max_tokens)
    }

    /// Adds a sampled output token, and names the block that it fills.
    pub(crate) fn push(&mut self, token: TokenId, block_size: u32) {
        self.tokens.push(token);
        self.name_full_blocks(block_size);
    }

    /// Computes the names (hashes) of blocks that became full.
    pub(crate) fn name_full_blocks(&mut self, block_size: u32) {
        let size = block_size as usize;
        while (self.hashes.len() + 1) * size <= self.tokens.len() {
            let from = self.hashes.len() * size;
            let parent = self.hashes.last().copied();
            let name = hash_block(self.salt, parent, &self.tokens[from..from + size]);
            self.hashes.push(name);
        }
    }

    /// Returns the names of the full blocks that may be looked up in the prefix cache. The last token's block is left
    /// out, because the last token must always be computed: its logits give the next token.
    pub(crate) fn findable(&self, block_size: u32) -> Arc<[BlockHash]> {
        let blocks = (self.len().saturating_sub(1) / block_size) as usize;
        Arc::from(&self.hashes[..blocks.min(self.hashes.len())])
    }

    /// Returns the names of the blocks that are full with the first `computed` tokens valid and that the block store
    /// does not know yet, and marks them as known.
    pub(crate) fn register(&mut self, computed: u32, block_size: u32) -> Vec<BlockHash> {
        let valid = ((computed / block_size) as usize).min(self.hashes.len());
        let hashes = self.hashes[self.registered..valid].to_vec();
        self.registered = valid;
        hashes
    }
}

#[cfg(test)]
mod tests {
    use crate::scheduler::tests::{BLOCK, sequence};
    use crate::scheduler::{NewSequence, sequence::Sequence};
    use std::sync::Arc;
    use tiercel_device::{Tier, TokenId};

    #[test]
    fn a_block_is_named_after_its_own_tokens_and_those_before_it() {
        let names = |changed: usize| {
            let mut prompt: Vec<TokenId> = (0..3 * BLOCK).collect();
            prompt[changed] = 7_777;
            let new = sequence(1, Tier::Standard, 1);
            let new = NewSequence { prompt: Arc::from(prompt), ..new };
            Sequence::new(new, BLOCK).text.hashes
        };
        let block = BLOCK as usize;
        let (first, second, third) = (names(0), names(block), names(2 * block));
        assert_eq!(first.len(), 3);
        assert!(first.iter().zip(&second).all(|(a, b)| a != b), "all after a changed token differ");
        assert_eq!(second[0], third[0]);
        assert_ne!(second[1], third[1]);
    }
}
