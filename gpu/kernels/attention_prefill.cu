// Attention of many rows of one sequence over KV blocks, on tensor cores.
//
// The query heads that share a key head are rows of one matrix: TILE pairs of (row, query head) are multiplied with
// TILE_KEYS keys at a time, so that keys and values are read once for all pairs of a tile. The softmax is computed
// online, as in FlashAttention-2 (Dao, 2023). Sums are computed by tiles instead of single keys, so results differ from
// attention_rows in the last bits of bf16.
//
// Keys and values are copied to shared memory while the tensor cores work: the values of a tile while its keys are
// multiplied, the keys of the next tile while the values are. Each warp multiplies several tiles of 16 pairs with the
// same part of keys or values, because reading them from shared memory takes about as long as the products.
//
// Keys and values are multiplied as bf16, which also holds 8-bit integers exactly; scales of keys and values are applied
// to scores and weights.
//
// Compiled per model, with the definitions of gpu/src/cuda/shapes.rs: HEAD_DIM (width of a head), QUERIES (query heads
// per key head), KV (format of keys and values, see kv.cuh), ATTENTION_WARPS (warps of a thread block), TILE (pairs of a
// row and a query head that a thread block computes), TILE_KEYS (keys that are multiplied at a time); and with
// KERNEL(name) (name of a kernel in the binary).

constexpr u32 PAIR_TILES = TILE / (ATTENTION_WARPS * 16); // tiles of 16 pairs that a warp computes
constexpr u32 THREADS = ATTENTION_WARPS * WARP;
static_assert(TILE % (ATTENTION_WARPS * 16) == 0 && TILE_KEYS % 16 == 0 && HEAD_DIM % 16 == 0, "whole tiles of 16");
// Distance between the rows of a tile in shared memory, elements: 16 bytes more than the row's width, so that
// neighbouring rows start in different memory banks.
constexpr u32 TILE_STRIDE = HEAD_DIM + 8;

// A group of ROW_THREADS threads copies a row of HEAD_DIM elements, eight elements a thread. ROW_THREADS is a power of two.
__device__ constexpr u32 power_of_two_from(u32 least) { return least > 1 ? 2 * power_of_two_from((least + 1) / 2) : 1; }
constexpr u32 ROW_THREADS = power_of_two_from(HEAD_DIM / 8), ROWS_AT_ONCE = THREADS / ROW_THREADS;
constexpr u32 TURNS = TILE_KEYS / ROWS_AT_ONCE; // turns in which the threads of a block copy TILE_KEYS rows
static_assert(TILE_KEYS % ROWS_AT_ONCE == 0 && TILE_KEYS <= THREADS, "a tile takes whole turns");

// Scores of a warp's pairs with the keys of a tile, or the pairs' softmax weights. Of each tile of 16 pairs, a lane holds
// the rows `lane / 4` and `lane / 4 + 8`, and of each 8 columns of a row a pair of columns.
typedef float Scores[PAIR_TILES][TILE_KEYS / 8][4];

// Sums of a warp's pairs over all keys so far, spread over the lanes as scores are. Each lane has the sums of weights of
// its own columns.
struct Sums {
    float out[PAIR_TILES][HEAD_DIM / 8][4];
    float largest[PAIR_TILES][2]; // largest score, not scaled
    float weights[PAIR_TILES][2];
};

// The tile's rows. A pair is a row and a query head: pair `p` is row `p / QUERIES` of the sequence and head
// `p % QUERIES` of those that share the key head. Pairs beyond the sequence's last pair repeat its computation; their
// results are not written.
struct Rows {
    u32 first_row;
    u32 pairs; // pairs of the sequence
    u32 first_position;
};

// Returns the position of a pair's row in the sequence.
__device__ __forceinline__ u32 position_of(const Rows &rows, u32 pair) {
    return rows.first_position + min(pair, rows.pairs - 1) / QUERIES;
}

