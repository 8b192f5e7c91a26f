// Applies the rotary embedding to queries and keys, and writes keys and values into KV blocks.
//
// A KV block is contiguous, [layer][k | v][kv head][token][head_dim] in bf16, so that one copy moves it between the
// device pool and the host pool.

// One thread block per row of `qkv`, which is `(heads + 2 kv_heads) * head_dim` wide. `places[row]` is
// block * `block_size` + the token's offset in the block. `layer_kv` points to the layer's keys in block 0; blocks are
// `block_stride` elements apart, and a layer's values follow its keys. The rotation works on the pairs
// (i, i + head_dim / 2).
extern "C" __global__ void rope_kv_write(
    bf16 *qkv, const float *cosines, const float *sines, const u32 *positions, const u32 *places, bf16 *layer_kv,
    u64 block_stride, u32 block_size, u32 heads, u32 kv_heads, u32 head_dim
) {
    u64 row = blockIdx.x;
    u32 half = head_dim / 2;
    bf16 *values = qkv + row * (heads + 2 * kv_heads) * head_dim;
    const float *cosine = cosines + (u64)positions[row] * half;
    const float *sine = sines + (u64)positions[row] * half;
    u32 block = places[row] / block_size, slot = places[row] % block_size;
    bf16 *keys = layer_kv + block * block_stride + slot * head_dim;
    u32 head_stride = block_size * head_dim;
    for (u32 pair = threadIdx.x; pair < (heads + kv_heads) * half; pair += blockDim.x) {
        u32 head = pair / half, i = pair % half;
        bf16 *from = values + head * head_dim;
        float a = to_f32(from[i]), b = to_f32(from[i + half]);
        bf16 first = to_bf16(a * cosine[i] - b * sine[i]);
        bf16 second = to_bf16(b * cosine[i] + a * sine[i]);
        bf16 *to = head < heads ? from : keys + (u64)(head - heads) * head_stride;
        to[i] = first;
        to[i + half] = second;
    }
    const bf16 *from = values + (heads + kv_heads) * head_dim;
    bf16 *to = keys + (u64)kv_heads * head_stride;
    for (u32 col = threadIdx.x * 8; col < kv_heads * head_dim; col += blockDim.x * 8) {
        u32 head = col / head_dim, i = col % head_dim;
        *(Bf16x8 *)(to + (u64)head * head_stride + i) = *(const Bf16x8 *)(from + col);
    }
}
