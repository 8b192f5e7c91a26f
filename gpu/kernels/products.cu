// Products out = x · wᵀ with quantized and bf16 matrices (weights.cuh) on tensor cores, for few rows of activations.
//
// The order of additions depends on `k` alone, and each column of a tile is one row of x, so a row's result does not depend
// on the other rows. The inputs are cut into chunks of 128. Each of the eight warps of a thread block adds up every eighth
// chunk; then the eight sums are added in the order of the warps. A chunk is four units, and of each unit, each lane of a
// group of four has eight inputs: any inputs may be multiplied at one place of a tile, as long as weights and activations
// agree.
//
// A thread block multiplies BANDS bands of 16 output features with up to TILES tiles of 8 rows. Each warp has a queue of its
// weights in shared memory, so no warp waits for others until the sums are added.

constexpr u32 MULTIPLY_WARPS = 8;
constexpr u32 BAND = 16; // output features of a band
constexpr u32 CHUNK = 4 * UNIT;
constexpr u32 STEP = MULTIPLY_WARPS * CHUNK; // inputs from a warp's chunk to its next

// Sizes of a product.
struct Sizes {
    u32 m, n, k;
    u32 wide;
};

// A warp's queue of weights: the chunks of the block's features and the words of their groups, for STAGES steps. A chunk of
// a row lies in pieces of 16 bytes. The units of a row are exchanged so that lanes of different rows read different banks:
// unit `u` is at place `u ^ exchange`.
template <u32 NUMBER, u32 BANDS, u32 STAGES> struct Queue {
    static constexpr u32 UNIT_BYTES = 4 * BITS_OF<NUMBER>, ROW_BYTES = 4 * UNIT_BYTES;
    static constexpr u32 ROWS = BANDS * BAND;
    static constexpr u32 ROW_PIECES = ROW_BYTES / 16, UNIT_PIECES = UNIT_BYTES / 16;
    static constexpr u32 COPY_ROWS = WARP / ROW_PIECES; // rows that a warp copies at once
    static constexpr u32 COPIES = ROWS / COPY_ROWS;
    static constexpr u32 STEP_BYTES = ROWS * (ROW_BYTES + (NUMBER == BF16 ? 0 : 16));

    unsigned char *warp;
    const unsigned char *piece; // next piece that the lane copies
    const u32 *group;           // word of a unit of the next chunk that the lane copies
    u32 copy_bytes;             // from a row to the next that the lane copies
    u32 to;                     // place of the lane's first piece in a step
    int left, unit_left;        // inputs of the row from the piece on, and from the unit on
    u32 rows, word_rows;        // rows of the matrix from the lane's first on, for pieces and for words
    u32 n, group_rest, group_step, rest_step, group_units;
    u32 step; // place of the step that is fetched or taken next, bytes

    static MEMBER u32 exchange(u32 row) {
        return NUMBER == INT4 ? row / 2 % 4 : NUMBER == BF16 ? row % 2 : row % 4;
    }

    MEMBER Queue(const Quantized &w, unsigned char *shared, u32 first_row, u32 k) {
        u32 lane = lane_of_thread(), first_input = warp_of_thread() * CHUNK;
        u32 row = lane / ROW_PIECES, of_row = lane % ROW_PIECES, unit = of_row / UNIT_PIECES;
        u64 row_bytes = NUMBER == BF16 ? (u64)k * 2 : (u64)w.units * UNIT_BYTES;
        warp = shared + warp_of_thread() * STAGES * STEP_BYTES;
        piece = w.numbers + (first_row + row) * row_bytes + first_input / UNIT * UNIT_BYTES + of_row * 16;
        copy_bytes = (u32)(COPY_ROWS * row_bytes);
        to = row * ROW_BYTES + (unit ^ exchange(row)) * UNIT_BYTES + of_row % UNIT_PIECES * 16;
        left = (int)k - (int)(first_input + of_row * (CHUNK / ROW_PIECES));
        rows = w.n > first_row + row ? w.n - first_row - row : 0;
        step = 0;
        if constexpr (NUMBER != BF16) {
            u32 first_unit = first_input / UNIT + lane % 4;
            n = w.n;
            unit_left = (int)k - (int)(first_unit * UNIT);
            word_rows = w.n > first_row + lane / 4 ? w.n - first_row - lane / 4 : 0;
            group = w.groups + (u64)(first_unit / w.group_units) * n + first_row + lane / 4;
            group_rest = first_unit % w.group_units;
            group_step = STEP / UNIT / w.group_units;
            rest_step = STEP / UNIT % w.group_units;
            group_units = w.group_units;
        }
    }

    // Starts the copies of the next chunk of each row to the place of the step, with zeros beyond the matrix, and goes on to
    // the next place.
    MEMBER void fetch() {
#pragma unroll
        for (u32 copy = 0; copy < COPIES; copy++) {
            bool real = left > 0 && copy * COPY_ROWS < rows;
            copy_async<16>(warp + step + to + copy * COPY_ROWS * ROW_BYTES, piece + (u64)copy * copy_bytes, real);
        }
        piece += STEP / UNIT * UNIT_BYTES;
        left -= STEP;
        if constexpr (NUMBER != BF16) {
#pragma unroll
            for (u32 row = 0; row < ROWS; row += 8) {
                unsigned char *words = warp + step + ROWS * ROW_BYTES + row * 16;
                copy_async<4>(words + lane_of_thread() * 4, group + row, unit_left > 0 && row < word_rows);
            }
            unit_left -= STEP;
            group += (u64)group_step * n;
            group_rest += rest_step;
            if (group_rest >= group_units) {
                group_rest -= group_units;
                group += n;
            }
        }
        copies_sent();
        step = step == (STAGES - 1) * STEP_BYTES ? 0 : step + STEP_BYTES;
    }

    // Returns the word of a unit of a row in the step.
    MEMBER u32 word(u32 row, u32 unit) const {
        return *(const u32 *)(warp + step + ROWS * ROW_BYTES + row * 16 + unit * 4);
    }

    // Returns the lane's eight numbers of a unit of a row in the step; `at` is `place_of` of the unit.
    MEMBER Numbers<BITS_OF<NUMBER>> numbers(u32 row, u32 at) const {
        return *(const Numbers<BITS_OF<NUMBER>> *)(warp + step + row * ROW_BYTES + at);
    }

    // Returns where the lane finds its numbers of a unit in rows whose number is `lane / 4` modulo 8.
    static MEMBER u32 place_of(u32 unit) {
        return (unit ^ exchange(lane_of_thread() / 4)) * UNIT_BYTES + lane_of_thread() % 4 * BITS_OF<NUMBER>;
    }
};

