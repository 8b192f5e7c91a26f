// Kernels that decode and look up quantized weight matrices [n, k], and that multiply by quantized and bf16 matrices. A row of
// a quantized matrix has `units` units of 16 stored numbers
// (the last unit is padded), and a 32-bit word for each group of `group_units` units. A weight is `scale * (number - zero
// point)` in f32, rounded to bf16, so every kernel takes the same bf16 weights. The word of a group of integers has the
// scale in its upper 24 bits (as the upper bits of an f32) and the zero point in its lower 8 bits; the word of a group of
// 8-bit floats is the scale.

constexpr u32 UNIT = 16;
constexpr u32 INT4 = 0, INT8 = 1, FP8 = 2; // types of numbers
constexpr u32 BF16 = 3;                    // for products: a matrix of bf16, without groups
constexpr u32 ROWS_A_BLOCK = 32;           // rows of activations that a thread block of `multiply_...` multiplies
constexpr u32 MULTIPLY_WARPS = 8;          // warps of such a thread block

// A unit: 16 numbers of `BITS` bits, the first in the lowest bits.
template <u32 BITS> struct alignas(2 * BITS) Unit {
    u32 words[BITS / 2];
};

// Eight pairs of bf16: the weights or activations of a unit.
struct Pairs {
    u32 at[8];
};

// Vector of four pairs of bf16, 16 bytes.
struct alignas(16) U32x4 {
    u32 at[4];
};

// The stored numbers and the groups of a matrix.
struct Quantized {
    const unsigned char *numbers;
    const u32 *groups;
    u32 units, group_units;
    u32 row_groups; // groups of a row
};

__device__ __forceinline__ Quantized quantized(const unsigned char *numbers, const u32 *groups, u32 units, u32 group_units) {
    return {numbers, groups, units, group_units, (units + group_units - 1) / group_units};
}

template <u32 NUMBER> constexpr u32 BITS_OF = NUMBER == INT4 ? 4 : 8;

// Returns the value of an 8-bit float (E4M3 without infinities). Its bits of exponent and fraction, put at their places in
// an f32, are the value times 2^-120, also if the value is subnormal.
__device__ __forceinline__ float e4m3(u32 bits) {
    float size = __uint_as_float((bits & 0x7f) << 20) * 0x1p120f;
    u32 nan = (bits & 0x7f) == 0x7f ? 0x7fc00000u : 0;
    return __uint_as_float(__float_as_uint(size) | (bits & 0x80) << 24 | nan);
}

// Decodes a unit.
template <u32 NUMBER> __device__ __forceinline__ Pairs decoded(const Unit<BITS_OF<NUMBER>> &unit, u32 group) {
    constexpr u32 BITS = BITS_OF<NUMBER>, A_WORD = 32 / BITS;
    float scale = __uint_as_float(NUMBER == FP8 ? group : group & 0xffffff00u);
    // An integer below 2^23 in the fraction of 2^23 is the f32 2^23 + integer, so the difference of two is exact.
    float zero = __uint_as_float(0x4b000000u | (group & 0xffu));
    Pairs pairs;
    for (u32 pair = 0; pair < 8; pair++) {
        float weights[2];
        for (u32 i = 0; i < 2; i++) {
            u32 at = 2 * pair + i;
            u32 number = unit.words[at / A_WORD] >> at % A_WORD * BITS & ((1u << BITS) - 1);
            float value = NUMBER == FP8 ? e4m3(number) : __uint_as_float(0x4b000000u | number) - zero;
            weights[i] = scale * value;
        }
        pairs.at[pair] = to_bf16x2(weights[0], weights[1]);
    }
    return pairs;
}

template <u32 NUMBER>
__device__ __forceinline__ Unit<BITS_OF<NUMBER>> unit_of(const Quantized &w, u64 row, u32 unit) {
    return ((const Unit<BITS_OF<NUMBER>> *)w.numbers)[row * w.units + unit];
}

__device__ __forceinline__ u32 group_of(const Quantized &w, u64 row, u32 unit) {
    return w.groups[row * w.row_groups + unit / w.group_units];
}

// Decodes a unit of a row; `number` is the type of the stored numbers.
__device__ __forceinline__ Pairs decoded_unit(const Quantized &w, u32 number, u64 row, u32 unit) {
    u32 group = group_of(w, row, unit);
    if (number == INT4) return decoded<INT4>(unit_of<INT4>(w, row, unit), group);
    if (number == INT8) return decoded<INT8>(unit_of<INT8>(w, row, unit), group);
    return decoded<FP8>(unit_of<FP8>(w, row, unit), group);
}

