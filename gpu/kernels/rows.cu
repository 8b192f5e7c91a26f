// Operations on single rows: one thread block or more per row; the result of a row depends on that row alone.

// Flag of a word of `tokens`: the other bits are an index into `drawn` instead of a token.
#define DRAWN 0x80000000u

// residual[row] = table[token of the row]. The token is in `tokens`, or was drawn by the step before and is in `drawn`.
// A token that is not below `vocab` was drawn from unusable logits; row 0 of the table is taken for it, and the result
// does not matter.
extern "C" __global__ void embed(
    float *residual, const bf16 *table, const u32 *tokens, const u32 *drawn, u32 vocab, u32 cols
) {
    u64 row = blockIdx.x;
    u32 token = tokens[row];
    if (token & DRAWN) token = drawn[token & ~DRAWN];
    if (token >= vocab) token = 0;
    const bf16 *from = table + (u64)token * cols;
    float *to = residual + row * cols;
    for (u32 col = threadIdx.x * 8; col < cols; col += blockDim.x * 8) {
        Bf16x8 values = *(const Bf16x8 *)(from + col);
        F32x8 wide;
        for (u32 i = 0; i < 8; i++) wide.at[i] = to_f32(values.at[i]);
        store_eight(to + col, wide);
    }
}

// residual[row] += delta[row], if there is a delta; out[row] = residual[row] / rms(residual[row]) * weight
extern "C" __global__ void add_rms_norm(
    float *residual, const bf16 *delta, const float *weight, float eps, u32 cols, bf16 *out
) {
    SHARED_MEMORY(shared);
    u64 start = (u64)blockIdx.x * cols;
    F32x8 first = {}; // the first eight values of the thread, which are all if the block has a thread for each eight
    float squares = 0.0f;
    for (u32 col = threadIdx.x * 8; col < cols; col += blockDim.x * 8) {
        F32x8 values = load_eight(residual + start + col);
        if (delta) {
            Bf16x8 more = *(const Bf16x8 *)(delta + start + col);
            for (u32 i = 0; i < 8; i++) values.at[i] += to_f32(more.at[i]);
            store_eight(residual + start + col, values);
        }
        for (u32 i = 0; i < 8; i++) squares += values.at[i] * values.at[i];
        if (col == threadIdx.x * 8) first = values;
    }
    float scale = rsqrtf(sum_of_block(squares, (float *)shared) / cols + eps);
    for (u32 col = threadIdx.x * 8; col < cols; col += blockDim.x * 8) {
        F32x8 values = col == threadIdx.x * 8 ? first : load_eight(residual + start + col);
        F32x8 factors = load_eight(weight + col);
        Bf16x8 normed;
        for (u32 i = 0; i < 8; i++) normed.at[i] = to_bf16(values.at[i] * scale * factors.at[i]);
        *(Bf16x8 *)(out + start + col) = normed;
    }
}

// RMS norm of single heads, in place: one warp per head. `heads` neighbouring heads of each row are normed, from column
// `first` on.
extern "C" __global__ void head_rms_norm(
    bf16 *rows, u32 cols, u32 first, u32 heads, u32 head_dim, const float *weight, float eps
) {
    u32 head = blockIdx.y * (blockDim.x / WARP) + warp_of_thread();
    // All lanes of a warp work on the same head, so either all of them return here or all of them take part in the
    // reduction.
    if (head >= heads) return;
    bf16 *values = rows + (u64)blockIdx.x * cols + first + head * head_dim;
    float squares = 0.0f;
    for (u32 i = lane_of_thread(); i < head_dim; i += WARP) {
        float value = to_f32(values[i]);
        squares += value * value;
    }
    float scale = rsqrtf(sum_of_lanes(squares, WARP) / head_dim + eps);
    for (u32 i = lane_of_thread(); i < head_dim; i += WARP) {
        values[i] = to_bf16(to_f32(values[i]) * scale * weight[i]);
    }
}

// rows[row] += bias
extern "C" __global__ void add_bias(bf16 *rows, const float *bias, u32 cols) {
    bf16 *values = rows + (u64)blockIdx.x * cols;
    for (u32 col = threadIdx.x * 8; col < cols; col += blockDim.x * 8) {
        Bf16x8 sums = *(const Bf16x8 *)(values + col);
        for (u32 i = 0; i < 8; i++) sums.at[i] = to_bf16(to_f32(sums.at[i]) + bias[col + i]);
        *(Bf16x8 *)(values + col) = sums;
    }
}

// out[row] = silu(first half of gate_up[row]) * second half; `cols` is the width of a half.
extern "C" __global__ void silu_mul(const bf16 *gate_up, bf16 *out, u32 cols) {
    const bf16 *gate = gate_up + (u64)blockIdx.x * cols * 2;
    const bf16 *up = gate + cols;
    bf16 *to = out + (u64)blockIdx.x * cols;
    u32 step = gridDim.y * blockDim.x * 8;
    for (u32 col = (blockIdx.y * blockDim.x + threadIdx.x) * 8; col < cols; col += step) {
        Bf16x8 gates = *(const Bf16x8 *)(gate + col);
        Bf16x8 ups = *(const Bf16x8 *)(up + col);
        Bf16x8 products;
        for (u32 i = 0; i < 8; i++) {
            float value = to_f32(gates.at[i]);
            products.at[i] = to_bf16(value / (1.0f + expf(-value)) * to_f32(ups.at[i]));
        }
        *(Bf16x8 *)(to + col) = products;
    }
}

// out[i] = rows[which[i]]. A row has `words` words of 16 bytes.
extern "C" __global__ void gather_rows(const F32x4 *rows, const u32 *which, F32x4 *out, u32 words) {
    const F32x4 *from = rows + (u64)which[blockIdx.x] * words;
    F32x4 *to = out + (u64)blockIdx.x * words;
    for (u32 word = threadIdx.x; word < words; word += blockDim.x) to[word] = from[word];
}

// Copies `words` words between device memory and pinned memory of the host. The loads are volatile, so that no cache
// answers with an older content of host memory.
extern "C" __global__ void move_words(const volatile u32 *from, u32 *to, u32 words) {
    for (u32 at = blockIdx.x * blockDim.x + threadIdx.x; at < words; at += gridDim.x * blockDim.x) to[at] = from[at];
}
