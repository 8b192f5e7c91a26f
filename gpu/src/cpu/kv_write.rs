//! Writing the keys and values of one token into its KV block.
#![expect(unsafe_code, reason = "threads write different slots of one block")]

use super::element::Element;
use super::kv::KvMemory;
use crate::KvType;
use half::{bf16, f16};
use tiercel_device::BlockId;

/// Writes the keys and values of one token in one layer to a token slot of a KV block. `keys_values` holds the keys of
/// all kv heads, then the values of all kv heads.
pub(super) fn write_kv(
    kv: &KvMemory,
    layer: usize,
    block: BlockId,
    slot: usize,
    keys_values: &[f32],
) {
    match kv.layout().kv_type {
        KvType::F32 => write::<f32>(kv, layer, block, slot, keys_values),
        KvType::F16 => write::<f16>(kv, layer, block, slot, keys_values),
        KvType::Bf16 => write::<bf16>(kv, layer, block, slot, keys_values),
        KvType::Q8 => write::<i8>(kv, layer, block, slot, keys_values),
    }
}

fn write<E: Element>(
    kv: &KvMemory,
    layer: usize,
    block: BlockId,
    slot: usize,
    keys_values: &[f32],
) {
    let (dim, size, heads) = (kv.layout().head_dim, kv.layout().block_size, kv.layout().kv_heads);
    assert!(slot < size && keys_values.len() == 2 * heads * dim, "slot {slot} of {size}");
    let (keys, values) = keys_values.split_at(heads * dim);
    for head in 0..heads {
        let to_keys = kv.keys(block, layer, head).cast::<E>();
        let to_values = kv.values(block, layer, head).cast::<E>();
        let (keys, values) = (&keys[head * dim..][..dim], &values[head * dim..][..dim]);
        let (key_scale, value_scale) = (E::scale(keys), E::scale(values));
        let (keys_by, values_by) = (inverse(key_scale), inverse(value_scale));
        for (i, (key, value)) in keys.iter().zip(values).enumerate() {
            // SAFETY: the addresses hold `[dim][size]` keys and `[size][dim]` values of element type `E` (the caller
            // matched the type), and `i < dim`, `slot < size`. Each token has its own slot, so the threads of a step
            // write different elements. Nothing else touches a block that a running step writes: that is the sharing
            // rule of `kv`.
            unsafe {
                to_keys.add(i * size + slot).write(E::narrow(*key * keys_by));
                to_values.add(slot * dim + i).write(E::narrow(*value * values_by));
            }
        }
        if E::SCALE_LEN > 0 {
            let scales = kv.layout().scales_offset();
            // SAFETY: element types with scales have `[size]` scales in f32 behind the elements of a head, at an
            // address of any alignment, and `slot < size`. Each token has its own slot, as above.
            unsafe {
                to_keys.byte_add(scales).cast::<f32>().add(slot).write_unaligned(key_scale);
                to_values.byte_add(scales).cast::<f32>().add(slot).write_unaligned(value_scale);
            }
        }
    }
}

/// Returns `1 / scale`, or 0 for the scale 0 of a key or value whose components are all close to 0, and for the scale
/// NaN of a key or value with a component that is not finite.
fn inverse(scale: f32) -> f32 {
    if scale > 0.0 { 1.0 / scale } else { 0.0 }
}
