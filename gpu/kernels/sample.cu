// Draws a token from each row of logits on the device, so that the host receives a token instead of a row.
//
// The same sampling as on the host (model/src/sampling). A token's weight is exp((logit - largest) / temperature).
// Min-p, then top-k, then top-p keep a prefix of the tokens ranked by weight, the lower id first among equal weights.
// The draw chooses from the kept tokens. Weights are summed as integers, in units of 2^-40 of the largest weight, so
// the sums and the token do not depend on the order of threads.
//
// A draw may have a mask, a bitmap of the tokens that may be drawn. A token outside the mask has the logit -infinity and
// weight 0, whatever its logit in memory is.

constexpr u32 SAMPLE_THREADS = 1024;
constexpr float MASS_UNITS = 1099511627776.0f; // 2^40: sums over a vocabulary of 2^23 fit 64 bits
constexpr u32 BINS = 256;
constexpr float LOWEST = -3.4028235e38f; // lowest finite float
constexpr u32 NO_TOKEN = 0xffffffffu; // result of a row without a finite logit, or with a NaN or +infinity
constexpr u32 NO_MASK = 0xffffffffu;  // `mask` of a draw that may take any token

// Sampling options of one draw. `at` is the point of the draw as a fraction of the kept weight, in [0, 1), in units of
// 2^-32.
struct Sampling {
    float temperature; // 0 takes the largest logit
    u32 top_k; // 0 keeps all tokens
    float top_p; // 1 keeps all tokens
    float min_p; // 0 keeps all tokens
    u32 at;
    u32 row;
    u32 mask; // number of the mask of the tokens that may be drawn
};

// Logits of one row, and the mask of the draw.
struct Row {
    const float *logits;
    const u32 *mask; // bit `i` of word `w` stands for token `32 w + i`; null if the draw may take any token
    u32 cols;        // number of tokens
};

// Sum of the weights (in units of 2^-40) and number of the tokens ranked so far.
struct Seen {
    u64 mass;
    u32 count;
};

// End of the kept prefix of a ranking: the bits of the last kept token's weight, and how many tokens of that weight are
// kept.
struct Cut {
    u32 bits;
    u32 ties;
};

struct SampleShared {
    u64 mass[BINS];
    u32 count[BINS];
    u64 sums[SAMPLE_THREADS];
    float warps[SAMPLE_THREADS / WARP];
    Seen seen;
    u32 digit;
    u32 result;
};

__device__ __forceinline__ u64 mass_of(float weight) { return (u64)(weight * MASS_UNITS); }

// Returns the logit of a token, or -infinity if the token is outside the mask.
__device__ __forceinline__ float logit_of(const Row &row, u32 token) {
    bool masked = row.mask && !(row.mask[token / 32] >> token % 32 & 1);
    return masked ? __uint_as_float(0xff800000u) : row.logits[token];
}

// Returns the weight of a token, in [0, 1], or 0 if it is below the floor of min-p. Weights are ordered as their bits
// are.
__device__ __forceinline__ float weight_of(float logit, float largest, const Sampling &how) {
    float weight = expf((logit - largest) / how.temperature);
    return weight >= how.min_p ? weight : 0.0f;
}

// Whether a cut keeps a token; `before` is the number of tokens of the cut's weight with lower ids.
__device__ __forceinline__ bool is_kept(u32 bits, Cut cut, u32 before) {
    return bits > cut.bits || (bits == cut.bits && before < cut.ties);
}

// Returns the largest logit of a row: LOWEST if no logit is finite, and -LOWEST, the largest float, if a logit is NaN
// or +infinity.
__device__ __forceinline__ float largest_logit(const Row &row, SampleShared &shared) {
    float largest = LOWEST;
    bool bad = false;
    for (u32 token = threadIdx.x; token < row.cols; token += blockDim.x) {
        float logit = logit_of(row, token);
        bad |= logit != logit || logit >= -LOWEST;
        largest = fmaxf(largest, logit);
    }
    // -LOWEST is larger than every usable logit, so it survives the maximum.
    if (bad) largest = -LOWEST;
    largest = max_of_lanes(largest, WARP);
    if (lane_of_thread() == 0) shared.warps[warp_of_thread()] = largest;
    __syncthreads();
    for (u32 warp = 0; warp < blockDim.x / WARP; warp++) largest = fmaxf(largest, shared.warps[warp]);
    __syncthreads();
    return largest;
}

