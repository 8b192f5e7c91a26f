// Weight matrices [n, k]: quantized ones, and how their weights are decoded.
//
// A row of a quantized matrix has `units` units of 32 stored numbers (the last unit is padded), and a 32-bit word for each
// group of `group_units` units. The words of all rows for one group follow one another. A weight is
// `scale * (number - zero point)` in f32, rounded to bf16, so every kernel takes the same bf16 weights. The word of a group
// of integers has the scale in its upper 24 bits (as the upper bits of an f32) and the zero point in its lower 8 bits; the
// word of a group of 8-bit floats is the scale. With 4-bit integers, the scale has at most 11 significant bits and the zero
// point at most 5.

constexpr u32 UNIT = 32;
constexpr u32 INT4 = 0, INT8 = 1, FP8 = 2; // types of numbers
constexpr u32 BF16 = 3;                    // type of the weights of a matrix that is not quantized

template <u32 NUMBER> constexpr u32 BITS_OF = NUMBER == INT4 ? 4 : NUMBER == BF16 ? 16 : 8;

// Eight numbers of `BITS` bits, the first in the lowest bits. A word of 4-bit numbers has the numbers 0, 2, 4, 6, 1, 3, 5, 7,
// so that the numbers of a pair are 16 bits apart.
template <u32 BITS> struct alignas(BITS) Numbers {
    u32 words[BITS / 4];
};

// Four pairs of bf16, 16 bytes: eight weights or activations.
struct alignas(16) Eight {
    u32 at[4];
};

// The stored numbers and the groups of a matrix.
struct Quantized {
    const unsigned char *numbers;
    const u32 *groups;
    u32 units, group_units;
    u32 n;
};

// Scale and zero point of a group, as the decoding needs them.
template <u32 NUMBER> struct Group {
    float scale, zero;
};

template <> struct Group<INT4> {
    u32 upper, lower, zero; // pairs of equal bf16
};

// Returns scale and zero point of the word of a group. Of 4-bit integers, `zero` is -(128 + zero point), which has the bits
// 0xc300 + zero point in bf16; of 8-bit integers, `zero` is 2^23 + zero point, with the bits 0x4b000000 + zero point in f32.
template <u32 NUMBER> __device__ __forceinline__ Group<NUMBER> group_of_word(u32 word) {
    if constexpr (NUMBER == INT4) {
        float lower = __uint_as_float(word & 0xffffff00u) - __uint_as_float(word & 0xffff0000u);
        // The lower part has the sign of the scale also if it is zero, so that zeros have the host's sign.
        lower = __uint_as_float(and_or(word, 0x80000000u, __float_as_uint(lower)));
        return {__byte_perm(word, 0, 0x3232), to_bf16x2(lower, lower), __byte_perm(word, 0xc3, 0x4040)};
    } else if constexpr (NUMBER == INT8) {
        return {__uint_as_float(word & 0xffffff00u), __uint_as_float(0x4b000000u | (word & 0xffu))};
    } else {
        return {__uint_as_float(word), 0.0f};
    }
}

// Returns the value of an 8-bit float in the lower bits (E4M3 without infinities). Its bits of exponent and fraction, put at
// their places in an f32, are the value times 2^-120, also if the value is subnormal.
__device__ __forceinline__ float e4m3(u32 bits) {
    float size = __uint_as_float((bits & 0x7f) << 20) * 0x1p120f;
    u32 nan = (bits & 0x7f) == 0x7f ? 0x7fc00000u : 0;
    return __uint_as_float(__float_as_uint(size) | (bits & 0x80) << 24 | nan);
}

// Returns the values of the 8-bit floats in the lower two bytes of `pair`.
__device__ __forceinline__ void e4m3_pair(u32 pair, float values[2]) {
#if __CUDA_ARCH__ >= 890
    asm("{ .reg .b16 both, low, high; .reg .b32 halves; cvt.u16.u32 both, %2; cvt.rn.f16x2.e4m3x2 halves, both;"
        " mov.b32 {low, high}, halves; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(values[0]), "=f"(values[1])
        : "r"(pair));
#else
    values[0] = e4m3(pair);
    values[1] = e4m3(pair >> 8);
#endif
}

// Decodes eight numbers.
//
// As a fraction of a bf16, a 4-bit integer makes 128 + integer, so the difference to 128 + zero point is exact. The scale is
// split in two bf16, of the upper 8 and of at most 3 lower bits. The product of the lower bits and of a difference of at most
// 5 bits is exact, so a weight is rounded once, as is the exact f32 product of a host.
// In the fraction of 2^23, an 8-bit integer makes 2^23 + integer, so the difference to 2^23 + zero point is exact.
template <u32 NUMBER>
__device__ __forceinline__ Eight decoded(const Numbers<BITS_OF<NUMBER>> &numbers, const Group<NUMBER> &group) {
    Eight weights;
#pragma unroll
    for (u32 pair = 0; pair < 4; pair++) {
        if constexpr (NUMBER == INT4) {
            u32 both = and_or(numbers.words[0] >> pair * 4, 0x000f000fu, 0x43004300u);
            u32 differences = multiply_add_bf16x2(both, 0x3f803f80u, group.zero);
            u32 lower = multiply_add_bf16x2(group.lower, differences, 0x80008000u);
            weights.at[pair] = multiply_add_bf16x2(group.upper, differences, lower);
        } else {
            u32 word = numbers.words[pair / 2];
            float values[2];
            if constexpr (NUMBER == INT8) {
                for (u32 i = 0; i < 2; i++) {
                    u32 integer = __byte_perm(word, 0x4b000000u, 0x7540u | (pair % 2 * 2 + i));
                    values[i] = __uint_as_float(integer) - group.zero;
                }
            } else {
                e4m3_pair(word >> pair % 2 * 16, values);
            }
            weights.at[pair] = to_bf16x2(group.scale * values[0], group.scale * values[1]);
        }
    }
    return weights;
}
