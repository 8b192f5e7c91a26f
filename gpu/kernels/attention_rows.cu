// Attention of single rows over KV blocks: used for decode, and for every row if results must not depend on how a
// prompt was cut into chunks.
//
// A row's keys are cut into spans of SPAN positions, counted from position 0. A thread block computes one span for
// GROUP query heads that share a key head, so that keys and values are read once for the whole group. The thread block
// that finishes last among a row's spans combines the spans in their order. Positions alone determine which thread sums
// which keys, so a row's result is the same bit for bit whichever rows share the batch.
//
// Tensor cores multiply the query heads, which are the rows of a tile, with KEYS keys at a time; and the values with the
// softmax weights, whose columns are the query heads. Lanes load keys and values from device memory in the layout of the
// tiles: the elements of a head may be multiplied in any order, as long as both operands have the same order.
//
// Compiled per model, with the definitions of gpu/src/cuda/shapes.rs: HEAD_DIM (width of a head), QUERIES (query heads
// per key head), KV (format of keys and values, see kv.cuh), SPAN (positions of a span), PARTS (thread blocks that share
// the query heads of a key head), ATTENTION_WARPS (warps of a thread block); and with KERNEL(name) (name of a kernel in the
// binary).

// Query heads that a thread block computes, at most the 8 columns of a tile.
constexpr u32 GROUP = (QUERIES + PARTS - 1) / PARTS;
// Row number of a padding span in `span_rows`: the grid may have more entries than there are spans.
constexpr u32 NO_ROW = 0xffffffff;
// Keys that a warp multiplies at a time: two tiles of 8.
constexpr u32 KEYS = 16;
// Vectors of 8 elements of a key that a lane holds. The four lanes of a key hold neighbouring vectors.
constexpr u32 KEY_VECTORS = (HEAD_DIM + 31) / 32;
// Vectors of 8 elements of a value that a lane holds. The eight lanes of a value hold neighbouring vectors.
constexpr u32 VALUE_VECTORS = (HEAD_DIM + 63) / 64;
static_assert(HEAD_DIM % 8 == 0 && GROUP <= 8 && SPAN % KEYS == 0, "tiles hold the heads and the span");

// Places of the keys of a span, relative to the place of the first KV block, bytes. `NO_KEY` for a key to which the row does
// not attend. Scales are there in a format with scales only.
struct Places {
    u64 element[SPAN];
    u64 scale[KV::SCALED ? SPAN : 1];
};
constexpr u64 NO_KEY = ~0ull;

// Eight bf16 as four words of two.
struct Words {
    u32 at[4];
};

__device__ __forceinline__ Words words_of(const Bf16x8 &eight) {
    Words words;
#pragma unroll
    for (u32 i = 0; i < 4; i++) words.at[i] = eight.at[2 * i] | (u32)eight.at[2 * i + 1] << 16;
    return words;
}

// State of a warp's online softmax. A lane holds the largest score of query head `lane / 4` and the sum of
// exp2(score - largest) over its own keys; and sums of weighted values for query heads `lane % 4 * 2` and the next: of
// elements 64 v + lane / 4 * 8 + 2 u and the next in `values[v][u]`.
struct Softmax {
    float largest;
    float sum;
    float values[VALUE_VECTORS][4][4];
};

// Finds the places of the span's keys; all threads of the block take part.
__device__ __forceinline__ void find_keys(
    Places &places, const u32 *table, u32 start, u32 seen_from, u32 end, u64 block_stride, u32 block_size
) {
    for (u32 i = threadIdx.x; i < SPAN; i += blockDim.x) {
        u32 position = start + i;
        u64 element = NO_KEY, scale = 0;
        if (position >= seen_from && position < end) {
            u32 slot = position % block_size;
            u64 block = table[position / block_size] * block_stride;
            element = block + slot * (HEAD_DIM * KV::ELEMENT_BYTES);
            scale = block + (u64)kv_scale<KV>((const unsigned char *)nullptr, slot, block_size, HEAD_DIM);
        }
        places.element[i] = element;
        if constexpr (KV::SCALED) places.scale[i] = scale;
    }
    __syncthreads();
}

