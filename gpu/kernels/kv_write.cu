// Applies the rotary embedding to queries and keys, and writes keys and values into KV blocks (see kv.cuh).
//
// A row of `qkv` is `(heads + 2 kv_heads) * head_dim` wide. The kernel for bf16 has one or more thread blocks per row
// (`gridDim.y`), the kernel for 8 bits has one. `places[row]` is
// block * `block_size` + the token's offset in the block. `layer_kv` points to the layer's keys in block 0; blocks are
// `block_stride` bytes apart, and a layer's values follow its keys. The rotation works on the pairs
// (i, i + head_dim / 2).

struct Pair {
    float first, second;
};

// Returns pair `i` of a head after its rotation.
__device__ __forceinline__ Pair rotated(const bf16 *head, u32 i, u32 half, const float *cosine, const float *sine) {
    float a = to_f32(head[i]), b = to_f32(head[i + half]);
    return {a * cosine[i] - b * sine[i], b * cosine[i] + a * sine[i]};
}

// Writes keys and values in bf16. A thread rotates four neighbouring pairs at a time.
extern "C" __global__ void rope_kv_write(
    bf16 *qkv, const float *cosines, const float *sines, const u32 *positions, const u32 *places,
    unsigned char *layer_kv, u64 block_stride, u32 block_size, u32 heads, u32 kv_heads, u32 head_dim
) {
    u64 row = blockIdx.x;
    u32 half = head_dim / 2, thread = blockIdx.y * blockDim.x + threadIdx.x, threads = gridDim.y * blockDim.x;
    bf16 *values = qkv + row * (heads + 2 * kv_heads) * head_dim;
    const float *cosine = cosines + (u64)positions[row] * half;
    const float *sine = sines + (u64)positions[row] * half;
    u32 block = places[row] / block_size, slot = places[row] % block_size;
    bf16 *keys = (bf16 *)kv_token<KvBf16>(layer_kv + block * block_stride, slot, head_dim);
    u32 head_stride = block_size * head_dim;
    for (u32 pair = thread * 4; pair < (heads + kv_heads) * half; pair += threads * 4) {
        u32 head = pair / half, i = pair % half;
        bf16 *from = values + head * head_dim + i;
        bf16 *to = head < heads ? from : keys + (u64)(head - heads) * head_stride + i;
        Bf16x4 first = *(const Bf16x4 *)from, second = *(const Bf16x4 *)(from + half);
        F32x4 c = *(const F32x4 *)(cosine + i), s = *(const F32x4 *)(sine + i);
        for (u32 k = 0; k < 4; k++) {
            float a = to_f32(first.at[k]), b = to_f32(second.at[k]);
            first.at[k] = to_bf16(a * c.at[k] - b * s.at[k]);
            second.at[k] = to_bf16(b * c.at[k] + a * s.at[k]);
        }
        *(Bf16x4 *)to = first;
        *(Bf16x4 *)(to + half) = second;
    }
    const bf16 *from = values + (heads + kv_heads) * head_dim;
    bf16 *to = keys + (u64)kv_heads * head_stride;
    for (u32 col = thread * 8; col < kv_heads * head_dim; col += threads * 8) {
        u32 head = col / head_dim, i = col % head_dim;
        *(Bf16x8 *)(to + (u64)head * head_stride + i) = *(const Bf16x8 *)(from + col);
    }
}

constexpr float LARGEST_F32 = 3.4028235e38f;
constexpr float Q8_MAX = 127.0f;
constexpr float Q8_SCALE_MIN = 1e-37f; // a smaller scale is stored as 0, because its inverse is not finite

// Returns the magnitude of a component, or 2 * LARGEST_F32 = infinity for NaN.
__device__ __forceinline__ float magnitude(float value) {
    float size = fabsf(value);
    return size <= LARGEST_F32 ? size : 2.0f * LARGEST_F32;
}

// Returns the scale of a key or value with the largest magnitude `largest`; NaN if `largest` is not finite, so that a fault
// reaches every row that attends to the token.
__device__ __forceinline__ float q8_scale(float largest) {
    if (largest > LARGEST_F32) return largest - largest;
    float scale = largest / Q8_MAX;
    return scale < Q8_SCALE_MIN ? 0.0f : scale;
}

__device__ __forceinline__ signed char to_q8(float value, float inverse) {
    return (signed char)(int)fminf(fmaxf(rintf(value * inverse), -Q8_MAX), Q8_MAX);
}

// Writes keys and values in 8 bits. One warp writes a key or a value at a time.
extern "C" __global__ void rope_kv_write_q8(
    bf16 *qkv, const float *cosines, const float *sines, const u32 *positions, const u32 *places,
    unsigned char *layer_kv, u64 block_stride, u32 block_size, u32 heads, u32 kv_heads, u32 head_dim
) {
    u64 row = blockIdx.x;
    u32 half = head_dim / 2;
    bf16 *values = qkv + row * (heads + 2 * kv_heads) * head_dim;
    const float *cosine = cosines + (u64)positions[row] * half;
    const float *sine = sines + (u64)positions[row] * half;
    for (u32 pair = threadIdx.x; pair < heads * half; pair += blockDim.x) {
        u32 i = pair % half;
        bf16 *to = values + pair / half * head_dim;
        Pair turned = rotated(to, i, half, cosine, sine);
        to[i] = to_bf16(turned.first);
        to[i + half] = to_bf16(turned.second);
    }
    u32 block = places[row] / block_size, slot = places[row] % block_size;
    // The keys of all heads, then the values of all heads, are neighbours in `qkv` and in a block.
    for (u32 head = warp_of_thread(); head < 2 * kv_heads; head += blockDim.x / WARP) {
        const bf16 *from = values + (heads + head) * head_dim;
        unsigned char *to = layer_kv + block * block_stride + head * kv_head_bytes<KvQ8>(block_size, head_dim);
        auto pair_of = [&](u32 i) {
            return head < kv_heads ? rotated(from, i, half, cosine, sine) : Pair{to_f32(from[i]), to_f32(from[i + half])};
        };
        float largest = 0.0f;
        for (u32 i = lane_of_thread(); i < half; i += WARP) {
            Pair pair = pair_of(i);
            largest = fmaxf(largest, fmaxf(magnitude(pair.first), magnitude(pair.second)));
        }
        float scale = q8_scale(max_of_lanes(largest, WARP));
        float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
        signed char *elements = (signed char *)kv_token<KvQ8>(to, slot, head_dim);
        for (u32 i = lane_of_thread(); i < half; i += WARP) {
            Pair pair = pair_of(i);
            elements[i] = to_q8(pair.first, inverse);
            elements[i + half] = to_q8(pair.second, inverse);
        }
        if (lane_of_thread() == 0) *(float *)kv_scale<KvQ8>(to, slot, block_size, head_dim) = scale;
    }
}