// Keys and values of one kv head in the KV blocks of one sequence.
struct Head {
    const unsigned char *layer_kv; // the head's keys in block 0
    const u32 *table;
    u64 block_stride;
    u32 block_size;
};

// Address of a key in a KV block. The address of the key's value is a constant number of bytes higher.
struct Place {
    const unsigned char *elements;
    const unsigned char *scale; // of a format with scales only
};

__device__ __forceinline__ Place place_of(const Head &head, u32 position) {
    u32 slot = position % head.block_size;
    const unsigned char *keys = head.layer_kv + head.table[position / head.block_size] * head.block_stride;
    Place place = {kv_token<KV>(keys, slot, HEAD_DIM), nullptr};
    if constexpr (KV::SCALED) place.scale = kv_scale<KV>(keys, slot, head.block_size, HEAD_DIM);
    return place;
}

// Keys or values of TILE_KEYS positions in shared memory. In a format with scales, each thread first copies elements as
// they are stored to `stored`, and then converts the elements that it copied itself.
struct Part {
    bf16 *elements;
    float *scales;
    KV::Eight *stored;
};

// Starts to copy the elements and scales at `distance` bytes from the places of a tile's keys.
__device__ __forceinline__ void start_load(const Part &part, const Place *places, u64 distance) {
    if constexpr (KV::SCALED) {
        u32 key = threadIdx.x;
        if (key < TILE_KEYS) start_copy<4>(part.scales + key, places[key].scale + distance);
    }
    u32 key = threadIdx.x / ROW_THREADS, column = threadIdx.x % ROW_THREADS * 8;
    if (column >= HEAD_DIM) return;
    const unsigned char *from[TURNS];
#pragma unroll
    for (u32 n = 0; n < TURNS; n++) {
        from[n] = places[key + n * ROWS_AT_ONCE].elements + (distance + column * KV::ELEMENT_BYTES);
    }
    bf16 *to = part.elements + key * TILE_STRIDE + column;
#pragma unroll
    for (u32 n = 0; n < TURNS; n++) {
        void *at = to + n * ROWS_AT_ONCE * TILE_STRIDE;
        if constexpr (KV::SCALED) at = part.stored + n * THREADS + threadIdx.x;
        start_copy<sizeof(KV::Eight)>(at, from[n]);
    }
}

// Waits until all threads' copies of a part of a tile, which are the last copies that were started, are done.
__device__ __forceinline__ void finish_load(const Part &part) {
    wait_for_all_copies();
    if constexpr (KV::SCALED) {
        u32 key = threadIdx.x / ROW_THREADS, column = threadIdx.x % ROW_THREADS * 8;
        if (column < HEAD_DIM) {
#pragma unroll
            for (u32 n = 0; n < TURNS; n++) {
                bf16 *to = part.elements + (key + n * ROWS_AT_ONCE) * TILE_STRIDE + column;
                *(Bf16x8 *)to = to_bf16x8(part.stored[n * THREADS + threadIdx.x]);
            }
        }
    }
    __syncthreads();
}

// Starts to copy the queries of the pairs from `first_pair` on to shared memory; `qkv` points to the first of the query
// heads in the sequence's first row.
__device__ __forceinline__ void start_load_queries(bf16 *to, const bf16 *qkv, u32 cols, u32 first_pair, u32 pairs) {
    u32 column = threadIdx.x % ROW_THREADS * 8;
    if (column >= HEAD_DIM) return;
    for (u32 i = threadIdx.x / ROW_THREADS; i < TILE; i += ROWS_AT_ONCE) {
        u32 pair = min(first_pair + i, pairs - 1);
        const bf16 *from = qkv + (u64)(pair / QUERIES) * cols + pair % QUERIES * HEAD_DIM + column;
        start_copy<16>(to + i * TILE_STRIDE + column, from);
    }
}