// Returns eight elements as bf16, or zeros if there is no such key or the vector is beyond the head.
__device__ __forceinline__ Words load_words(const unsigned char *head, u64 place, u32 vector) {
    KV::Eight eight = {};
    if (place != NO_KEY && vector * 8 < HEAD_DIM) eight = ((const KV::Eight *)(head + place))[vector];
    return words_of(to_bf16x8(eight));
}

// Adds KEYS keys from number `first` of the span on, and their values, to the softmax state. A key that the row does not
// attend to gets the score NEVER; the next key that counts scales the contribution of such keys to zero. `keys` and
// `values` point to the key head's keys and values in KV block 0.
__device__ __forceinline__ void add_keys(
    Softmax &softmax, const Words query[KEY_VECTORS], const Places &places, u32 first, const unsigned char *keys,
    const unsigned char *values, float scale
) {
    u32 lane = lane_of_thread(), place = lane % 4, group = lane / 4;
    Words key[2][KEY_VECTORS], value[4][VALUE_VECTORS];
    u64 counted[4]; // places of the four keys whose scores this lane gets: 2 place, 2 place + 1, and 8 later
#pragma unroll
    for (u32 tile = 0; tile < 2; tile++) {
        u64 at = places.element[first + tile * 8 + group];
#pragma unroll
        for (u32 v = 0; v < KEY_VECTORS; v++) key[tile][v] = load_words(keys, at, v * 4 + place);
    }
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        counted[k] = places.element[first + k / 2 * 8 + place * 2 + k % 2];
#pragma unroll
        for (u32 v = 0; v < VALUE_VECTORS; v++) value[k][v] = load_words(values, counted[k], v * 8 + group);
    }
    float scores[4];
#pragma unroll
    for (u32 tile = 0; tile < 2; tile++) {
        float sum[4] = {};
#pragma unroll
        for (u32 v = 0; v < KEY_VECTORS; v++) {
            for (u32 i = 0; i < 4; i += 2) {
                // Rows 8 to 15 of the tile are no query heads.
                u32 a[4] = {query[v].at[i], 0, query[v].at[i + 1], 0};
                multiply_tiles(sum, a, key[tile][v].at + i);
            }
        }
        scores[tile * 2] = sum[0];
        scores[tile * 2 + 1] = sum[1];
    }
    float largest = softmax.largest;
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        scores[k] *= scale;
        if constexpr (KV::SCALED) {
            u32 at = first + k / 2 * 8 + place * 2 + k % 2;
            if (counted[k] != NO_KEY) scores[k] *= *(const float *)(keys + places.scale[at]);
        }
        scores[k] = counted[k] != NO_KEY ? scores[k] : NEVER;
        largest = fmaxf(largest, scores[k]);
    }
    largest = max_of_lanes(largest, 4);
    float shrink = exp2f(softmax.largest - largest);
    softmax.largest = largest;
    softmax.sum *= shrink;
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        scores[k] = exp2f(scores[k] - largest);
        softmax.sum += scores[k];
        if constexpr (KV::SCALED) {
            u32 at = first + k / 2 * 8 + place * 2 + k % 2;
            if (counted[k] != NO_KEY) scores[k] *= *(const float *)(values + places.scale[at]);
        }
    }
    float even = of_lane(shrink, place * 8), odd = of_lane(shrink, place * 8 + 4);
    u32 weights[2] = {to_bf16x2(scores[0], scores[1]), to_bf16x2(scores[2], scores[3])};