// Adds the sums of the warps for the 16 features of a band, and stores them. `sums` is [warp][row][feature].
__device__ __forceinline__ void store(
    const float *sums, void *out, u32 first_row, u32 rows, u32 first_feature, const Sizes &sizes
) {
    u32 of_warp = (rows + 7) / 8 * 8 * BAND;
    for (u32 at = threadIdx.x; at < rows * BAND; at += blockDim.x) {
        u32 feature = first_feature + at % BAND;
        if (feature >= sizes.n) continue;
        float total = 0.0f;
        for (u32 warp = 0; warp < MULTIPLY_WARPS; warp++) total += sums[warp * of_warp + at];
        u64 to = (u64)(first_row + at / BAND) * sizes.n + feature;
        if (sizes.wide) {
            ((float *)out)[to] = total;
        } else {
            ((bf16 *)out)[to] = to_bf16(total);
        }
    }
}

// A lane's way through the activations: eight of a row of each tile in each unit.
struct Inputs {
    const bf16 *from; // of the first tile, in the first unit of the chunk
    u32 k;
    int left; // inputs of the row from there on
    u32 rows; // rows from the lane's first on

    // Returns the activations of a tile in a unit of the chunk; units 4 to 7 are those of the warp's next chunk. Beyond x,
    // activations are zero.
    MEMBER Eight at(u32 tile, u32 unit) const {
        Eight none = {};
        int input = unit % 4 * UNIT + unit / 4 * STEP;
        if (left <= input || rows <= tile * 8) return none;
        return *(const Eight *)(from + (u64)(tile * 8) * k + input);
    }
};

