// Attention of many rows of one sequence over KV blocks, on tensor cores.
//
// The query heads that share a key head are rows of one matrix: TILE pairs of (row, query head) are multiplied with
// TILE_KEYS keys at a time, so that keys and values are read once for all pairs of a tile. The softmax is computed
// online, as in FlashAttention-2 (Dao, 2023). Sums are computed by tiles instead of single keys, so results differ from
// attention_rows in the last bits of bf16.
//
// Keys and values are multiplied as bf16, which also holds 8-bit integers exactly; scales of keys and values are applied
// to scores and weights.
//
// Compiled per model, with the definitions of gpu/src/cuda/shapes.rs: HEAD_DIM (width of a head), QUERIES (query heads
// per key head), KV (format of keys and values, see kv.cuh), ATTENTION_WARPS (warps of a thread block), TILE (pairs of a
// row and a query head that a thread block computes), TILE_KEYS (keys that are multiplied at a time); and with
// KERNEL(name) (name of a kernel in the binary).

static_assert(TILE == ATTENTION_WARPS * 16 && TILE_KEYS % 16 == 0 && HEAD_DIM % 16 == 0, "whole tiles of 16");
// Distance between the rows of a tile in shared memory, elements: 16 bytes more than the row's width, so that
// neighbouring rows start in different memory banks.
constexpr u32 TILE_STRIDE = HEAD_DIM + 8;

// Part of a tile that one lane holds. The tile has 16 rows per warp; a lane holds rows `lane / 4` and `lane / 4 + 8`,
// and of each 8 columns of a row a pair of columns.
struct Tile {
    u32 query[HEAD_DIM / 16][4];
    float out[HEAD_DIM / 8][4];
    float largest[2];
    float sum[2];
};

// Rows of the sequence that a tile belongs to.
struct Rows {
    u32 first_row;
    u32 rows;
    u32 first_position;
};

// Keys and values of TILE_KEYS positions in shared memory. Scales are there in a format with scales only.
struct KeyTile {
    bf16 *keys;
    bf16 *values;
    float *key_scales;
    float *value_scales;
};

// Keys and values of one kv head in the KV blocks of one sequence.
struct Head {
    const unsigned char *layer_kv; // the head's keys in block 0
    const u32 *table;
    u64 block_stride;
    u64 values_at; // distance from keys to values, bytes
    u32 block_size;
};

// Copies the keys and values of TILE_KEYS positions from `start` on to shared memory; writes zeros for positions from
// `end` on.
__device__ __forceinline__ void load_keys(const KeyTile &to, const Head &head, u32 start, u32 end) {
    for (u32 i = threadIdx.x; i < TILE_KEYS * (HEAD_DIM / 8); i += blockDim.x) {
        u32 key = i / (HEAD_DIM / 8), part = i % (HEAD_DIM / 8), position = start + key;
        KV::Eight k = {}, v = {};
        if (position < end) {
            u32 slot = position % head.block_size;
            const unsigned char *keys = head.layer_kv + head.table[position / head.block_size] * head.block_stride;
            k = ((const KV::Eight *)kv_token<KV>(keys, slot, HEAD_DIM))[part];
            v = ((const KV::Eight *)kv_token<KV>(keys + head.values_at, slot, HEAD_DIM))[part];
        }
        *(Bf16x8 *)(to.keys + key * TILE_STRIDE + part * 8) = to_bf16x8(k);
        *(Bf16x8 *)(to.values + key * TILE_STRIDE + part * 8) = to_bf16x8(v);
    }
    if constexpr (KV::SCALED) {
        for (u32 key = threadIdx.x; key < TILE_KEYS; key += blockDim.x) {
            u32 position = start + key;
            float k = 0.0f, v = 0.0f;
            if (position < end) {
                u32 slot = position % head.block_size;
                const unsigned char *keys = head.layer_kv + head.table[position / head.block_size] * head.block_stride;
                k = *(const float *)kv_scale<KV>(keys, slot, head.block_size, HEAD_DIM);
                v = *(const float *)kv_scale<KV>(keys + head.values_at, slot, head.block_size, HEAD_DIM);
            }
            to.key_scales[key] = k;
            to.value_scales[key] = v;
        }
    }
}