#pragma unroll
    for (u32 v = 0; v < VALUE_VECTORS; v++) {
#pragma unroll
        for (u32 u = 0; u < 4; u++) {
            float *sum = softmax.values[v][u];
            sum[0] *= even;
            sum[1] *= odd;
            sum[2] *= even;
            sum[3] *= odd;
            u32 word[4] = {value[0][v].at[u], value[1][v].at[u], value[2][v].at[u], value[3][v].at[u]};
            u32 a[4] = {
                (word[0] & 0xffff) | word[1] << 16, word[0] >> 16 | (word[1] & 0xffff0000),
                (word[2] & 0xffff) | word[3] << 16, word[2] >> 16 | (word[3] & 0xffff0000)
            };
            multiply_tiles(sum, a, weights);
        }
    }
}

// Combines the softmax states of a thread block's warps, and writes the span's result for each query head: HEAD_DIM sums
// of weighted values, the largest score, and the sum of weights.
__device__ __forceinline__ void finish_span(const Softmax &softmax, u32 heads, float *shared, float *out) {
    float *values = shared;                             // [warp][query head][HEAD_DIM]
    float *largest = values + ATTENTION_WARPS * GROUP * HEAD_DIM; // [warp][query head]
    float *sums = largest + ATTENTION_WARPS * GROUP;         // [warp][query head]
    u32 lane = lane_of_thread(), first = warp_of_thread() * GROUP;
    float sum = sum_of_lanes(softmax.sum, 4);
    if (lane % 4 == 0 && lane / 4 < GROUP) {
        largest[first + lane / 4] = softmax.largest;
        sums[first + lane / 4] = sum;
    }
#pragma unroll
    for (u32 v = 0; v < VALUE_VECTORS; v++) {
#pragma unroll
        for (u32 i = 0; i < 16; i++) {
            u32 dim = v * 64 + lane / 4 * 8 + i / 4 * 2 + i % 4 / 2, g = lane % 4 * 2 + i % 2;
            if (dim < HEAD_DIM && g < GROUP) values[(first + g) * HEAD_DIM + dim] = softmax.values[v][i / 4][i % 4];
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < heads * HEAD_DIM; i += blockDim.x) {
        u32 g = i / HEAD_DIM, dim = i % HEAD_DIM;
        float most = NEVER, value = 0.0f, total = 0.0f;
        for (u32 w = 0; w < ATTENTION_WARPS; w++) most = fmaxf(most, largest[w * GROUP + g]);
        for (u32 w = 0; w < ATTENTION_WARPS; w++) {
            float scale = exp2f(largest[w * GROUP + g] - most);
            value += values[(w * GROUP + g) * HEAD_DIM + dim] * scale;
            total += sums[w * GROUP + g] * scale;
        }
        float *to = out + g * (HEAD_DIM + 2);
        to[dim] = value;
        if (dim == 0) {
            to[HEAD_DIM] = most;
            to[HEAD_DIM + 1] = total;
        }
    }
}

// Counts the thread block as finished. Returns, to each of its threads, whether it was the last of `count` blocks; then the
// count is 0 again, and the block sees the results of all others.
__device__ __forceinline__ bool is_last(u32 *finished, u32 count, u32 *shared) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        *shared = atomicAdd(finished, 1u) == count - 1;
        if (*shared) *finished = 0;
    }
    __syncthreads();
    __threadfence();
    return *shared;
}

// Combines `count` spans of a row into out[query head][HEAD_DIM]; `spans` points to the first, `stride` floats before the
// next. The loads are volatile, so that no cache answers with an older content.
__device__ __forceinline__ void combine_spans(const volatile float *spans, u64 stride, u32 count, u32 heads, bf16 *out) {
    for (u32 i = threadIdx.x; i < heads * HEAD_DIM; i += blockDim.x) {
        const volatile float *from = spans + i / HEAD_DIM * (HEAD_DIM + 2);
        u32 dim = i % HEAD_DIM;
        float most = NEVER, value = 0.0f, total = 0.0f;
#pragma unroll 4
        for (u32 s = 0; s < count; s++, from += stride) {
            float of_span = from[dim], largest = from[HEAD_DIM], sum = from[HEAD_DIM + 1];
            float both = fmaxf(most, largest), shrink = exp2f(most - both), scale = exp2f(largest - both);
            most = both;
            value = value * shrink + of_span * scale;
            total = total * shrink + sum * scale;
        }
        out[i] = to_bf16(value / total);
    }
}