// Multiplies the columns of scores, or of weights, by the scales of their keys, or of their values.
__device__ __forceinline__ void scale_columns(Scores &scores, const float *scales) {
    u32 lane = lane_of_thread();
#pragma unroll
    for (u32 n = 0; n < TILE_KEYS / 8; n++) {
        float even = scales[n * 8 + lane % 4 * 2], odd = scales[n * 8 + lane % 4 * 2 + 1];
#pragma unroll
        for (u32 t = 0; t < PAIR_TILES; t++) {
            scores[t][n][0] *= even;
            scores[t][n][1] *= odd;
            scores[t][n][2] *= even;
            scores[t][n][3] *= odd;
        }
    }
}

// Offset, in a tile of 16 rows and 16 columns in shared memory, of the row of eight elements whose address a lane passes
// to load_tiles. The four tiles of 8 x 8 are then the upper left, lower left, upper right and lower right one.
__device__ __forceinline__ u32 lane_offset() {
    u32 lane = lane_of_thread();
    return lane % 16 * TILE_STRIDE + lane / 16 * 8;
}

// scores = queries · keysᵀ
__device__ __forceinline__ void multiply_keys(Scores &scores, const bf16 *queries, const bf16 *keys) {
    const bf16 *query = queries + lane_offset(), *key = keys + lane_offset();
#pragma unroll
    for (u32 i = 0; i < PAIR_TILES * TILE_KEYS / 2; i++) scores[i / (TILE_KEYS / 2)][i / 4 % (TILE_KEYS / 8)][i % 4] = 0.0f;
    // Unrolled by four only, because with more the compiler loads so far ahead that the registers do not suffice.
#pragma unroll 4
    for (u32 k = 0; k < HEAD_DIM / 16; k++) {
        u32 a[PAIR_TILES][4];
#pragma unroll
        for (u32 t = 0; t < PAIR_TILES; t++) load_tiles(a[t], query + t * 16 * TILE_STRIDE + k * 16);
#pragma unroll
        for (u32 n = 0; n < TILE_KEYS / 16; n++) {
            u32 b[4];
            load_tiles(b, key + n * 16 * TILE_STRIDE + k * 16);
            const u32 upper[2] = {b[0], b[2]}, lower[2] = {b[1], b[3]};
#pragma unroll
            for (u32 t = 0; t < PAIR_TILES; t++) {
                multiply_tiles(scores[t][n * 2], a[t], upper);
                multiply_tiles(scores[t][n * 2 + 1], a[t], lower);
            }
        }
    }
}

// Sets the scores of keys that a pair does not attend to; `start` is the position of the tile's first key.
__device__ __forceinline__ void mask(Scores &scores, const Rows &rows, u32 warp_pair, u32 start, u32 window) {
    u32 lane = lane_of_thread();
#pragma unroll
    for (u32 t = 0; t < PAIR_TILES; t++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u32 own = position_of(rows, warp_pair + t * 16 + half * 8 + lane / 4);
#pragma unroll
            for (u32 n = 0; n < TILE_KEYS / 8; n++) {
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    u32 key = start + n * 8 + lane % 4 * 2 + i;
                    bool counts = key <= own && (window == 0 || key + window > own);
                    if (!counts) scores[t][n][half * 2 + i] = NEVER;
                }
            }
        }
    }
}

