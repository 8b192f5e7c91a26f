// The types and functions of CUDA C++ that the kernels use, for a host compiler. emulator.cpp describes how threads
// run.
#pragma once
#define TIERCEL_EMULATED

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define __device__ static
#define __global__
#define __forceinline__ inline
#define MEMBER inline
#define __launch_bounds__(...)
#define SHARED_MEMORY(name) unsigned char *name = emulated::shared_memory()

namespace emulated {

struct Index {
    unsigned x, y, z;
};

// Thread index, block index, block size and grid size of the emulated thread that runs now.
extern thread_local Index thread_index, block_index, block_size, grid_size;

unsigned char *shared_memory();
// Waits for all threads of the thread block.
void wait_for_block();
// Waits for all lanes of the warp, each of which passes `bytes` bytes at `value`. In the returned memory, the bytes of
// lane `i` are at offset `i * 64`, valid until the caller's next call.
const unsigned char *exchange(const void *value, unsigned bytes);
// Starts a copy to shared memory, of zeros if `from` is null. In every second launch, the copy is made at once; in the
// others, only when it is waited for.
void start_copy(void *to, const void *from, unsigned bytes);
// Ends a group of copies.
void end_copies();
// Makes all copies but those of the last `left` groups.
void wait_for_copies(unsigned left);

}

#define threadIdx emulated::thread_index
#define blockIdx emulated::block_index
#define blockDim emulated::block_size
#define gridDim emulated::grid_size

static inline void __syncthreads() { emulated::wait_for_block(); }
static inline void __syncwarp() { emulated::exchange("", 1); }

static inline float __shfl_xor_sync(unsigned, float value, unsigned mask) {
    float other;
    unsigned lane = threadIdx.x % 32;
    memcpy(&other, emulated::exchange(&value, sizeof value) + (lane ^ mask) * 64, sizeof other);
    return other;
}

static inline float __shfl_sync(unsigned, float value, unsigned lane) {
    float other;
    memcpy(&other, emulated::exchange(&value, sizeof value) + lane % 32 * 64, sizeof other);
    return other;
}

static inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Plain operations are atomic here, because one emulated thread runs at a time.
template <typename T> static inline T atomicAdd(T *sum, T value) {
    T before = *sum;
    *sum += value;
    return before;
}
static inline void __threadfence() {}
static inline void atomicMin(unsigned *least, unsigned value) { *least = value < *least ? value : *least; }

static inline float rsqrtf(float value) { return 1.0f / sqrtf(value); }

static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
static inline unsigned long long max(unsigned long long a, unsigned long long b) { return a > b ? a : b; }

