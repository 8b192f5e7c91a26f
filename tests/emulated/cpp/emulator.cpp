// Runs a kernel's threads on the host, one thread block after the other. Each thread of a block is a coroutine that
// yields where it waits for other threads. A missing barrier shows as a wrong result, because the order of threads is
// reversed from launch to launch. Threads that wait for each other forever show as an error. One thread runs at a time.
#include "cuda.h"
#include "emulator.h"
#include <csetjmp>
#include <cstdlib>
#include <deque>
#include <memory>
#include <ucontext.h>
#include <vector>

namespace emulated {

thread_local Index thread_index, block_index, block_size, grid_size;

namespace {

constexpr unsigned MOST_THREADS = 1024, LANES = 32;
constexpr size_t STACK_BYTES = 64 << 10, SHARED_BYTES = 228 << 10;

enum class Waits { no, for_block, for_warp, done };

// A copy to shared memory that a thread has started; without a source it writes zeros.
struct Copy {
    void *to;
    const void *from;
    unsigned bytes;

    void make() const {
        if (from) {
            memcpy(to, from, bytes);
        } else {
            memset(to, 0, bytes);
        }
    }
};

struct Thread {
    // Where the coroutine goes on, if it has started. A coroutine lasts for many thread blocks.
    jmp_buf at;
    bool started = false;
    Waits waits = Waits::done;
    unsigned exchanges;
    std::unique_ptr<unsigned char[]> stack;
    // Groups of copies that are not made yet; the last is not ended.
    std::deque<std::vector<Copy>> copies;
};

// Buffers through which the lanes of a warp exchange values. There are two of them, so that a lane may start the next
// exchange before all lanes have read the last.
struct Warp {
    unsigned char values[2][LANES * 64];
};

struct Machine {
    std::vector<Thread> threads = std::vector<Thread>(MOST_THREADS);
    std::vector<Warp> warps = std::vector<Warp>(MOST_THREADS / LANES);
    std::unique_ptr<unsigned char[]> shared{new unsigned char[SHARED_BYTES]};
    // Bytes from the start of shared memory that may differ from the pattern.
    size_t written = SHARED_BYTES;
    jmp_buf scheduler;
    unsigned current;
    Caller kernel;
    void **args;
    bool late_copies;
};

// Returns the machine of the calling host thread, made at its first use.
Machine &machine() {
    thread_local std::unique_ptr<Machine> machine{new Machine};
    return *machine;
}

void give_way(Waits waits) {
    Machine &m = machine();
    Thread &thread = m.threads[m.current];
    thread.waits = waits;
    if (!_setjmp(thread.at)) _longjmp(m.scheduler, 1);
}

// Runs a coroutine: an emulated thread of one thread block after the other.
void run_threads() {
    for (;;) {
        Machine &m = machine();
        m.kernel(m.args);
        give_way(Waits::done);
    }
}

void start(Thread &thread) {
    if (!thread.stack) thread.stack.reset(new unsigned char[STACK_BYTES]);
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = thread.stack.get();
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = nullptr;
    makecontext(&context, run_threads, 0);
    thread.started = true;
    setcontext(&context);
}

// Runs an emulated thread until it waits or ends.
void resume(Machine &m, unsigned number) {
    m.current = number;
    thread_index = {number, 0, 0};
    Thread &thread = m.threads[number];
    if (_setjmp(m.scheduler)) return;
    if (thread.started) _longjmp(thread.at, 1);
    start(thread);
}

void prepare(Machine &m, unsigned threads) {
    for (unsigned number = 0; number < threads; number++) {
        Thread &thread = m.threads[number];
        // The coroutine of a thread that waited forever is still in the middle of its kernel. A new coroutine
        // replaces it.
        if (thread.waits != Waits::done) thread.started = false;
        thread.exchanges = 0;
        thread.waits = Waits::no;
        if (thread.copies.size() != 1 || !thread.copies.front().empty()) thread.copies.assign(1, {});
    }
    // Fills shared memory with a pattern, so that a read of memory that the kernel did not write shows as a wrong
    // result.
    memset(m.shared.get(), 0xff, m.written);
    m.written = SHARED_BYTES;
}

// Releases the threads `first .. end` if all of them wait for `what`; at a barrier of the block, ended threads count as
// waiting. Returns whether any thread was released.
bool release(Machine &m, unsigned first, unsigned end, Waits what) {
    bool any = false;
    for (unsigned number = first; number < end; number++) {
        Waits waits = m.threads[number].waits;
        any |= waits == what;
        if (waits != what && !(waits == Waits::done && what == Waits::for_block)) return false;
    }
    for (unsigned number = first; any && number < end; number++) {
        if (m.threads[number].waits == what) m.threads[number].waits = Waits::no;
    }
    return any;
}

// Runs a warp until all of its lanes have ended or wait for the block. Returns whether any lane ran.
bool run_warp(Machine &m, unsigned first, bool backwards) {
    bool ran = false;
    do {
        for (unsigned turn = 0; turn < LANES; turn++) {
            unsigned number = first + (backwards ? LANES - 1 - turn : turn);
            if (m.threads[number].waits != Waits::no) continue;
            resume(m, number);
            ran = true;
        }
    } while (release(m, first, first + LANES, Waits::for_warp));
    return ran;
}

// Runs a thread block. Returns whether it ended; if not, its threads wait for each other forever. Each warp runs as far
// ahead of the other warps as it can, so that a missing barrier makes it read values that are not written yet, or
// overwrite values that are not read yet.
bool run_block(Machine &m, unsigned threads, bool backwards) {
    prepare(m, threads);
    for (;;) {
        bool ran = false;
        for (unsigned turn = 0; turn < threads; turn += LANES) {
            ran |= run_warp(m, backwards ? threads - LANES - turn : turn, backwards);
        }
        bool done = true;
        for (unsigned number = 0; number < threads; number++) done &= m.threads[number].waits == Waits::done;
        if (done) return true;
        if (!release(m, 0, threads, Waits::for_block) && !ran) return false;
    }
}

}

unsigned char *shared_memory() { return machine().shared.get(); }

void wait_for_block() { give_way(Waits::for_block); }

void start_copy(void *to, const void *from, unsigned bytes) {
    Machine &m = machine();
    Copy copy = {to, from, bytes};
    if (m.late_copies) {
        m.threads[m.current].copies.back().push_back(copy);
    } else {
        copy.make();
    }
}

void end_copies() { machine().threads[machine().current].copies.emplace_back(); }

void wait_for_copies(unsigned left) {
    auto &copies = machine().threads[machine().current].copies;
    for (; copies.size() > left + 1; copies.pop_front()) {
        for (const Copy &copy : copies.front()) copy.make();
    }
}

const unsigned char *exchange(const void *value, unsigned bytes) {
    Machine &m = machine();
    unsigned number = m.current;
    unsigned char *values = m.warps[number / LANES].values[m.threads[number].exchanges++ % 2];
    memcpy(values + number % LANES * 64, value, bytes);
    give_way(Waits::for_warp);
    return values;
}

}