// Multiplies the rows and features of the thread block. Thread blocks of the same features follow one another in the grid,
// so that all but the first find the weights in the cache. Activations are loaded `AHEAD` units ahead, so that
// at least four loads are in flight. Tiles beyond the rows are multiplied too, as zeros: with a branch around a tile, the compiled
// code waits, within the branch, until the tile is loaded.
template <u32 NUMBER, u32 BANDS, u32 TILES, u32 STAGES>
__device__ __forceinline__ void multiply(const Quantized &w, const bf16 *x, void *out, const Sizes &sizes) {
    SHARED_MEMORY(shared);
    using Q = Queue<NUMBER, BANDS, STAGES>;
    constexpr u32 AHEAD = TILES < 4 ? 4 / TILES : 1;
    u32 lane = lane_of_thread(), warp = warp_of_thread(), place = lane % 4, k = sizes.k;
    u32 first_feature = blockIdx.y * BANDS * BAND, first_row = blockIdx.x * TILES * 8;
    u32 rows = min(sizes.m - first_row, TILES * 8), tiles = (rows + 7) / 8;
    Q queue(w, shared, first_feature, k);
#pragma unroll
    for (u32 step = 0; step < STAGES; step++) queue.fetch();
    u32 first_input = warp * CHUNK + place * 8;
    Inputs inputs = {x + (u64)(first_row + lane / 4) * k + first_input, k, (int)k - (int)first_input, 0};
    inputs.rows = rows > lane / 4 ? rows - lane / 4 : 0;
    bool fine = NUMBER != BF16 && w.group_units % 4 != 0; // whether groups may end within a chunk
    float sum[TILES][BANDS][4] = {};
    Eight next[AHEAD][TILES];
#pragma unroll
    for (u32 unit = 0; unit < AHEAD; unit++) {
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) next[unit][tile] = inputs.at(tile, unit);
    }
    for (int rest = (int)k - (int)(warp * CHUNK); rest > 0; rest -= STEP) {
        wait_for_copies<STAGES - 1>();
        __syncwarp();
        Group<NUMBER> groups[2 * BANDS];
        // The units are unrolled as far as the index of `next` must be constant.
#pragma unroll 1
        for (u32 first = 0; first < 4; first += AHEAD) {
#pragma unroll
            for (u32 of_ahead = 0; of_ahead < AHEAD; of_ahead++) {
                u32 unit = first + of_ahead;
                Eight weights[2 * BANDS];
#pragma unroll
                for (u32 half = 0; half < 2 * BANDS; half++) {
                    u32 row = half * 8 + lane / 4;
                    auto numbers = queue.numbers(row, Q::place_of(unit));
                    if constexpr (NUMBER == BF16) {
                        for (u32 i = 0; i < 4; i++) weights[half].at[i] = numbers.words[i];
                    } else {
                        if (unit == 0 || fine) groups[half] = group_of_word<NUMBER>(queue.word(row, unit));
                        weights[half] = decoded<NUMBER>(numbers, groups[half]);
                    }
                }
#pragma unroll
                for (u32 tile = 0; tile < TILES; tile++) {
                    const u32 *now = next[of_ahead][tile].at;
#pragma unroll
                    for (u32 i = 0; i < 4; i += 2) {
#pragma unroll
                        for (u32 band = 0; band < BANDS; band++) {
                            const Eight &low = weights[2 * band], &high = weights[2 * band + 1];
                            u32 a[4] = {low.at[i], high.at[i], low.at[i + 1], high.at[i + 1]};
                            multiply_tiles(sum[tile][band], a, now + i);
                        }
                    }
                    next[of_ahead][tile] = inputs.at(tile, unit + AHEAD);
                }
            }
        }
        inputs.from += STEP;
        inputs.left -= STEP;
        // All lanes have taken the step's weights before the next copies to their place.
        __syncwarp();
        queue.fetch();
    }
    wait_for_copies<0>();
    float *sums = (float *)shared;
