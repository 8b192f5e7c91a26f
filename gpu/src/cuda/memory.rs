//! What lives in device memory: weights, activations, the KV cache.

use super::driver::DevicePtr;
use tiercel_device::BlockId;

/// Weights `[n, k]` in bf16.
#[derive(Debug)]
pub struct CudaMatrix {
    pub(super) at: DevicePtr,
    pub(super) n: usize,
    pub(super) k: usize,
}

/// A bias or norm weight in f32.
#[derive(Debug)]
pub struct CudaVector {
    pub(super) at: DevicePtr,
    pub(super) len: usize,
}

/// Activations `[rows, cols]` with room for a fixed number of rows.
#[derive(Debug)]
pub struct CudaTensor {
    pub(super) at: DevicePtr,
    pub(super) max_rows: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// f32 instead of bf16.
    pub(super) wide: bool,
}

impl CudaTensor {
    /// Rows in use.
    pub fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn set_rows(&mut self, rows: usize) {
        assert!(rows <= self.max_rows, "{rows} rows in a tensor for {}", self.max_rows);
        self.rows = rows;
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.cols * if self.wide { 4 } else { 2 }
    }
}

/// Cosines and sines by position, `[position][half]` in f32.
#[derive(Debug)]
pub struct CudaRope {
    pub(super) cosines: DevicePtr,
    pub(super) sines: DevicePtr,
    pub(super) half: usize,
}

/// The KV cache of the device tier: blocks of `[layer][k | v][kv head][slot][head_dim]` in bf16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaKv {
    /// Where block 0 is.
    pub at: DevicePtr,
    /// Blocks.
    pub blocks: u32,
    /// Tokens per block.
    pub block_size: usize,
    /// Layers.
    pub layers: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl CudaKv {
    /// Elements of the keys, or of the values, of one layer in one block.
    fn side(&self) -> usize {
        self.kv_heads * self.block_size * self.head_dim
    }

    /// Elements of a block.
    pub fn block_elements(&self) -> usize {
        2 * self.layers * self.side()
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        2 * self.block_elements()
    }

    /// Where the keys of a layer are in block 0; the values follow them.
    pub(super) fn layer(&self, layer: usize) -> DevicePtr {
        assert!(layer < self.layers, "layer {layer} of {}", self.layers);
        self.at.offset(layer * 2 * self.side() * 2)
    }

    pub(super) fn block(&self, block: BlockId) -> DevicePtr {
        assert!(block.0 < self.blocks, "block {block} of {}", self.blocks);
        self.at.offset(block.0 as usize * self.block_bytes())
    }
}