// Replaces scores by softmax weights relative to the largest score so far, and rescales the earlier sums to that score.
__device__ __forceinline__ void weigh(Scores &scores, Sums &sums, float scale) {
#pragma unroll
    for (u32 t = 0; t < PAIR_TILES; t++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            float largest = sums.largest[t][half];
#pragma unroll
            for (u32 n = 0; n < TILE_KEYS / 8; n++) {
                largest = fmaxf(largest, fmaxf(scores[t][n][half * 2], scores[t][n][half * 2 + 1]));
            }
            largest = max_of_lanes(largest, 4);
            float rescale = power_of_two((sums.largest[t][half] - largest) * scale);
            sums.largest[t][half] = largest;
            sums.weights[t][half] *= rescale;
#pragma unroll
            for (u32 n = 0; n < HEAD_DIM / 8; n++) {
                sums.out[t][n][half * 2] *= rescale;
                sums.out[t][n][half * 2 + 1] *= rescale;
            }
            // Where every key so far is masked, the weights are 0: 2 to the power of NEVER times the scale.
            float shift = largest == NEVER ? 0.0f : largest * scale;
#pragma unroll
            for (u32 n = 0; n < TILE_KEYS / 8; n++) {
#pragma unroll
                for (u32 i = half * 2; i < half * 2 + 2; i++) {
                    scores[t][n][i] = power_of_two(fmaf(scores[t][n][i], scale, -shift));
                    sums.weights[t][half] += scores[t][n][i];
                }
            }
        }
    }
}

// out += weights · values
__device__ __forceinline__ void multiply_values(Sums &sums, const Scores &weights, const bf16 *values) {
    const bf16 *row = values + lane_offset();
#pragma unroll
    for (u32 k = 0; k < TILE_KEYS / 16; k++) {
        u32 a[PAIR_TILES][4];
#pragma unroll
        for (u32 t = 0; t < PAIR_TILES; t++) {
            const float *left = weights[t][k * 2], *right = weights[t][k * 2 + 1];
            a[t][0] = to_bf16x2(left[0], left[1]);
            a[t][1] = to_bf16x2(left[2], left[3]);
            a[t][2] = to_bf16x2(right[0], right[1]);
            a[t][3] = to_bf16x2(right[2], right[3]);
        }
#pragma unroll
        for (u32 n = 0; n < HEAD_DIM / 16; n++) {
            u32 b[4];
            load_tiles_transposed(b, row + k * 16 * TILE_STRIDE + n * 16);
#pragma unroll
            for (u32 t = 0; t < PAIR_TILES; t++) {
                multiply_tiles(sums.out[t][n * 2], a[t], b);
                multiply_tiles(sums.out[t][n * 2 + 1], a[t], b + 2);
            }
        }
    }
}

// Writes the attention of a warp's pairs; `out` points to the first of the query heads in the sequence's first row, whose
// rows are `cols` elements apart.
__device__ __forceinline__ void write_out(bf16 *out, u32 cols, const Sums &sums, u32 warp_pair, u32 pairs) {
    u32 lane = lane_of_thread();
#pragma unroll
    for (u32 t = 0; t < PAIR_TILES; t++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            float factor = 1.0f / sum_of_lanes(sums.weights[t][half], 4);
            u32 pair = warp_pair + t * 16 + half * 8 + lane / 4;
            if (pair >= pairs) continue;
            bf16 *to = out + (u64)(pair / QUERIES) * cols + pair % QUERIES * HEAD_DIM + lane % 4 * 2;
#pragma unroll
            for (u32 n = 0; n < HEAD_DIM / 8; n++) {
                const float *two = sums.out[t][n] + half * 2;
                *(u32 *)(to + n * 8) = to_bf16x2(two[0] * factor, two[1] * factor);
            }
        }
    }
}