// Returns the sum of `own` over the threads before this thread, and the sum over all threads in `total`.
__device__ __forceinline__ u64 sum_before(u64 own, u64 &total, SampleShared &shared) {
    shared.sums[threadIdx.x] = own;
    __syncthreads();
    for (u32 step = 1; step < blockDim.x; step *= 2) {
        u64 other = threadIdx.x >= step ? shared.sums[threadIdx.x - step] : 0;
        __syncthreads();
        shared.sums[threadIdx.x] += other;
        __syncthreads();
    }
    total = shared.sums[blockDim.x - 1];
    u64 before = shared.sums[threadIdx.x] - own;
    __syncthreads();
    return before;
}

// Finds the first token of the ranking at which `count` tokens or a summed weight of `mass` are reached, and returns
// the cut after it. A radix search: it fixes the bits of the token's weight 8 at a time, from the highest. Tokens that
// the cut `before` does not keep are not ranked.
__device__ Cut find_cut(
    const Row &row, float largest, const Sampling &how, Cut before, u32 count, u64 mass,
    SampleShared &shared
) {
    u32 prefix = 0;
    Seen seen = {0, 0};
    for (u32 shift = 32; shift > 0;) {
        shift -= 8;
        for (u32 bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
            shared.mass[bin] = 0;
            shared.count[bin] = 0;
        }
        __syncthreads();
        for (u32 token = threadIdx.x; token < row.cols; token += blockDim.x) {
            float weight = weight_of(logit_of(row, token), largest, how);
            u32 bits = __float_as_uint(weight);
            bool ranked = weight > 0.0f && bits >= before.bits;
            bool matches = shift == 24 || bits >> (shift + 8) == prefix >> (shift + 8);
            if (ranked && matches) {
                u32 bin = bits >> shift & (BINS - 1);
                // A search by `count` alone, with the largest `mass`, does not need the sums of weights.
                if (mass != ~0ull) atomicAdd(&shared.mass[bin], mass_of(weight));
                atomicAdd(&shared.count[bin], 1u);
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            u32 bin = BINS - 1;
            for (; bin > 0; bin--) {
                if (seen.count + shared.count[bin] >= count || seen.mass + shared.mass[bin] >= mass) break;
                seen.count += shared.count[bin];
                seen.mass += shared.mass[bin];
            }
            shared.seen = seen;
            shared.digit = bin;
        }
        __syncthreads();
        seen = shared.seen;
        prefix += shared.digit << shift;
    }
    // Keeps as many tokens of the cut's weight as are needed, or all of them if rounding leaves the sum short.
    u32 all = shared.count[shared.digit];
    if (prefix == before.bits) all = min(all, before.ties);
    u64 each = max(mass_of(__uint_as_float(prefix)), (u64)1);
    u64 by_mass = mass > seen.mass ? (mass - seen.mass - 1) / each + 1 : 1;
    u32 by_count = count > seen.count ? count - seen.count : 1;
    u32 ties = by_mass < by_count ? (u32)by_mass : by_count;
    __syncthreads();
    return {prefix, max(min(ties, all), 1u)};
}

// Range of neighbouring tokens that a thread examines, and the sums of weights that a cut keeps.
struct Share {
    u32 start, end;
    u32 ties_before; // tokens of the cut's weight with lower ids
    u64 own;         // kept mass of this thread's tokens
    u64 before;      // kept mass of the tokens of all threads before
    u64 total;       // kept mass of all tokens
};

__device__ Share share_of_thread(
    const Row &row, float largest, const Sampling &how, Cut cut, SampleShared &shared
) {
    Share share;
    u32 each = (row.cols + blockDim.x - 1) / blockDim.x;
    share.start = min(threadIdx.x * each, row.cols);
    share.end = min(share.start + each, row.cols);
    u64 ties = 0;
    for (u32 token = share.start; token < share.end; token++) {
        ties += __float_as_uint(weight_of(logit_of(row, token), largest, how)) == cut.bits;
    }
    share.ties_before = (u32)sum_before(ties, share.total, shared);
    share.own = 0;
    u32 ties_before = share.ties_before;
    for (u32 token = share.start; token < share.end; token++) {
        float weight = weight_of(logit_of(row, token), largest, how);
        u32 bits = __float_as_uint(weight);
        if (weight > 0.0f && is_kept(bits, cut, ties_before)) share.own += mass_of(weight);
        ties_before += bits == cut.bits;
    }
    share.before = sum_before(share.own, share.total, shared);
    return share;
}

// Returns the token at fraction `how.at` of the weight that the cut keeps.
__device__ u32 draw(
    const Row &row, float largest, const Sampling &how, Cut cut, SampleShared &shared
) {
    Share share = share_of_thread(row, largest, how, cut, shared);
    u64 total = share.total;
    u32 ties_before = share.ties_before;
    // Computes at * total / 2^32 without exceeding 64 bits.
    u64 target = (total >> 32) * how.at + ((total & 0xffffffffu) * how.at >> 32);
    if (target >= share.before && target < share.before + share.own) {
        u64 left = target - share.before;
        for (u32 token = share.start; token < share.end; token++) {
            float weight = weight_of(logit_of(row, token), largest, how);
            u32 bits = __float_as_uint(weight);
            bool kept = weight > 0.0f && is_kept(bits, cut, ties_before);
            ties_before += bits == cut.bits;
            if (!kept) continue;
            if (left < mass_of(weight)) {
                shared.result = token;
                break;
            }
            left -= mass_of(weight);
        }
    }
    __syncthreads();
    return shared.result;
}

// Returns the lowest id of the tokens with the largest logit.
__device__ __forceinline__ u32 best(const Row &row, float largest, SampleShared &shared) {
    for (u32 token = threadIdx.x; token < row.cols; token += blockDim.x) {
        if (logit_of(row, token) == largest) atomicMin(&shared.result, token);
    }
    __syncthreads();
    return shared.result;
}

// Draws tokens[draw.row] from row `draw.row` of `logits`. Rows are `stride` columns apart; the first `cols` columns are
// tokens. Masks have `mask_words` words each and are one after the other. One thread block per draw.
extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS, 1) sample(
    const float *logits, u32 stride, u32 cols, const Sampling *draws, const u32 *masks, u32 mask_words, u32 *tokens
) {
    SHARED_MEMORY(memory);
    SampleShared &shared = *(SampleShared *)memory;
    Sampling how = draws[blockIdx.x];
    const u32 *mask = how.mask == NO_MASK ? nullptr : masks + (u64)how.mask * mask_words;
    Row row = {logits + (u64)how.row * stride, mask, cols};
    float largest = largest_logit(row, shared);
    u32 token = NO_TOKEN;
    if (threadIdx.x == 0) shared.result = NO_TOKEN;
    __syncthreads();
    if (largest > LOWEST && largest < -LOWEST) {
        if (how.temperature <= 0.0f) {
            token = best(row, largest, shared);
        } else {
            Cut cut = {0, NO_TOKEN};
            if (how.top_k > 0 && how.top_k < cols) {
                cut = find_cut(row, largest, how, cut, how.top_k, ~0ull, shared);
            }
            if (how.top_p < 1.0f) {
                u64 total = share_of_thread(row, largest, how, cut, shared).total;
                u64 mass = (u64)((double)how.top_p * (double)total);
                cut = find_cut(row, largest, how, cut, NO_TOKEN, mass > 0 ? mass : 1, shared);
            }
            token = draw(row, largest, how, cut, shared);
        }
    }
    if (threadIdx.x == 0) tokens[how.row] = token;
}
