// Formats in which KV blocks store keys and values.
//
// A KV block is contiguous, [layer][k | v][kv head], so that one copy moves it between the device pool and the host
// pool. The keys (or the values) of one kv head in a block are [token][head_dim] elements; in a format with scales, a
// scale in f32 for each token of the block follows the elements. A scale belongs to one token alone, so that a token
// written later never changes stored elements or scales of earlier tokens.
//
// Kernels multiply with stored elements and apply a key's scale to its score, a value's scale to its weight.

// Eight signed bytes.
struct alignas(8) I8x8 {
    u32 words[2];
};

// bf16, without scales. `Eight` is a vector of eight neighbouring elements.
struct KvBf16 {
    static constexpr bool SCALED = false;
    static constexpr u32 ELEMENT_BYTES = 2, SCALE_BYTES = 0;
    typedef Bf16x8 Eight;
};

// 8-bit integers from -127 to 127, with scales.
struct KvQ8 {
    static constexpr bool SCALED = true;
    static constexpr u32 ELEMENT_BYTES = 1, SCALE_BYTES = 4;
    typedef I8x8 Eight;
};

__device__ __forceinline__ float kv_element(const Bf16x8 &eight, u32 i) { return to_f32(eight.at[i]); }

// Converts without a conversion instruction, of which a GPU runs fewer per cycle than of others: the byte plus 128 is
// placed in the lowest bits of the float 2^23.
__device__ __forceinline__ float kv_element(const I8x8 &eight, u32 i) {
    u32 biased = (eight.words[i / 4] ^ 0x80808080) >> i % 4 * 8 & 0xff;
    return __uint_as_float(0x4b000000 | biased) - 8388736.0f;
}

__device__ __forceinline__ Bf16x8 to_bf16x8(const Bf16x8 &eight) { return eight; }

// Exact, because bf16 has eight significant bits.
__device__ __forceinline__ Bf16x8 to_bf16x8(const I8x8 &eight) {
    Bf16x8 result;
#pragma unroll
    for (u32 i = 0; i < 8; i++) result.at[i] = (bf16)(__float_as_uint(kv_element(eight, i)) >> 16);
    return result;
}

// Returns the size of the keys (or of the values) of one kv head in a KV block, bytes.
template <typename Kv>
__device__ __forceinline__ u64 kv_head_bytes(u32 block_size, u32 head_dim) {
    return (u64)block_size * (head_dim * Kv::ELEMENT_BYTES + Kv::SCALE_BYTES);
}

// Returns the place of a token's first element; `head` points to the keys (or the values) of one kv head in a block.
template <typename Kv, typename Byte>
__device__ __forceinline__ Byte *kv_token(Byte *head, u32 slot, u32 head_dim) {
    return head + (u64)slot * head_dim * Kv::ELEMENT_BYTES;
}

// Returns the place of a token's scale, in a format with scales; `head` as for kv_token.
template <typename Kv, typename Byte>
__device__ __forceinline__ Byte *kv_scale(Byte *head, u32 slot, u32 block_size, u32 head_dim) {
    return head + (u64)block_size * head_dim * Kv::ELEMENT_BYTES + slot * Kv::SCALE_BYTES;
}
