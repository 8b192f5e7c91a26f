// Shared by all kernels: bf16 as 16 bits, vectors of eight bf16, reductions over a warp and a thread block.
//
// No header of the CUDA toolkit is included, so that the runtime compiler needs only this text. The few operations that
// plain C++ lacks are defined here; where TIERCEL_EMULATED is defined, they come from the emulator that runs the
// kernels on the host (tests/emulated).
//
// Conventions: activations and weights are bf16, the residual stream and logits are f32, arithmetic is f32. Widths of
// rows are multiples of 8, so that a thread moves 16 bytes at once.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short bf16;

constexpr u32 WARP = 32;
constexpr float NEVER = -1e30f; // score of a masked key; not -infinity, because -infinity minus itself is NaN

// Vector of eight bf16 values, 16 bytes.
struct alignas(16) Bf16x8 {
    bf16 at[8];
};

// Vector of four bf16 values, 8 bytes.
struct alignas(8) Bf16x4 {
    bf16 at[4];
};

// Vector of four f32 values, 16 bytes.
struct alignas(16) F32x4 {
    float at[4];
};

// Vector of eight f32 values, which a thread moves as two vectors of 16 bytes.
struct F32x8 {
    float at[8];
};

__device__ __forceinline__ F32x8 load_eight(const float *from) {
    F32x4 low = ((const F32x4 *)from)[0], high = ((const F32x4 *)from)[1];
    return {low.at[0], low.at[1], low.at[2], low.at[3], high.at[0], high.at[1], high.at[2], high.at[3]};
}

__device__ __forceinline__ void store_eight(float *to, const F32x8 &values) {
    const float *at = values.at;
    ((F32x4 *)to)[0] = {at[0], at[1], at[2], at[3]};
    ((F32x4 *)to)[1] = {at[4], at[5], at[6], at[7]};
}

__device__ __forceinline__ float to_f32(bf16 value) { return __uint_as_float((u32)value << 16); }

#ifndef TIERCEL_EMULATED
// Begins the definition of a member function of a class.
#define MEMBER __device__ __forceinline__

// Declares `name` as the dynamic shared memory of the launch.
#define SHARED_MEMORY(name) extern __shared__ __align__(16) unsigned char name[]

// Converts f32 to bf16, rounding to nearest, ties to even.
__device__ __forceinline__ bf16 to_bf16(float value) {
    bf16 result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(value));
    return result;
}

// Packs two values into a register as bf16, `low` in the low half.
__device__ __forceinline__ u32 to_bf16x2(float low, float high) {
    u32 result;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
}

// sum += a · b for tiles of 16 x 16 and 16 x 8, spread over the lanes of a warp in the layout of PTX's mma.m16n8k16.
__device__ __forceinline__ void multiply_tiles(float sum[4], const u32 a[4], const u32 b[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Returns (a & b) | c.
__device__ __forceinline__ u32 and_or(u32 a, u32 b, u32 c) {
    u32 result;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}

// Returns a · b + c for pairs of bf16; each result is rounded once.
__device__ __forceinline__ u32 multiply_add_bf16x2(u32 a, u32 b, u32 c) {
    u32 result;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}

// Starts a copy of `BYTES` (4, 8 or 16) from global to shared memory; if `real` is false, writes zeros and reads nothing.
// `copies_sent` ends a group of copies, and `wait_for_copies` waits for all groups of the thread but the last `LEFT`. Other
// threads see the copies only after a barrier.
template <u32 BYTES> __device__ __forceinline__ void copy_async(void *to, const void *from, bool real) {
    u32 address = (u32)__cvta_generic_to_shared(to), read = real ? BYTES : 0;
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(read) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(BYTES), "r"(read)
                     : "memory");
    }
}

__device__ __forceinline__ void copies_sent() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <u32 LEFT> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// Loads four tiles of 8 x 8 from shared memory, transposed: lane `i` passes the address of row `i % 8` of tile `i / 8`.
__device__ __forceinline__ void load_tiles_transposed(u32 tiles[4], const bf16 *row) {
    u32 address = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(address)
                 : "memory");
}

// Loads four tiles of 8 x 8 from shared memory: lane `i` passes the address of row `i % 8` of tile `i / 8`.
__device__ __forceinline__ void load_tiles(u32 tiles[4], const bf16 *row) {
    u32 address = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(address)
                 : "memory");
}

// Returns 2 to the power of `value`, or 0 where that is below the smallest normal number.
__device__ __forceinline__ float power_of_two(float value) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}

// Starts a copy of `BYTES` bytes (4, 8 or 16) from global to shared memory; `wait_for_all_copies` waits for its end.
template <u32 BYTES>
__device__ __forceinline__ void start_copy(void *to, const void *from) {
    u32 address = (u32)__cvta_generic_to_shared(to);
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(address), "l"(from) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" : : "r"(address), "l"(from), "n"(BYTES) : "memory");
    }
}

// Waits for the end of all copies that this thread has started.
__device__ __forceinline__ void wait_for_all_copies() { asm volatile("cp.async.wait_all;" : : : "memory"); }
#endif

__device__ __forceinline__ u32 warp_of_thread() { return threadIdx.x / WARP; }

__device__ __forceinline__ u32 lane_of_thread() { return threadIdx.x % WARP; }

// Returns, in each lane, the sum over its group of `lanes` neighbouring lanes; `lanes` is a power of two. The order of
// the additions is fixed.
__device__ __forceinline__ float sum_of_lanes(float value, u32 lanes) {
    for (u32 step = lanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

__device__ __forceinline__ float max_of_lanes(float value, u32 lanes) {
    for (u32 step = lanes / 2; step > 0; step /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
    }
    return value;
}

// Returns the value of lane `lane`, which may differ from lane to lane.
__device__ __forceinline__ float of_lane(float value, u32 lane) { return __shfl_sync(0xffffffffu, value, lane); }

// Returns the sum over a thread block, in each of its threads; `warps` has room for one float per warp.
__device__ __forceinline__ float sum_of_block(float value, float *warps) {
    value = sum_of_lanes(value, WARP);
    if (lane_of_thread() == 0) warps[warp_of_thread()] = value;
    __syncthreads();
    float sum = 0.0f;
    for (u32 warp = 0; warp < blockDim.x / WARP; warp++) sum += warps[warp];
    __syncthreads();
    return sum;
}
