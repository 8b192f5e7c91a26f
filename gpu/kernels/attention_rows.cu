// Attention of single rows over paged blocks: decode, and every row where results must not depend on how a prompt
// was cut.
//
// A row's keys are cut into spans of SPAN positions from 0 on. A block of threads computes one span for GROUP query
// heads that share a key head, so that keys and values are read once for all of them; `attention_combine` puts the
// spans of a row together. Which thread sums what depends on positions alone, so a row's result is the same bit for
// bit whoever else is in the batch.
//
// Compiled per model, with HEAD_DIM (a multiple of 8, at most 256), QUERIES (query heads per key head), SPAN and
// KERNEL(name).

// Query heads that a block computes at once. More would read keys and values less often, but leave registers for fewer
// blocks: 8 heads of 128 take 247 of 255 registers, 4 take 127.
constexpr u32 PARTS = (QUERIES + 3) / 4;
constexpr u32 GROUP = (QUERIES + PARTS - 1) / PARTS;
// Lanes that share a key: each has 8 of its elements.
constexpr u32 KEY_LANES = HEAD_DIM <= 64 ? 8 : HEAD_DIM <= 128 ? 16 : 32;
constexpr u32 WARPS = 4;
// In `span_rows`: the grid is larger than there are spans.
constexpr u32 NO_ROW = 0xffffffff;
// Keys that a block has under way.
constexpr u32 STREAMS = WARPS * (WARP / KEY_LANES);

// What is known of the keys seen so far: the largest score, the sum of exp(score - largest), and the values weighted
// with it.
struct Softmax {
    float largest[GROUP];
    float sum[GROUP];
    float values[GROUP][8];
};

__device__ __forceinline__ float dot(const float query[8], Bf16x8 key) {
    float sum = 0.0f;
    for (u32 i = 0; i < 8; i++) sum += query[i] * to_f32(key.at[i]);
    return sum;
}

// Eight elements of a key and of its value, and whether the row attends to them.
struct Key {
    Bf16x8 key;
    Bf16x8 value;
    bool counts;
};

// A key that does not count has the score NEVER: what it adds is scaled to nothing by the next one that does.
__device__ __forceinline__ void add_key(
    Softmax &softmax, const float query[GROUP][8], bool counts, Bf16x8 key, Bf16x8 value
) {
#pragma unroll
    for (u32 g = 0; g < GROUP; g++) {
        float score = sum_of_lanes(dot(query[g], key), KEY_LANES);
        score = counts ? score : NEVER;
        float largest = fmaxf(softmax.largest[g], score);
        float scale = exp2f(softmax.largest[g] - largest), weight = exp2f(score - largest);
        softmax.largest[g] = largest;
        softmax.sum[g] = softmax.sum[g] * scale + weight;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            softmax.values[g][i] = softmax.values[g][i] * scale + weight * to_f32(value.at[i]);
        }
    }
}

// Puts the streams of a block together and writes the span's result: HEAD_DIM sums, the largest score and the sum of
// weights, for each query head.
__device__ __forceinline__ void finish_span(
    const Softmax &softmax, u32 heads, u32 stream, u32 part, float *shared, float *out
) {
    float *values = shared;
    float *largest = values + STREAMS * HEAD_DIM, *sums = largest + STREAMS;
#pragma unroll
    for (u32 g = 0; g < GROUP; g++) {
        __syncthreads();
        if (g >= heads) break;
        if (part < HEAD_DIM / 8) {
            for (u32 i = 0; i < 8; i++) values[stream * HEAD_DIM + part * 8 + i] = softmax.values[g][i];
        }
        if (part == 0) {
            largest[stream] = softmax.largest[g];
            sums[stream] = softmax.sum[g];
        }
        __syncthreads();
        float most = NEVER, sum = 0.0f;
        for (u32 s = 0; s < STREAMS; s++) most = fmaxf(most, largest[s]);
        for (u32 s = 0; s < STREAMS; s++) sum += sums[s] * exp2f(largest[s] - most);
        float *to = out + g * (HEAD_DIM + 2);
        for (u32 dim = threadIdx.x; dim < HEAD_DIM; dim += blockDim.x) {
            float value = 0.0f;
            for (u32 s = 0; s < STREAMS; s++) value += values[s * HEAD_DIM + dim] * exp2f(largest[s] - most);
            to[dim] = value;
        }
        if (threadIdx.x == 0) {
            to[HEAD_DIM] = most;
            to[HEAD_DIM + 1] = sum;
        }
    }
}

