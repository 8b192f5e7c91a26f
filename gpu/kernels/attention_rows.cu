// Attention of single rows over KV blocks: used for decode, and for every row if results must not depend on how a
// prompt was cut into chunks.
//
// A row's keys are cut into spans of SPAN positions, counted from position 0. A thread block computes one span for
// GROUP query heads that share a key head, so that keys and values are read once for the whole group;
// `attention_combine` combines the spans of a row. Positions alone determine which thread sums which keys, so a row's
// result is the same bit for bit whichever rows share the batch.
//
// Compiled per model, with the definitions of gpu/src/cuda/shapes.rs: HEAD_DIM (width of a head), QUERIES (query heads
// per key head), KV (format of keys and values, see kv.cuh), SPAN (positions of a span), PARTS (thread blocks that share
// the query heads of a key head), KEY_LANES (lanes of a warp that share a key; each lane holds 8 elements of the key),
// ATTENTION_WARPS (warps of a thread block); and with KERNEL(name) (name of a kernel in the binary).

// Query heads that a thread block computes.
constexpr u32 GROUP = (QUERIES + PARTS - 1) / PARTS;
// Row number of a padding span in `span_rows`: the grid may have more entries than there are spans.
constexpr u32 NO_ROW = 0xffffffff;
// Keys that a thread block processes at the same time.
constexpr u32 STREAMS = ATTENTION_WARPS * (WARP / KEY_LANES);
static_assert(HEAD_DIM % 8 == 0 && HEAD_DIM <= KEY_LANES * 8 && KEY_LANES <= WARP, "the lanes hold a key");

// State of the online softmax over the keys seen so far, per query head: the largest score, the sum of
// exp2(score - largest), and the sum of the values weighted with exp2(score - largest).
struct Softmax {
    float largest[GROUP];
    float sum[GROUP];
    float values[GROUP][8];
};

__device__ __forceinline__ float dot(const float query[8], const KV::Eight &key) {
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 8; i++) sum += query[i] * kv_element(key, i);
    return sum;
}

// Eight elements of a key and of its value, their scales, and whether the row attends to the key.
struct Key {
    KV::Eight key;
    KV::Eight value;
    float key_scale;
    float value_scale;
    bool counts;
};

// Adds a key and its value to the softmax state of each query head. A key that the row does not attend to gets the
// score NEVER; the next key that counts scales the contribution of such keys to zero.
__device__ __forceinline__ void add_key(Softmax &softmax, const float query[GROUP][8], const Key &key) {
#pragma unroll
    for (u32 g = 0; g < GROUP; g++) {
        float score = sum_of_lanes(dot(query[g], key.key), KEY_LANES);
        if constexpr (KV::SCALED) score *= key.key_scale;
        score = key.counts ? score : NEVER;
        float largest = fmaxf(softmax.largest[g], score);
        float scale = exp2f(softmax.largest[g] - largest), weight = exp2f(score - largest);
        softmax.largest[g] = largest;
        softmax.sum[g] = softmax.sum[g] * scale + weight;
        if constexpr (KV::SCALED) weight *= key.value_scale;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            softmax.values[g][i] = softmax.values[g][i] * scale + weight * kv_element(key.value, i);
        }
    }
}

// Combines the partial sums of a thread block's STREAMS groups of lanes, and writes the span's result for each query
// head: HEAD_DIM sums of weighted values, the largest score, and the sum of weights.
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

// Computes one span of a row's attention. `blockIdx.y` is an index into `span_rows`, which holds the span's row or
// NO_ROW, and into `span_numbers`, which holds the span's number in that row, counted from 0. `blockIdx.x` is
// key head * PARTS + the part of its query heads. A row attends to the last `window` positions up to its own, or to all
// of them if `window` is 0. `scale` includes log2(e). `spans` receives `heads * (HEAD_DIM + 2)` floats per span.
extern "C" __global__ void __launch_bounds__(ATTENTION_WARPS * WARP, 4) KERNEL(attention_rows)(
    const bf16 *qkv, u32 cols, const unsigned char *layer_kv, u64 block_stride, u32 block_size, const u32 *positions,
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
    u64 head_bytes = kv_head_bytes<KV>(block_size, HEAD_DIM);
    auto load = [&](u32 position) {
        Key key = {};
        key.counts = position < end && position >= seen_from;
        if (key.counts && holds) {
            u32 slot = position % block_size;
            const unsigned char *keys = layer_kv + table[position / block_size] * block_stride + kv_head * head_bytes;
            const unsigned char *values = keys + kv_heads * head_bytes;
            key.key = ((const KV::Eight *)kv_token<KV>(keys, slot, HEAD_DIM))[part];
            key.value = ((const KV::Eight *)kv_token<KV>(values, slot, HEAD_DIM))[part];
            if constexpr (KV::SCALED) {
                key.key_scale = *(const float *)kv_scale<KV>(keys, slot, block_size, HEAD_DIM);
                key.value_scale = *(const float *)kv_scale<KV>(values, slot, block_size, HEAD_DIM);
            }
        }
        return key;
    };
    Key next = load(start + stream);
    // All lanes of a warp run the same number of iterations, even if the last keys of some lanes do not count, because
    // the lanes reduce together. Each iteration loads the next key while it computes the current key.
    for (u32 at = start; at < end; at += STREAMS) {
        Key key = next;
        next = load(at + STREAMS + stream);
        add_key(softmax, query, key);
    }
    float *out = spans + ((u64)blockIdx.y * heads + head) * (HEAD_DIM + 2);
    finish_span(softmax, heads_here, stream, part, (float *)shared, out);
}

// Combines a row's spans into out[row, head]: `span_counts[blockIdx.x]` spans from `span_starts[blockIdx.x]` on, for
// row `rows[blockIdx.x]`. One thread block per row and query head.
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