static inline unsigned short to_bf16(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return 0x7fff;
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline unsigned to_bf16x2(float low, float high) { return to_bf16(low) | (unsigned)to_bf16(high) << 16; }

// Emulates ex2.approx.ftz: results below the smallest normal number are 0.
static inline float power_of_two(float value) {
    float result = exp2f(value);
    return result < 0x1p-126f ? 0.0f : result;
}

// Returns four bytes of `low` (bytes 0 to 3) and `high` (4 to 7), each chosen by four bits of `which`.
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned which) {
    unsigned long long both = low | (unsigned long long)high << 32;
    unsigned bytes = 0;
    for (unsigned i = 0; i < 4; i++) bytes |= (unsigned)(both >> (which >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return bytes;
}

static inline unsigned and_or(unsigned a, unsigned b, unsigned c) { return (a & b) | c; }

// The sum is rounded to f32 first, so it must have at most 24 significant bits.
static inline unsigned multiply_add_bf16x2(unsigned a, unsigned b, unsigned c) {
    auto low = [](unsigned pair) { return __uint_as_float(pair << 16); };
    auto high = [](unsigned pair) { return __uint_as_float(pair & 0xffff0000u); };
    return to_bf16x2(low(a) * low(b) + low(c), high(a) * high(b) + high(c));
}

// Zeros are written in place of bytes that are not real.
template <unsigned BYTES> static inline void copy_async(void *to, const void *from, bool real) {
    if ((uintptr_t)to % BYTES || (real && (uintptr_t)from % BYTES)) abort();
    emulated::start_copy(to, real ? from : nullptr, BYTES);
}

static inline void copies_sent() { emulated::end_copies(); }

template <unsigned LEFT> static inline void wait_for_copies() { emulated::wait_for_copies(LEFT); }

template <unsigned BYTES> static inline void start_copy(void *to, const void *from) { copy_async<BYTES>(to, from, true); }

static inline void wait_for_all_copies() {
    copies_sent();
    wait_for_copies<0>();
}

// Part of a tile product's operands that one lane passes to the other lanes.
struct TileParts {
    unsigned a[4], b[2];
};

// Fragment layout of PTX's mma.m16n8k16 for bf16. Of A, register r of lane l has row l/4 + 8 (r%2) and columns
// 2 (l%4) + 8 (r/2) and the next; of B, register r of lane l has column l/4 and rows 2 (l%4) + 8 r and the next;
// of the sums, sum s of lane l has row l/4 + 8 (s/2) and column 2 (l%4) + s%2.
static inline void multiply_tiles(float sum[4], const unsigned a[4], const unsigned b[2]) {
    TileParts mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    const unsigned char *all = emulated::exchange(&mine, sizeof mine);
    auto of_lane = [&](unsigned lane) { return (const TileParts *)(all + lane * 64); };
    auto half = [](unsigned pair, unsigned k) { return __uint_as_float((k % 2 ? pair >> 16 : pair & 0xffff) << 16); };
    unsigned lane = threadIdx.x % 32;
    for (unsigned s = 0; s < 4; s++) {
        unsigned row = lane / 4 + 8 * (s / 2), column = 2 * (lane % 4) + s % 2;
        for (unsigned k = 0; k < 16; k++) {
            float left = half(of_lane(row % 8 * 4 + k % 8 / 2)->a[row / 8 + 2 * (k / 8)], k);
            float right = half(of_lane(column * 4 + k % 8 / 2)->b[k / 8], k);
            sum[s] += left * right;
        }
    }
}

// Returns element `column` of row `row` of tile `tile`; `all` has the address of a row of eight elements of each lane.
static inline unsigned tile_element(const unsigned char *all, unsigned tile, unsigned row, unsigned column) {
    const unsigned short *from;
    memcpy(&from, all + (tile * 8 + row) * 64, sizeof from);
    return from[column];
}

// Passes the lanes' addresses of rows to each other. ldmatrix requires that rows start at multiples of 16 bytes.
static inline const unsigned char *exchange_rows(const unsigned short *row) {
    if ((uintptr_t)row % 16) abort();
    return emulated::exchange(&row, sizeof row);
}

// Emulates ldmatrix.x4: register t of lane l gets columns 2 (l%4) and the next, in row l/4, of tile t.
static inline void load_tiles(unsigned tiles[4], const unsigned short *row) {
    const unsigned char *all = exchange_rows(row);
    unsigned lane = threadIdx.x % 32, column = 2 * (lane % 4);
    for (unsigned t = 0; t < 4; t++) {
        tiles[t] = tile_element(all, t, lane / 4, column) | tile_element(all, t, lane / 4, column + 1) << 16;
    }
}

// Emulates ldmatrix.x4.trans: register t of lane l gets rows 2 (l%4) and the next, in column l/4, of tile t.
static inline void load_tiles_transposed(unsigned tiles[4], const unsigned short *row) {
    const unsigned char *all = exchange_rows(row);
    unsigned lane = threadIdx.x % 32, first = 2 * (lane % 4);
    for (unsigned t = 0; t < 4; t++) {
        tiles[t] = tile_element(all, t, first, lane / 4) | tile_element(all, t, first + 1, lane / 4) << 16;
    }
}
