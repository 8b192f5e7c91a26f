//! Real devices: the CPU op set, its compute pool and KV slabs.