// Writes row `first + row` of the matrix, converted to bf16, to row `row` of `out`.
extern "C" __global__ void decode_rows(
    const unsigned char *numbers, const u32 *groups, u32 units, u32 group_units, u32 number, u32 first, u32 k, bf16 *out
) {
    Quantized w = quantized(numbers, groups, units, group_units);
    U32x4 *to = (U32x4 *)(out + (u64)blockIdx.x * k);
    for (u32 unit = threadIdx.x; unit < units; unit += blockDim.x) {
        Pairs pairs = decoded_unit(w, number, (u64)first + blockIdx.x, unit);
        for (u32 half = 0; half < 2; half++) {
            const u32 *four = pairs.at + half * 4;
            if (unit * UNIT + half * 8 < k) to[2 * unit + half] = {four[0], four[1], four[2], four[3]};
        }
    }
}

// residual[row] = weights of the row of the row's token, which is in `tokens` or in `drawn` (see `embed` in rows.cu).
extern "C" __global__ void embed_quantized(
    float *residual, const unsigned char *numbers, const u32 *groups, u32 units, u32 group_units, u32 number,
    const u32 *tokens, const u32 *drawn, u32 vocab, u32 cols
) {
    Quantized w = quantized(numbers, groups, units, group_units);
    u32 token = tokens[blockIdx.x];
    if (token & 0x80000000u) token = drawn[token & 0x7fffffffu];
    if (token >= vocab) token = 0;
    float *to = residual + (u64)blockIdx.x * cols;
    for (u32 unit = threadIdx.x; unit < units; unit += blockDim.x) {
        Pairs pairs = decoded_unit(w, number, token, unit);
        for (u32 i = 0; i < UNIT && unit * UNIT + i < cols; i++) {
            to[unit * UNIT + i] = to_f32((bf16)(pairs.at[i / 2] >> i % 2 * 16));
        }
    }
}

// Loads a unit of a row of `k` activations or bf16 weights; numbers beyond the row are zero.
__device__ __forceinline__ Pairs inputs_of(const bf16 *row, u32 unit, u32 k) {
    Pairs pairs = {};
    for (u32 half = 0; half < 2; half++) {
        u32 at = unit * UNIT + half * 8;
        if (at >= k) continue;
        U32x4 four = *(const U32x4 *)(row + at);
        for (u32 i = 0; i < 4; i++) pairs.at[half * 4 + i] = four.at[i];
    }
    return pairs;
}

// What a lane loads of the weights in one step: a unit of two rows, and their groups.
template <u32 NUMBER> struct Loaded {
    Unit<BITS_OF<NUMBER>> low, high;
    u32 low_group, high_group;
};

template <> struct Loaded<BF16> {
    Pairs low, high;
    u32 low_group, high_group;
};

// Loads what a lane multiplies of a row of `k` weights; beyond the last unit its activations are zero.
template <u32 NUMBER>
__device__ __forceinline__ Loaded<NUMBER> load(const Quantized &w, u64 low_row, u64 high_row, u32 unit, u32 k) {
    if constexpr (NUMBER == BF16) {
        const bf16 *weights = (const bf16 *)w.numbers;
        return {inputs_of(weights + low_row * k, unit, k), inputs_of(weights + high_row * k, unit, k), 0, 0};
    } else {
        unit = min(unit, w.units - 1);
        return {
            unit_of<NUMBER>(w, low_row, unit), unit_of<NUMBER>(w, high_row, unit), group_of(w, low_row, unit),
            group_of(w, high_row, unit)
        };
    }
}

// Returns the bf16 weights of a loaded unit.
template <u32 NUMBER, typename T> __device__ __forceinline__ Pairs weights_of(const T &unit, u32 group) {
    if constexpr (NUMBER == BF16) {
        return unit;
    } else {
        return decoded<NUMBER>(unit, group);
    }
}

