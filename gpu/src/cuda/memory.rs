//! Types of data in device memory: weights, activations, the KV cache.

use super::driver::DevicePtr;
use crate::{KvType, QuantizedShape};
use tiercel_device::BlockId;

/// Weight matrix `[n, k]` in device memory.
#[derive(Debug)]
pub struct CudaMatrix {
    pub(super) held: Held,
    pub(super) n: usize,
    pub(super) k: usize,
}

/// Form in which device memory holds a weight matrix.
#[derive(Debug)]
pub(super) enum Held {
    /// Device address of the weights in bf16, row by row.
    Bf16(DevicePtr),
    Quantized(Quantized),
}

/// Quantized weight matrix in device memory.
#[derive(Debug)]
pub(super) struct Quantized {
    /// Device address of the numbers ([`crate::QuantizedPart`]).
    pub(super) numbers: DevicePtr,
    /// Device address of the words of the groups.
    pub(super) groups: DevicePtr,
    pub(super) shape: QuantizedShape,
}

/// Vector of f32 parameters in device memory: a bias or the weights of a norm.
#[derive(Debug)]
pub struct CudaVector {
    pub(super) at: DevicePtr,
    pub(super) len: usize,
}

/// Activations `[rows, cols]` in device memory, with capacity for a fixed number of rows.
#[derive(Debug)]
pub struct CudaTensor {
    pub(super) at: DevicePtr,
    pub(super) max_rows: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Whether the elements of the tensor are f32; otherwise they are bf16.
    pub(super) wide: bool,
    /// For a tensor of logits, the device address of room for a mask of the columns for each row; otherwise null.
    pub(super) masks: DevicePtr,
}

impl CudaTensor {
    /// Returns the number of rows of the tensor that are in use, at most its row capacity.
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

    /// Returns the size of the memory for the masks of the rows of a tensor of logits, bytes: one bit for each element.
    pub(super) fn mask_bytes(&self) -> usize {
        self.max_rows * self.cols.div_ceil(32) * 4
    }
}

/// Cosines and sines of the rotary embedding by position, `[position][half]` in f32.
#[derive(Debug)]
pub struct CudaRope {
    pub(super) cosines: DevicePtr,
    pub(super) sines: DevicePtr,
    pub(super) half: usize,
}

/// The KV blocks of the device pool, `[layer][k | v][kv head][token][head_dim]` each, in bf16 or in 8 bits. In 8 bits,
/// the elements of each kv head are followed by its scales, `[token]` in f32 (see `gpu/kernels/kv.cuh`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaKv {
    /// Device address of KV block 0; the others follow it.
    pub at: DevicePtr,
    /// Number of KV blocks in the device pool.
    pub blocks: u32,
    /// Tokens per KV block; in 8 bits a multiple of 8.
    pub block_size: usize,
    /// Number of layers of the model.
    pub layers: usize,
    /// Number of key/value heads of a layer.
    pub kv_heads: usize,
    /// Width of an attention head, elements.
    pub head_dim: usize,
    /// Whether keys and values are stored in 8 bits with a scale for each token and kv head; otherwise they are stored
    /// in bf16.
    pub q8: bool,
}

impl CudaKv {
    /// Returns the size that the keys (or the values) of one layer take in a KV block, bytes.
    fn side_bytes(&self) -> usize {
        let kv_type = if self.q8 { KvType::Q8 } else { KvType::Bf16 };
        let token_bytes = self.head_dim * kv_type.bytes() + kv_type.scale_bytes();
        self.kv_heads * self.block_size * token_bytes
    }

    /// Returns the size of a KV block, bytes: keys and values of all layers.
    pub fn block_bytes(&self) -> usize {
        2 * self.layers * self.side_bytes()
    }

    /// Returns the device address of a layer's keys in KV block 0; the layer's values follow the keys.
    pub(super) fn layer(&self, layer: usize) -> DevicePtr {
        assert!(layer < self.layers, "layer {layer} of {}", self.layers);
        self.at.offset(layer * 2 * self.side_bytes())
    }

    pub(super) fn block(&self, block: BlockId) -> DevicePtr {
        assert!(block.0 < self.blocks, "block {block} of {}", self.blocks);
        self.at.offset(block.0 as usize * self.block_bytes())
    }
}
