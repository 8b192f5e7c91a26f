//! KV memory of the CPU device: one slab of blocks for the device pool and one for the host pool. The compute threads
//! and the copier share both slabs.
//!
//! A block is one contiguous run of bytes in the order `[layer][k|v][kv_head]`. The keys of a head are transposed,
//! `[head_dim][slot]`, so that a vector register holds the same component of neighbouring keys. The values of a head
//! are plain, `[slot][head_dim]`. A slot holds one token's keys or values in a block. If the element type has scales,
//! the scales of a head, `[slot]` in f32, follow the elements of the head's keys, and those of its values the values.
//!
//! Sharing rule: no step writes a block that a running copy names, and no copy writes a block that a running step
//! names. The engine guarantees this rule, and every unsafe access in this file relies on it.
#![expect(unsafe_code, reason = "blocks are written by compute and copied by another thread")]

use super::element::Element;
use super::memory::map;
use super::options::CpuError;
use crate::KvType;
use memmap2::MmapRaw;
use std::collections::VecDeque;
use std::sync::Arc;
use tiercel_device::{
    BlockId, Clock, CopyBatch, CopyDirection, CopyError, HostBlockId, QueuedCopier,
};

/// Dimensions and element type of KV blocks on the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KvLayout {
    pub(crate) layers: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) block_size: usize,
    pub(crate) kv_type: KvType,
}

impl KvLayout {
    /// Returns the size of a KV block, bytes, rounded up to a multiple of 64 (a cache line).
    pub(crate) fn block_bytes(&self) -> usize {
        [2, self.layers, self.kv_heads, self.head_bytes()]
            .iter()
            .fold(1_usize, |product, factor| product.saturating_mul(*factor))
            .checked_next_multiple_of(64)
            .unwrap_or(usize::MAX)
    }

    /// Returns the size that the keys (or the values) of one head in one layer take in a KV block, bytes: elements and
    /// scales.
    fn head_bytes(&self) -> usize {
        let elements = self.head_dim.saturating_mul(self.kv_type.bytes());
        elements.saturating_add(self.kv_type.scale_bytes()).saturating_mul(self.block_size)
    }

    /// Returns the distance from the first element of a head's keys (or values) in a KV block to its scales, bytes.
    pub(crate) fn scales_offset(&self) -> usize {
        self.block_size * self.head_dim * self.kv_type.bytes()
    }

    fn key_offset(&self, layer: usize, head: usize) -> usize {
        assert!(layer < self.layers && head < self.kv_heads, "layer {layer}, kv head {head}");
        (layer * 2 * self.kv_heads + head) * self.head_bytes()
    }

    fn value_offset(&self, layer: usize, head: usize) -> usize {
        self.key_offset(layer, head) + self.kv_heads * self.head_bytes()
    }
}

struct Slab {
    /// Memory of all KV blocks of the pool; `None` for a pool without blocks.
    memory: Option<MmapRaw>,
    blocks: u32,
    block_bytes: usize,
}

impl Slab {
    fn allocate(
        tier: &'static str,
        blocks: u32,
        block_bytes: usize,
        promised: usize,
    ) -> Result<Slab, CpuError> {
        let refuse = |why: String| CpuError::Memory { tier, blocks, block_bytes, why };
        let bytes = block_bytes
            .checked_mul(blocks as usize)
            .ok_or_else(|| refuse("more bytes than an address can count".to_owned()))?;
        if bytes == 0 {
            return Ok(Slab { memory: None, blocks: 0, block_bytes });
        }
        Ok(Slab { memory: Some(map(bytes, promised).map_err(refuse)?), blocks, block_bytes })
    }

    fn block(&self, index: u32) -> *mut u8 {
        assert!(index < self.blocks, "block {index} of {}", self.blocks);
        let memory = self.memory.as_ref().expect("a slab with blocks has memory");
        memory.as_mut_ptr().wrapping_add(index as usize * self.block_bytes)
    }
}

/// Memory of the device pool and of the host pool of KV blocks.
pub(crate) struct KvMemory {
    layout: KvLayout,
    device: Slab,
    host: Slab,
}

impl KvMemory {
    pub(crate) fn allocate(layout: KvLayout, device: u32, host: u32) -> Result<Self, CpuError> {
        let block_bytes = layout.block_bytes();
        let device = Slab::allocate("device", device, block_bytes, 0)?;
        let promised = device.blocks as usize * block_bytes;
        let host = Slab::allocate("host", host, block_bytes, promised)?;
        Ok(KvMemory { layout, device, host })
    }