// Attention of one tile of a sequence. `blockIdx.x` is a key head. `blockIdx.y` is a tile. The tile is part of
// sequence number `tile_sequences[blockIdx.y]` and starts at pair `tile_numbers[blockIdx.y] * TILE`. Sequence s has
// `sequences[4 s + 1]` rows, from row `sequences[4 s]` on; the first row of the sequence is at position
// `sequences[4 s + 2]`, and the block table of the sequence starts at `tables[sequences[4 s + 3]]`. `out` is
// [row][query head][HEAD_DIM]. The other arguments are those of attention_rows.
extern "C" __global__ void __launch_bounds__(THREADS, 2) KERNEL(attention_prefill)(
    const bf16 *qkv, u32 cols, const unsigned char *layer_kv, u64 block_stride, u32 block_size, const u32 *sequences,
    const u32 *tables, const u32 *tile_sequences, const u32 *tile_numbers, bf16 *out, u32 kv_heads, u32 window,
    float scale
) {
    SHARED_MEMORY(shared);
    bf16 *queries = (bf16 *)shared;
    Part keys = {queries + TILE * TILE_STRIDE, nullptr, nullptr};
    Part values = {keys.elements + TILE_KEYS * TILE_STRIDE, nullptr, nullptr};
    Place *places = (Place *)(values.elements + TILE_KEYS * TILE_STRIDE), *next_places = places + TILE_KEYS;
    if constexpr (KV::SCALED) {
        keys.scales = (float *)(next_places + TILE_KEYS);
        values.scales = keys.scales + TILE_KEYS;
        keys.stored = values.stored = (KV::Eight *)(values.scales + TILE_KEYS);
    }

    const u32 *sequence = sequences + tile_sequences[blockIdx.y] * 4;
    Rows rows = {sequence[0], sequence[1] * QUERIES, sequence[2]};
    u32 kv_head = blockIdx.x, first_pair = tile_numbers[blockIdx.y] * TILE;
    u64 head_bytes = kv_head_bytes<KV>(block_size, HEAD_DIM), values_at = kv_heads * head_bytes;
    Head head = {layer_kv + kv_head * head_bytes, tables + sequence[3], block_stride, block_size};

    u32 first_seen = position_of(rows, first_pair) + 1, end = position_of(rows, first_pair + TILE - 1) + 1;
    u32 start = window > 0 && first_seen > window ? (first_seen - window) / TILE_KEYS * TILE_KEYS : 0;
    // Places from `end` on repeat the last key, which the mask hides.
    bool finds_place = threadIdx.x < TILE_KEYS;
    if (finds_place) places[threadIdx.x] = place_of(head, min(start + threadIdx.x, end - 1));
    const bf16 *first_query = qkv + (u64)rows.first_row * cols + kv_head * (QUERIES * HEAD_DIM);
    start_load_queries(queries, first_query, cols, first_pair, rows.pairs);
    __syncthreads();
    start_load(keys, places, 0);

    u32 warp_pair = first_pair + warp_of_thread() * (PAIR_TILES * 16);
    u32 warp_first = position_of(rows, warp_pair), warp_last = position_of(rows, warp_pair + PAIR_TILES * 16 - 1);
    queries += warp_of_thread() * (PAIR_TILES * 16) * TILE_STRIDE;
    Sums sums = {};
    for (u32 t = 0; t < PAIR_TILES; t++) sums.largest[t][0] = sums.largest[t][1] = NEVER;

    for (; start < end; start += TILE_KEYS) {
        u32 next = start + TILE_KEYS;
        finish_load(keys);
        start_load(values, places, values_at);
        Place place = {};
        if (finds_place) place = place_of(head, min(next + threadIdx.x, end - 1));
        Scores scores;
        multiply_keys(scores, queries, keys.elements);
        if constexpr (KV::SCALED) scale_columns(scores, keys.scales);
        bool sees_all = next <= warp_first + 1 && (window == 0 || start + window > warp_last);
        if (!sees_all) mask(scores, rows, warp_pair, start, window);
        if (finds_place) next_places[threadIdx.x] = place;

        finish_load(values);
        if (finds_place) places[threadIdx.x] = place;
        weigh(scores, sums, scale);
        if constexpr (KV::SCALED) scale_columns(scores, values.scales);
        // Started only here, where fewer registers are in use.
        if (next < end) start_load(keys, next_places, 0);
        multiply_values(sums, scores, values.elements);
    }

    u32 out_cols = kv_heads * (QUERIES * HEAD_DIM);
    bf16 *first_out = out + (u64)rows.first_row * out_cols + kv_head * (QUERIES * HEAD_DIM);
    write_out(first_out, out_cols, sums, warp_pair, rows.pairs);
}