// out = x · wᵀ for at most ROWS_A_BLOCK rows of x and 16 output features a thread block, on tensor cores. The warps of the
// block share the units of a row: in one step, a warp takes four neighbouring units, one for each lane of a group of four.
// Any inputs may be multiplied at one place of a tile, as long as weights and activations agree, so a lane holds whole units.
// The order of additions depends on `k` alone, and each column of a tile is one row of x: a row's result does not depend on
// the other rows. Thread blocks of the same features follow one another in the grid, so that all but the first find the
// weights in the cache.
template <u32 NUMBER>
__device__ __forceinline__ void multiply(
    const Quantized &w, const bf16 *x, void *out, u32 m, u32 n, u32 k, u32 wide
) {
    SHARED_MEMORY(shared);
    constexpr u32 TILES = ROWS_A_BLOCK / 8;
    u32 lane = lane_of_thread(), warp = warp_of_thread(), place = lane % 4;
    u32 first_feature = blockIdx.y * 16, first_row = blockIdx.x * ROWS_A_BLOCK;
    u32 rows = min(m - first_row, ROWS_A_BLOCK), tiles = (rows + 7) / 8;
    // Lanes beyond the last feature or row repeat the last; their results are not stored.
    u64 low_row = min(first_feature + lane / 4, n - 1), high_row = min(first_feature + lane / 4 + 8, n - 1);
    float sum[TILES][4] = {};
    Loaded<NUMBER> next = load<NUMBER>(w, low_row, high_row, warp * 4 + place, k);
    for (u32 start = warp * 4; start < w.units; start += MULTIPLY_WARPS * 4) {
        u32 unit = start + place;
        Loaded<NUMBER> now = next;
        next = load<NUMBER>(w, low_row, high_row, unit + MULTIPLY_WARPS * 4, k);
        Pairs low = weights_of<NUMBER>(now.low, now.low_group), high = weights_of<NUMBER>(now.high, now.high_group);
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) {
            if (tile >= tiles) break;
            u64 row = first_row + min(tile * 8 + lane / 4, rows - 1);
            Pairs values = inputs_of(x + row * k, unit, k);
#pragma unroll
            for (u32 i = 0; i < 8; i += 2) {
                u32 a[4] = {low.at[i], high.at[i], low.at[i + 1], high.at[i + 1]};
                multiply_tiles(sum[tile], a, values.at + i);
            }
        }
    }
    float *sums = (float *)shared; // [warp][row of a tile][feature]
#pragma unroll
    for (u32 tile = 0; tile < TILES; tile++) {
        if (tile >= tiles) break;
        for (u32 s = 0; s < 4; s++) {
            u32 row = tile * 8 + 2 * place + s % 2, feature = lane / 4 + 8 * (s / 2);
            sums[(warp * tiles * 8 + row) * 16 + feature] = sum[tile][s];
        }
    }
    __syncthreads();
    for (u32 at = threadIdx.x; at < rows * 16; at += blockDim.x) {
        u32 feature = first_feature + at % 16;
        if (feature >= n) continue;
        float total = 0.0f;
        for (u32 i = 0; i < MULTIPLY_WARPS; i++) total += sums[i * tiles * 8 * 16 + at];
        u64 to = (u64)(first_row + at / 16) * n + feature;
        if (wide) {
            ((float *)out)[to] = total;
        } else {
            ((bf16 *)out)[to] = to_bf16(total);
        }
    }
}

extern "C" __global__ void __launch_bounds__(MULTIPLY_WARPS * WARP) multiply_int4(
    const unsigned char *numbers, const u32 *groups, u32 units, u32 group_units, const bf16 *x, void *out, u32 m, u32 n,
    u32 k, u32 wide
) {
    multiply<INT4>(quantized(numbers, groups, units, group_units), x, out, m, n, k, wide);
}

extern "C" __global__ void __launch_bounds__(MULTIPLY_WARPS * WARP) multiply_int8(
    const unsigned char *numbers, const u32 *groups, u32 units, u32 group_units, const bf16 *x, void *out, u32 m, u32 n,
    u32 k, u32 wide
) {
    multiply<INT8>(quantized(numbers, groups, units, group_units), x, out, m, n, k, wide);
}

extern "C" __global__ void __launch_bounds__(MULTIPLY_WARPS * WARP) multiply_fp8(
    const unsigned char *numbers, const u32 *groups, u32 units, u32 group_units, const bf16 *x, void *out, u32 m, u32 n,
    u32 k, u32 wide
) {
    multiply<FP8>(quantized(numbers, groups, units, group_units), x, out, m, n, k, wide);
}

extern "C" __global__ void __launch_bounds__(MULTIPLY_WARPS * WARP) multiply_bf16(
    const unsigned char *weights, const bf16 *x, void *out, u32 m, u32 n, u32 k, u32 wide
) {
    multiply<BF16>({weights, nullptr, (k + UNIT - 1) / UNIT, 1, 0}, x, out, m, n, k, wide);
}