// `blockIdx.y` is a span: `span_rows` says of which row, if it is one at all, and `span_numbers` which of its spans,
// counted from 0. `blockIdx.x` is a key head times PARTS, plus a part of its query heads. A row attends to positions up to
// its own, `window` of them (0 for all). `scale` includes log2(e). `spans` has `heads * (HEAD_DIM + 2)` floats for each
// span.
extern "C" __global__ void __launch_bounds__(WARPS * WARP, 4) KERNEL(attention_rows)(
    const bf16 *qkv, u32 cols, const bf16 *layer_kv, u64 block_stride, u32 block_size, const u32 *positions,
    const u32 *table_starts, const u32 *tables, const u32 *span_rows, const u32 *span_numbers, float *spans,
    u32 kv_heads, u32 window, float scale
) {
    SHARED_MEMORY(shared);
    u32 row = span_rows[blockIdx.y];
    if (row == NO_ROW) return;
    u32 position = positions[row];
    u32 kv_head = blockIdx.x / PARTS, first = blockIdx.x % PARTS * GROUP;
    u32 head = kv_head * QUERIES + first, heads_here = min(GROUP, QUERIES - first), heads = kv_heads * QUERIES;
    u32 part = threadIdx.x % KEY_LANES, stream = threadIdx.x / KEY_LANES;
    bool holds = part < HEAD_DIM / 8;
    float query[GROUP][8];
#pragma unroll
    for (u32 g = 0; g < GROUP; g++) {
        const bf16 *from = qkv + (u64)row * cols + (head + g) * HEAD_DIM + part * 8;
        for (u32 i = 0; i < 8; i++) query[g][i] = holds && g < heads_here ? to_f32(from[i]) * scale : 0.0f;
    }
    Softmax softmax;
#pragma unroll
    for (u32 g = 0; g < GROUP; g++) {
        softmax.largest[g] = NEVER;
        softmax.sum[g] = 0.0f;
        for (u32 i = 0; i < 8; i++) softmax.values[g][i] = 0.0f;
    }
    u32 start = span_numbers[blockIdx.y] * SPAN;
    u32 end = min(start + SPAN, position + 1);
    u32 seen_from = window > 0 && position + 1 > window ? position + 1 - window : 0;
    const u32 *table = tables + table_starts[row];
    u64 values_at = (u64)kv_heads * block_size * HEAD_DIM;
    auto load = [&](u32 position) {
        Key key = {};
        key.counts = position < end && position >= seen_from;
        if (key.counts && holds) {
            u64 at = table[position / block_size] * block_stride;
            at += ((u64)kv_head * block_size + position % block_size) * HEAD_DIM + part * 8;
            key.key = *(const Bf16x8 *)(layer_kv + at);
            key.value = *(const Bf16x8 *)(layer_kv + at + values_at);
        }
        return key;
    };
    Key next = load(start + stream);
    // All lanes of a warp go round as often, though the last keys of some do not count: they reduce together. The next
    // key is on its way while this one is computed.
    for (u32 at = start; at < end; at += STREAMS) {
        Key key = next;
        next = load(at + STREAMS + stream);
        add_key(softmax, query, key.counts, key.key, key.value);
    }
    float *out = spans + ((u64)blockIdx.y * heads + head) * (HEAD_DIM + 2);
    finish_span(softmax, heads_here, stream, part, (float *)shared, out);
}

// out[row, head] from the row's spans, `span_counts[row]` from `span_starts[row]` on. A block per row and head.
extern "C" __global__ void KERNEL(attention_combine)(
    const float *spans, const u32 *rows, const u32 *span_starts, const u32 *span_counts, bf16 *out, u32 heads
) {
    u32 row = rows[blockIdx.x], head = blockIdx.y;
    const float *from = spans + ((u64)span_starts[blockIdx.x] * heads + head) * (HEAD_DIM + 2);
    u64 stride = (u64)heads * (HEAD_DIM + 2);
    u32 count = span_counts[blockIdx.x];
    float most = NEVER, sum = 0.0f;
    for (u32 s = 0; s < count; s++) most = fmaxf(most, from[s * stride + HEAD_DIM]);
    for (u32 s = 0; s < count; s++) {
        sum += from[s * stride + HEAD_DIM + 1] * exp2f(from[s * stride + HEAD_DIM] - most);
    }
    for (u32 dim = threadIdx.x; dim < HEAD_DIM; dim += blockDim.x) {
        float value = 0.0f;
        for (u32 s = 0; s < count; s++) {
            value += from[s * stride + dim] * exp2f(from[s * stride + HEAD_DIM] - most);
        }
        out[((u64)row * heads + head) * HEAD_DIM + dim] = to_bf16(value / sum);
    }
}