    /// Returns the size of both pools of KV blocks, bytes, including blocks that were never written.
    pub(crate) fn bytes(&self) -> usize {
        [&self.device, &self.host].iter().map(|tier| tier.blocks as usize * tier.block_bytes).sum()
    }

    pub(crate) fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Returns the address of the keys of one head in one layer of a block of the device pool: `[head_dim][slot]`
    /// elements, aligned to their type, then the scales.
    pub(crate) fn keys(&self, block: BlockId, layer: usize, head: usize) -> *mut u8 {
        self.device.block(block.0).wrapping_add(self.layout.key_offset(layer, head))
    }

    /// Returns the address of the values of one head in one layer of a block of the device pool: `[slot][head_dim]`
    /// elements, aligned to their type, then the scales.
    pub(crate) fn values(&self, block: BlockId, layer: usize, head: usize) -> *mut u8 {
        self.device.block(block.0).wrapping_add(self.layout.value_offset(layer, head))
    }

    /// Returns the keys (or values) of `heads` neighbouring heads in a KV block, with the scales of each head after its
    /// elements. `place` is the address that [`KvMemory::keys`] (or `values`) returned for the first of these heads.
    ///
    /// # Safety
    /// `E` is the element type of the layout, the layer has all these heads, and nothing writes the block while the
    /// slice is in use. The last condition holds within a step for the blocks that the step names, once the step's KV
    /// writes are done.
    pub(crate) unsafe fn elements<E: Element>(&self, place: *mut u8, heads: usize) -> &[E] {
        debug_assert_eq!(self.layout.kv_type, E::KV_TYPE);
        let len = heads * self.layout.head_bytes() / size_of::<E>();
        // SAFETY: `place` is an address that `keys` or `values` returned, so `place` is in a memory slab that `self`
        // owns and is followed by the elements and scales of all `heads` heads, as the caller promises. The address is
        // aligned for `E`: a slab starts at a page, a block takes a multiple of 64 bytes, and a head a multiple of the
        // size of an element. Every bit pattern is a valid element. Slabs start zeroed, so all elements are
        // initialised. The caller promises that nothing writes the block while the slice is in use.
        unsafe { std::slice::from_raw_parts(place.cast::<E>(), len) }
    }

    fn host_block(&self, block: HostBlockId) -> *mut u8 {
        self.host.block(block.0)
    }
}

/// Copier of whole KV blocks between the device pool and the host pool. The copier runs on a copy thread, and copies a
/// batch when the batch begins. The copier ignores fences, because the engine submits a batch only after the steps of
/// the batch's fence have ended.
pub struct CpuCopier {
    memory: Arc<KvMemory>,
    clock: Clock,
    /// For each direction, the durations of the batches that were copied and not ended yet, us.
    copied: [VecDeque<u64>; 2],
}

impl CpuCopier {
    pub(crate) fn new(memory: Arc<KvMemory>) -> Self {
        CpuCopier { memory, clock: Clock::wall(), copied: Default::default() }
    }
}

impl QueuedCopier for CpuCopier {
    fn begin(&mut self, batch: &CopyBatch) -> Result<(), CopyError> {
        let start = self.clock.now();
        let (device, host) = (self.memory.device.blocks, self.memory.host.blocks);
        for pair in &batch.pairs {
            if pair.device.0 >= device || pair.host.0 >= host {
                return Err(CopyError::Failed(format!(
                    "no such block: {} of {device}, {} of {host}",
                    pair.device, pair.host
                )));
            }
        }
        for pair in &batch.pairs {
            let device = self.memory.device.block(pair.device.0);
            let host = self.memory.host_block(pair.host);
            let (from, to) = match batch.direction {
                CopyDirection::Out => (device, host),
                CopyDirection::In => (host, device),
            };
            // SAFETY: source and destination are whole KV blocks of different mappings. Until this copy is answered,
            // the engine lets nothing write the source or touch the destination (the sharing rule).
            unsafe { std::ptr::copy_nonoverlapping(from, to, self.memory.device.block_bytes) };
        }
        self.copied[batch.direction.index()].push_back(self.clock.now().since_us(start));
        Ok(())
    }

    fn has_ended(&mut self, _: CopyDirection) -> bool {
        true
    }

    fn end(&mut self, direction: CopyDirection) -> Result<u64, CopyError> {
        let nothing = || CopyError::Failed("no batch is in flight".to_owned());
        self.copied[direction.index()].pop_front().ok_or_else(nothing)
    }
}