// Launches a kernel and runs it to its end. Returns 0, or the reason of a failure: 1 if there is no such kernel, 2 if
// no GPU would accept the launch, 3 if threads wait forever, 4 if the kernel used more shared memory than was
// requested.
extern "C" int tiercel_emulated_launch(
    const char *name, const unsigned grid[3], unsigned threads, unsigned shared_bytes, void **args, int backwards
) {
    using namespace emulated;
    const Entry *entry = entries;
    while (entry->name && strcmp(entry->name, name)) entry++;
    if (!entry->name) return 1;
    bool fits = threads > 0 && threads <= MOST_THREADS && threads % LANES == 0 && shared_bytes <= SHARED_BYTES;
    if (!fits || !grid[0] || !grid[1] || !grid[2] || grid[1] > 65535 || grid[2] > 65535) return 2;
    Machine &m = machine();
    m.kernel = entry->call;
    m.args = args;
    m.late_copies = !backwards;
    block_size = {threads, 1, 1};
    grid_size = {grid[0], grid[1], grid[2]};
    for (unsigned z = 0; z < grid[2]; z++) {
        for (unsigned y = 0; y < grid[1]; y++) {
            for (unsigned x = 0; x < grid[0]; x++) {
                block_index = {x, y, z};
                if (!run_block(m, threads, backwards)) return 3;
                // Checks that the kernel wrote nothing beyond the requested shared memory.
                const unsigned char *rest = m.shared.get() + shared_bytes;
                size_t bytes = SHARED_BYTES - shared_bytes;
                if (bytes > 0 && (rest[0] != 0xff || memcmp(rest, rest + 1, bytes - 1))) return 4;
                m.written = shared_bytes;
            }
        }
    }
    return 0;
}
