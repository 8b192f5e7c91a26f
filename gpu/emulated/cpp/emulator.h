// How a kernel is found and run.
#pragma once
#include <cstddef>
#include <utility>

namespace emulated {

// Calls a kernel with the arguments that `args` points to.
typedef void (*Caller)(void **args);

struct Entry {
    const char *name;
    Caller call;
};

template <typename... A, size_t... I>
void call_with(void (*kernel)(A...), void **args, std::index_sequence<I...>) {
    kernel(*(A *)args[I]...);
}

template <auto kernel, typename... A>
void call_unpacked(void (*)(A...), void **args) {
    call_with<A...>(kernel, args, std::index_sequence_for<A...>());
}

template <auto kernel>
void call(void **args) {
    call_unpacked<kernel>(kernel, args);
}

// Written by build.rs: all kernels, the last without a name.
extern const Entry entries[];

}