// Computes one span of a row's attention. `blockIdx.y` is an index into `span_rows`, which holds the span's row or
// NO_ROW, into `span_numbers`, which holds the span's number in that row, counted from position 0, and into `span_firsts`
// and `span_counts`, which hold the index of the row's first span and the number of its spans. `blockIdx.x` is
// key head * PARTS + the part of its query heads. A row attends to the last `window` positions up to its own, or to all
// of them if `window` is 0. `scale` includes log2(e). `spans` receives `heads * (HEAD_DIM + 2)` floats per span;
// `finished`, a word for each span and part, is all 0 before and after; `out` is [row][query head][HEAD_DIM].
extern "C" __global__ void __launch_bounds__(ATTENTION_WARPS * WARP, HEAD_DIM > 128 ? 2 : 3)
KERNEL(attention_rows)(
    const bf16 *qkv, u32 cols, const unsigned char *layer_kv, u64 block_stride, u32 block_size, const u32 *positions,
    const u32 *table_starts, const u32 *tables, const u32 *span_rows, const u32 *span_numbers,
    const u32 *span_firsts, const u32 *span_counts, float *spans, u32 *finished, bf16 *out, u32 kv_heads, u32 window,
    float scale
) {
    SHARED_MEMORY(shared);
    u32 row = span_rows[blockIdx.y];
    if (row == NO_ROW) return;
    u32 position = positions[row];
    u32 kv_head = blockIdx.x / PARTS, first = blockIdx.x % PARTS * GROUP;
    u32 head = kv_head * QUERIES + first, heads_here = min(GROUP, QUERIES - first), heads = kv_heads * QUERIES;
    u32 start = span_numbers[blockIdx.y] * SPAN, end = min(start + SPAN, position + 1);
    u32 seen_from = window > 0 && position + 1 > window ? position + 1 - window : 0;
    Places &places = *(Places *)shared;
    find_keys(places, tables + table_starts[row], start, seen_from, end, block_stride, block_size);

    u32 lane = lane_of_thread();
    Words query[KEY_VECTORS];
#pragma unroll
    for (u32 v = 0; v < KEY_VECTORS; v++) {
        u32 at = (v * 4 + lane % 4) * 8;
        Bf16x8 eight = {};
        if (at < HEAD_DIM && lane / 4 < heads_here) {
            eight = *(const Bf16x8 *)(qkv + (u64)row * cols + (head + lane / 4) * HEAD_DIM + at);
        }
        query[v] = words_of(eight);
    }
    Softmax softmax;
    softmax.largest = NEVER;
    softmax.sum = 0.0f;
#pragma unroll
    for (u32 v = 0; v < VALUE_VECTORS; v++) {
        for (u32 i = 0; i < 16; i++) softmax.values[v][i / 4][i % 4] = 0.0f;
    }
    u64 head_bytes = kv_head_bytes<KV>(block_size, HEAD_DIM);
    const unsigned char *keys = layer_kv + kv_head * head_bytes, *values = keys + kv_heads * head_bytes;
    for (u32 at = warp_of_thread() * KEYS; at < end - start; at += ATTENTION_WARPS * KEYS) {
        add_keys(softmax, query, places, at, keys, values, scale);
    }
    // The memory of the places is used again.
    __syncthreads();
    u64 stride = (u64)heads * (HEAD_DIM + 2);
    float *of_head = spans + head * (HEAD_DIM + 2);
    finish_span(softmax, heads_here, (float *)shared, of_head + blockIdx.y * stride);
    u32 first_span = span_firsts[blockIdx.y], count = span_counts[blockIdx.y];
    if (is_last(finished + (u64)first_span * gridDim.x + blockIdx.x, count, (u32 *)shared)) {
        bf16 *to = out + ((u64)row * heads + head) * HEAD_DIM;
        combine_spans(of_head + first_span * stride, stride, count, heads_here, to);
    }
}
