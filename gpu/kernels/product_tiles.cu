// Product out = x · wᵀ with a bf16 matrix for many rows of activations, with the same additions in the same order as the
// kernels of products.cu, so that a row's result does not depend on the number of rows. There, eight warps each add up every
// eighth chunk of 128 inputs. Here, each warp goes through the chunks of the first of these eight sums, adds the sum to its
// total, goes through the chunks of the second sum, and so on.
//
// A thread block multiplies SIDE features with SIDE rows, and each of its eight warps a part of 64 features and 32 rows. Half
// chunks of weights and activations come through shared memory.

constexpr u32 SIDE = 128;
constexpr u32 SIDE_THREADS = 256;
constexpr u32 SIDE_BANDS = 4, SIDE_TILES = 4;            // bands of 16 features and tiles of 8 rows of a warp
constexpr u32 PART = CHUNK / 2;                          // inputs of half a chunk
constexpr u32 PART_BYTES = PART * 2, PART_PIECES = PART / 8; // of a row, in pieces of 16 bytes
constexpr u32 SIDE_BYTES = SIDE * PART_BYTES;
constexpr u32 DEPTH = 3; // half chunks in shared memory

// Half a chunk on the way through the inputs: number of the sum that the chunk belongs to, number of the chunk, and 0 for its
// first half or 1 for its second.
struct Half {
    u32 sum, chunk, half;

    MEMBER void next(u32 chunks) {
        half ^= 1;
        if (half) return;
        chunk += MULTIPLY_WARPS;
        if (chunk >= chunks) chunk = ++sum;
    }

    MEMBER u32 input() const { return (2 * chunk + half) * PART; }
};

// Starts the copies of half a chunk of SIDE rows of a bf16 matrix [rows, k] from row `first` on, with zeros beyond the
// matrix. The halves of a row are exchanged in every second row, so that lanes of different rows read different banks.
__device__ __forceinline__ void fetch_side(unsigned char *to, const bf16 *from, u32 first, u32 rows, u32 k, u32 input) {
    u32 piece = threadIdx.x % PART_PIECES, lane_row = threadIdx.x / PART_PIECES;
#pragma unroll
    for (u32 at = 0; at < SIDE; at += SIDE_THREADS / PART_PIECES) {
        u32 row = at + lane_row, place = piece ^ row % 2 * (PART_PIECES / 2);
        bool real = first + row < rows && input + piece * 8 < k;
        copy_async<16>(to + row * PART_BYTES + place * 16, from + (u64)(first + row) * k + input + piece * 8, real);
    }
}

// Returns a lane's eight weights or activations of a unit of the half chunk, of row `row + lane / 4`.
__device__ __forceinline__ Eight eight_of(const unsigned char *side, u32 row, u32 unit) {
    u32 lane = lane_of_thread(), of_row = row + lane / 4;
    u32 place = (unit * 4 + lane % 4) ^ of_row % 2 * (PART_PIECES / 2);
    return *(const Eight *)(side + of_row * PART_BYTES + place * 16);
}

// Multiplies `x`, [m][k] in bf16, by `weights`, [n][k] in bf16. A row of `out` has `n` columns, in f32 if `wide` is not 0,
// otherwise in bf16; rows are `stride` columns apart.
extern "C" __global__ void __launch_bounds__(SIDE_THREADS, 1) multiply_bf16_tiles(
    const bf16 *weights, u32 n, const bf16 *x, void *out, u32 m, u32 k, u32 wide, u32 stride
) {
    SHARED_MEMORY(shared);
    u32 lane = lane_of_thread(), warp = warp_of_thread();
    u32 first_row = blockIdx.x * SIDE, first_feature = blockIdx.y * SIDE;
    u32 features = warp % 2 * 64, rows = warp / 2 * 32; // of the warp, in the block
    u32 chunks = (k + CHUNK - 1) / CHUNK, steps = 2 * chunks;
    Half ahead = {0, 0, 0}, now = {0, 0, 0};
    auto fetch = [&](u32 step) {
        if (step < steps) {
            unsigned char *to = shared + step % DEPTH * (2 * SIDE_BYTES);
            fetch_side(to, weights, first_feature, n, k, ahead.input());
            fetch_side(to + SIDE_BYTES, x, first_row, m, k, ahead.input());
            ahead.next(chunks);
        }
        copies_sent();
    };
    for (u32 step = 0; step < DEPTH - 1; step++) fetch(step);
    float total[SIDE_BANDS][SIDE_TILES][4] = {}, sum[SIDE_BANDS][SIDE_TILES][4] = {};
    for (u32 step = 0; step < steps; step++) {
        wait_for_copies<DEPTH - 2>();
        __syncthreads();
        fetch(step + DEPTH - 1);
        const unsigned char *of_weights = shared + step % DEPTH * (2 * SIDE_BYTES), *of_x = of_weights + SIDE_BYTES;
#pragma unroll
        for (u32 unit = 0; unit < 2; unit++) {
            Eight activations[SIDE_TILES];
#pragma unroll
            for (u32 tile = 0; tile < SIDE_TILES; tile++) activations[tile] = eight_of(of_x, rows + tile * 8, unit);
#pragma unroll
            for (u32 band = 0; band < SIDE_BANDS; band++) {
                Eight low = eight_of(of_weights, features + band * 16, unit);
                Eight high = eight_of(of_weights, features + band * 16 + 8, unit);
#pragma unroll
                for (u32 i = 0; i < 4; i += 2) {
                    u32 a[4] = {low.at[i], high.at[i], low.at[i + 1], high.at[i + 1]};
#pragma unroll
                    for (u32 tile = 0; tile < SIDE_TILES; tile++) multiply_tiles(sum[band][tile], a, activations[tile].at + i);
                }
            }
        }
        u32 of_sum = now.sum;
        now.next(chunks);
        if (now.sum == of_sum) continue;
#pragma unroll
        for (u32 at = 0; at < SIDE_BANDS * SIDE_TILES * 4; at++) {
            (&total[0][0][0])[at] += (&sum[0][0][0])[at];
            (&sum[0][0][0])[at] = 0.0f;
        }
    }
#pragma unroll
    for (u32 band = 0; band < SIDE_BANDS; band++) {
#pragma unroll
        for (u32 tile = 0; tile < SIDE_TILES; tile++) {
            for (u32 s = 0; s < 4; s++) {
                u32 row = first_row + rows + tile * 8 + lane % 4 * 2 + s % 2;
                u32 feature = first_feature + features + band * 16 + lane / 4 + s / 2 * 8;
                if (row >= m || feature >= n) continue;
                u64 to = (u64)row * stride + feature;
                if (wide) {
                    ((float *)out)[to] = total[band][tile][s];
                } else {
                    ((bf16 *)out)[to] = to_bf16(total[band][tile][s]);
                }
            }
        }
    }
}