// Multiplies the columns of a tile of scores, or of weights, by the scales of their keys, or of their values.
__device__ __forceinline__ void scale_columns(float scores[TILE_KEYS / 8][4], const float *scales) {
    u32 lane = lane_of_thread();
#pragma unroll
    for (u32 n = 0; n < TILE_KEYS / 8; n++) {
        float even = scales[n * 8 + lane % 4 * 2], odd = scales[n * 8 + lane % 4 * 2 + 1];
        scores[n][0] *= even;
        scores[n][1] *= odd;
        scores[n][2] *= even;
        scores[n][3] *= odd;
    }
}

// scores = query · keysᵀ
__device__ __forceinline__ void multiply_keys(float scores[TILE_KEYS / 8][4], const Tile &tile, const bf16 *keys) {
    u32 lane = lane_of_thread();
#pragma unroll
    for (u32 n = 0; n < TILE_KEYS / 8; n++) {
        for (u32 i = 0; i < 4; i++) scores[n][i] = 0.0f;
        const bf16 *key = keys + (n * 8 + lane / 4) * TILE_STRIDE + lane % 4 * 2;
#pragma unroll
        for (u32 k = 0; k < HEAD_DIM / 16; k++) {
            u32 b[2] = {*(const u32 *)(key + k * 16), *(const u32 *)(key + k * 16 + 8)};
            multiply_tiles(scores[n], tile.query[k], b);
        }
    }
}

// Replaces scores by softmax weights relative to the largest score so far, and rescales the earlier sums to that score.
__device__ __forceinline__ void weigh(float scores[TILE_KEYS / 8][4], Tile &tile) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        float largest = tile.largest[half];
#pragma unroll
        for (u32 n = 0; n < TILE_KEYS / 8; n++) {
            largest = fmaxf(largest, fmaxf(scores[n][half * 2], scores[n][half * 2 + 1]));
        }
        largest = max_of_lanes(largest, 4);
        float scale = exp2f(tile.largest[half] - largest), sum = 0.0f;
        tile.largest[half] = largest;
#pragma unroll
        for (u32 n = 0; n < TILE_KEYS / 8; n++) {
#pragma unroll
            for (u32 i = half * 2; i < half * 2 + 2; i++) {
                scores[n][i] = exp2f(scores[n][i] - largest);
                sum += scores[n][i];
            }
        }
        // Each lane sums the weights of its own columns; the lanes' sums are added at the end of the kernel.
        tile.sum[half] = tile.sum[half] * scale + sum;
#pragma unroll
        for (u32 n = 0; n < HEAD_DIM / 8; n++) {
            tile.out[n][half * 2] *= scale;
            tile.out[n][half * 2 + 1] *= scale;
        }
    }
}

// out += weights · values
__device__ __forceinline__ void multiply_values(
    Tile &tile, const float weights[TILE_KEYS / 8][4], const bf16 *values
) {
    u32 lane = lane_of_thread();
    const bf16 *row = values + (lane / 8 % 2 * 8 + lane % 8) * TILE_STRIDE + lane / 16 * 8;
#pragma unroll
    for (u32 k = 0; k < TILE_KEYS / 16; k++) {
        const float *left = weights[k * 2], *right = weights[k * 2 + 1];
        u32 a[4] = {
            to_bf16x2(left[0], left[1]), to_bf16x2(left[2], left[3]), to_bf16x2(right[0], right[1]),
            to_bf16x2(right[2], right[3])
        };
#pragma unroll
        for (u32 n = 0; n < HEAD_DIM / 16; n++) {
            u32 b[4];
            load_tiles_transposed(b, row + k * 16 * TILE_STRIDE + n * 16);
            multiply_tiles(tile.out[n * 2], a, b);
            multiply_tiles(tile.out[n * 2 + 1], a, b + 2);
        }
    }
}

