// Kernels that decode and look up quantized weight matrices (see weights.cuh).

template <u32 NUMBER> __device__ __forceinline__ Eight decoded_at(const Quantized &w, u64 row, u32 eight) {
    auto numbers = (const Numbers<BITS_OF<NUMBER>> *)w.numbers + row * w.units * 4;
    u32 word = w.groups[(u64)(eight / 4 / w.group_units) * w.n + row];
    return decoded<NUMBER>(numbers[eight], group_of_word<NUMBER>(word));
}

// Decodes the numbers from 8 · `eight` on of a row; `number` is their type.
__device__ __forceinline__ Eight weights_at(const Quantized &w, u32 number, u64 row, u32 eight) {
    if (number == INT4) return decoded_at<INT4>(w, row, eight);
    if (number == INT8) return decoded_at<INT8>(w, row, eight);
    return decoded_at<FP8>(w, row, eight);
}

// Writes row `first + row` of the matrix, converted to bf16, to row `row` of `out`.
extern "C" __global__ void decode_rows(
    const unsigned char *numbers, const u32 *groups, u32 units, u32 group_units, u32 n, u32 number, u32 first, u32 k, bf16 *out
) {
    Quantized w = {numbers, groups, units, group_units, n};
    Eight *to = (Eight *)(out + (u64)blockIdx.x * k);
    for (u32 eight = threadIdx.x; eight < k / 8; eight += blockDim.x) {
        to[eight] = weights_at(w, number, (u64)first + blockIdx.x, eight);
    }
}

// residual[row] = weights of the row of the row's token, which is in `tokens` or in `drawn` (see `embed` in rows.cu).
extern "C" __global__ void embed_quantized(
    float *residual, const unsigned char *numbers, const u32 *groups, u32 units, u32 group_units, u32 n, u32 number,
    const u32 *tokens, const u32 *drawn, u32 cols
) {
    Quantized w = {numbers, groups, units, group_units, n};
    u32 token = tokens[blockIdx.x];
    if (token & 0x80000000u) token = drawn[token & 0x7fffffffu];
    if (token >= n) token = 0;
    float *to = residual + (u64)blockIdx.x * cols;
    for (u32 eight = threadIdx.x; eight < cols / 8; eight += blockDim.x) {
        Eight weights = weights_at(w, number, token, eight);
        for (u32 i = 0; i < 8; i++) to[eight * 8 + i] = to_f32((bf16)(weights.at[i / 2] >> i % 2 * 16));
    }
}