#pragma unroll
    for (u32 band = 0; band < BANDS; band++) {
        __syncthreads();
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) {
            if (tile >= tiles) break;
            for (u32 s = 0; s < 4; s++) {
                u32 row = tile * 8 + 2 * place + s % 2, feature = lane / 4 + 8 * (s / 2);
                sums[(warp * tiles * 8 + row) * BAND + feature] = sum[tile][band][s];
            }
        }
        __syncthreads();
        store(sums, out, first_row, rows, first_feature + band * BAND, sizes);
    }
}

// ---- kernels ----
// `x` is [m][k] in bf16; `out` is [m][n], in f32 if `wide` is not 0, otherwise in bf16. The first arguments describe the matrix
// [n, k] (weights.cuh). BANDS, TILES and STAGES are those of `multiply`; RESIDENT is the number of thread blocks that must fit on
// a multiprocessor. The host knows the same forms (gpu/src/cuda/multiply.rs).
#define QUANTIZED_KERNEL(name, NUMBER, BANDS, TILES, STAGES, RESIDENT)                                                         \
    extern "C" __global__ void __launch_bounds__(MULTIPLY_WARPS *WARP, RESIDENT) name(                                         \
        const unsigned char *numbers, const u32 *groups, u32 units, u32 group_units, u32 n, const bf16 *x, void *out, u32 m,   \
        u32 k, u32 wide                                                                                                        \
    ) {                                                                                                                        \
        multiply<NUMBER, BANDS, TILES, STAGES>({numbers, groups, units, group_units, n}, x, out, {m, n, k, wide});             \
    }
#define BF16_KERNEL(name, BANDS, TILES, STAGES, RESIDENT)                                                                      \
    extern "C" __global__ void __launch_bounds__(MULTIPLY_WARPS *WARP, RESIDENT) name(                                         \
        const unsigned char *weights, u32 n, const bf16 *x, void *out, u32 m, u32 k, u32 wide                                  \
    ) {                                                                                                                        \
        multiply<BF16, BANDS, TILES, STAGES>({weights, nullptr, 0, 1, n}, x, out, {m, n, k, wide});                            \
    }

QUANTIZED_KERNEL(multiply_int4_8, INT4, 2, 1, 2, 2)
QUANTIZED_KERNEL(multiply_int4_16, INT4, 2, 2, 2, 2)
QUANTIZED_KERNEL(multiply_int4_32, INT4, 2, 4, 2, 2)
QUANTIZED_KERNEL(multiply_int4_64, INT4, 2, 8, 2, 1)
QUANTIZED_KERNEL(multiply_int8_8, INT8, 2, 1, 2, 2)
QUANTIZED_KERNEL(multiply_int8_16, INT8, 2, 2, 2, 2)
QUANTIZED_KERNEL(multiply_int8_32, INT8, 2, 4, 2, 2)
QUANTIZED_KERNEL(multiply_int8_64, INT8, 2, 8, 2, 1)
QUANTIZED_KERNEL(multiply_fp8_8, FP8, 2, 1, 2, 2)
QUANTIZED_KERNEL(multiply_fp8_16, FP8, 2, 2, 2, 2)
QUANTIZED_KERNEL(multiply_fp8_32, FP8, 2, 4, 2, 2)
QUANTIZED_KERNEL(multiply_fp8_64, FP8, 2, 8, 2, 1)
BF16_KERNEL(multiply_bf16_8, 1, 1, 2, 2)
BF16_KERNEL(multiply_bf16_16, 1, 2, 2, 2)
BF16_KERNEL(multiply_bf16_32, 1, 4, 2, 2)
BF16_KERNEL(multiply_bf16_64, 1, 8, 2, 1)
