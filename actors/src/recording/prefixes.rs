//! Index of the prompts of a recording by the names of their KV blocks: tells which earlier prompt a prompt begins
//! like.

use crate::recording::rows::SharedPrompt;
use std::collections::HashMap;
use tiercel_device::TokenId;
use tiercel_policy::blocks::{BlockHash, Salt, hash_block};

/// Most block names in the index. Prompts that come later are still looked up, but not added.
const MAX_BLOCKS: usize = 1 << 19;

/// Index of prompts by the names of their full KV blocks. The names stay in memory and are never written.
#[derive(Debug, Clone, Default)]
pub(super) struct PrefixIndex {
    /// Number of the first recorded sequence whose prompt has the block.
    blocks: HashMap<BlockHash, u32>,
    /// Number of prompts of which blocks are missing in the index, because the index is full.
    cut: u32,
}

/// Returns the names of the full blocks of a prompt.
pub(super) fn names(salt: Salt, prompt: &[TokenId], block_size: u32) -> Vec<BlockHash> {
    let mut parent = None;
    let blocks = prompt.chunks_exact(block_size.max(1) as usize);
    let name = |tokens| *parent.insert(hash_block(salt, parent, tokens));
    blocks.map(name).collect()
}

impl PrefixIndex {
    /// Adds a prompt as that of recorded sequence `number`. Returns the earlier prompt that shares most blocks with it.
    pub(super) fn add(
        &mut self,
        names: &[BlockHash],
        number: u32,
        block_size: u32,
    ) -> Option<SharedPrompt> {
        let found = names.iter().map_while(|name| self.blocks.get(name));
        let (blocks, last) = found.fold((0, None), |(count, _), first| (count + 1, Some(*first)));
        for name in &names[blocks..] {
            if self.blocks.len() >= MAX_BLOCKS {
                self.cut += 1;
                break;
            }
            self.blocks.insert(*name, number);
        }
        last.map(|number| SharedPrompt { number, tokens: blocks as u32 * block_size })
    }

    /// Returns the number of prompts of which blocks are missing in the index, because the index is full.
    pub(super) fn cut(&self) -> u32 {
        self.cut
    }

    /// Drops all names: no prompt follows.
    pub(super) fn clear(&mut self) {
        self.blocks = HashMap::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_shared_beginning_is_found_within_a_tenant() {
        let mut index = PrefixIndex::default();
        let mut add = |salt: u8, prompt: &[TokenId], number| {
            index.add(&names(Salt([salt; 16]), prompt, 2), number, 2)
        };
        assert_eq!(add(1, &[1, 2, 3, 4, 5], 0), None);
        assert_eq!(add(2, &[1, 2, 3, 4, 5], 1), None, "another tenant shares no blocks");
        let shared = |number, tokens| Some(SharedPrompt { number, tokens });
        assert_eq!(add(1, &[1, 2, 3, 4, 5, 6, 7, 8], 2), shared(0, 4));
        assert_eq!(add(1, &[1, 2, 3, 4, 5, 6, 9, 9], 3), shared(2, 6));
        assert_eq!(add(1, &[1, 2, 9, 9], 4), shared(0, 2));
        assert_eq!(add(1, &[2, 1], 5), None);
        assert_eq!(add(1, &[1], 6), None, "a block that is not full has no name");
    }

    #[test]
    fn a_full_index_adds_no_prompt_and_says_so() {
        let mut index = PrefixIndex::default();
        let name = |at: usize| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&(at as u64).to_le_bytes());
            BlockHash(bytes)
        };
        let all: Vec<BlockHash> = (0..MAX_BLOCKS).map(name).collect();
        assert_eq!(index.add(&all, 0, 16), None);
        assert_eq!(index.cut(), 0);
        assert_eq!(index.add(&[name(MAX_BLOCKS)], 1, 16), None);
        assert_eq!(index.cut(), 1);
        assert_eq!(index.add(&[name(0)], 2, 16), Some(SharedPrompt { number: 0, tokens: 16 }));
        assert_eq!(index.cut(), 1, "a prompt whose blocks are all there is not cut");
        index.clear();
        assert_eq!(index.cut(), 1, "the number outlives the names");
    }
}