// Attention of one tile of a sequence. `blockIdx.y` is a key head. `blockIdx.x` is a tile: it belongs to sequence
// number `tile_sequences[blockIdx.x]` and starts at pair `tile_numbers[blockIdx.x] * TILE`. Sequence s has the rows
// from `sequences[4 s]` on, `sequences[4 s + 1]` of them; its first row is at position `sequences[4 s + 2]`; its block
// table starts at `tables[sequences[4 s + 3]]`. `out` is [row][query head][HEAD_DIM]. The other arguments are those of
// attention_rows.
extern "C" __global__ void __launch_bounds__(ATTENTION_WARPS * WARP) KERNEL(attention_prefill)(
    const bf16 *qkv, u32 cols, const unsigned char *layer_kv, u64 block_stride, u32 block_size, const u32 *sequences,
    const u32 *tables, const u32 *tile_sequences, const u32 *tile_numbers, bf16 *out, u32 kv_heads, u32 window,
    float scale
) {
    SHARED_MEMORY(shared);
    bf16 *keys = (bf16 *)shared;
    float *scales = (float *)(keys + 2 * TILE_KEYS * TILE_STRIDE);
    KeyTile loaded = {keys, keys + TILE_KEYS * TILE_STRIDE, scales, scales + TILE_KEYS};
    const u32 *sequence = sequences + tile_sequences[blockIdx.x] * 4;
    Rows rows = {sequence[0], sequence[1], sequence[2]};
    u64 head_bytes = kv_head_bytes<KV>(block_size, HEAD_DIM);
    Head source = {
        layer_kv + blockIdx.y * head_bytes, tables + sequence[3], block_stride, kv_heads * head_bytes, block_size
    };
    u32 kv_head = blockIdx.y, first_pair = tile_numbers[blockIdx.x] * TILE, pairs = rows.rows * QUERIES;
    u32 lane = lane_of_thread(), heads = kv_heads * QUERIES;

    Tile tile;
    u32 row[2], head[2], pair[2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        pair[half] = first_pair + warp_of_thread() * 16 + half * 8 + lane / 4;
        // Pairs beyond the sequence's last pair repeat its computation; their results are not written.
        u32 real = min(pair[half], pairs - 1);
        row[half] = real / QUERIES;
        head[half] = kv_head * QUERIES + real % QUERIES;
        const bf16 *from = qkv + (u64)(rows.first_row + row[half]) * cols + head[half] * HEAD_DIM + lane % 4 * 2;
#pragma unroll
        for (u32 k = 0; k < HEAD_DIM / 16; k++) {
            tile.query[k][half] = *(const u32 *)(from + k * 16);
            tile.query[k][half + 2] = *(const u32 *)(from + k * 16 + 8);
        }
        tile.largest[half] = NEVER;
        tile.sum[half] = 0.0f;
    }
#pragma unroll
    for (u32 n = 0; n < HEAD_DIM / 8; n++) {
        for (u32 i = 0; i < 4; i++) tile.out[n][i] = 0.0f;
    }

    u32 first_seen = rows.first_position + first_pair / QUERIES + 1;
    u32 end = rows.first_position + min(first_pair + TILE - 1, pairs - 1) / QUERIES + 1;
    u32 start = window > 0 && first_seen > window ? (first_seen - window) / TILE_KEYS * TILE_KEYS : 0;
    for (; start < end; start += TILE_KEYS) {
        __syncthreads();
        load_keys(loaded, source, start, end);
        __syncthreads();
        float scores[TILE_KEYS / 8][4];
        multiply_keys(scores, tile, loaded.keys);
        if constexpr (KV::SCALED) scale_columns(scores, loaded.key_scales);
#pragma unroll
        for (u32 n = 0; n < TILE_KEYS / 8; n++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 own = rows.first_position + row[i / 2], key = start + n * 8 + lane % 4 * 2 + i % 2;
                bool counts = key <= own && (window == 0 || key + window > own);
                scores[n][i] = counts ? scores[n][i] * scale : NEVER;
            }
        }
        weigh(scores, tile);
        if constexpr (KV::SCALED) scale_columns(scores, loaded.value_scales);
        multiply_values(tile, scores, loaded.values);
    }

#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        float sum = sum_of_lanes(tile.sum[half], 4);
        if (pair[half] >= pairs) continue;
        bf16 *to = out + ((u64)(rows.first_row + row[half]) * heads + head[half]) * HEAD_DIM + lane % 4 * 2;
#pragma unroll
        for (u32 n = 0; n < HEAD_DIM / 8; n++) {
            *(u32 *)(to + n * 8) = to_bf16x2(tile.out[n][half * 2] / sum, tile.out[n][half * 2 + 1] / sum);
        }
    }
}
