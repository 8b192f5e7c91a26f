//! Simulated content of the KV memory in tests: for each token position of a block, a fingerprint of the token prefix
//! that ends there. One such memory stands for the device, one for the host.

pub(crate) use tiercel_device::mix::mix;

/// Pseudo-random draws that decide the details of one event of a randomized test.
pub(crate) struct Draws(pub(crate) u64);

impl Draws {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = mix(self.0);
        self.0 % n.max(1)
    }

    pub(crate) fn percent(&mut self, p: u64) -> bool {
        self.below(100) < p
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let index = self.below(from.len() as u64) as usize;
        from.get(index).copied()
    }
}

/// Simulated content of one pool's KV blocks: a fingerprint for each token position; 0 is garbage.
pub(crate) struct Tier {
    block_size: usize,
    slots: Vec<u64>,
}

impl Tier {
    pub(crate) fn new(blocks: u32, block_size: u32) -> Tier {
        let block_size = block_size as usize;
        Tier { block_size, slots: vec![0; blocks as usize * block_size] }
    }

    pub(crate) fn grow(&mut self, blocks: u32) {
        self.slots.resize(self.slots.len() + blocks as usize * self.block_size, 0);
    }

    pub(crate) fn block(&self, id: u32) -> &[u64] {
        let start = id as usize * self.block_size;
        &self.slots[start..start + self.block_size]
    }

    pub(crate) fn fill(&mut self, id: u32, content: &[u64]) {
        let start = id as usize * self.block_size;
        self.slots[start..start + self.block_size].copy_from_slice(content);
    }

    pub(crate) fn spoil(&mut self, id: u32) {
        let start = id as usize * self.block_size;
        self.slots[start..start + self.block_size].fill(0);
    }

    pub(crate) fn set(&mut self, id: u32, slot: usize, content: u64) {
        self.slots[id as usize * self.block_size + slot] = content;
    }
}
