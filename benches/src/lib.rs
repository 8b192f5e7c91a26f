//! Workload files and the load client.
