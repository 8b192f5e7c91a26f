//! Limits of GPU architectures, and the check of a launch against them.
//!
//! Source: NVIDIA, "CUDA C++ Programming Guide", section "Compute Capabilities", tables of technical specifications.

use crate::cubin::Kernel;
use tiercel_gpu::cuda::LargestLaunch;

/// Most registers of a thread, on every architecture below.
const REGISTERS_PER_THREAD: u32 = 255;
/// Most registers of a thread block, and the registers of a multiprocessor, on every architecture below.
const REGISTERS_PER_BLOCK: u32 = 64 << 10;
/// Registers are given to a warp in multiples of this.
const REGISTER_UNIT: u32 = 256;
const THREADS_PER_BLOCK: u32 = 1024;
const WARP: u32 = 32;
/// Most static shared memory of a thread block, bytes, on every architecture.
const STATIC_SHARED_BYTES: u32 = 48 << 10;
/// Shared memory that the system takes for each thread block on a multiprocessor, bytes.
const SYSTEM_SHARED_BYTES: u32 = 1 << 10;
/// Alignment that the kernels' accesses to shared memory need, bytes: vectors of 16 bytes.
const SHARED_ALIGNMENT: u32 = 16;

/// Limits of a GPU architecture.
pub(crate) struct Architecture {
    pub(crate) name: &'static str,
    /// Most shared memory of a thread block, bytes, after a request to the driver for more than 48 KiB.
    pub(crate) shared_per_block_bytes: u32,
    /// Shared memory of a multiprocessor, bytes.
    pub(crate) shared_bytes: u32,
}

pub(crate) const ARCHITECTURES: [Architecture; 3] = [
    Architecture { name: "sm_80", shared_per_block_bytes: 163 << 10, shared_bytes: 164 << 10 },
    Architecture { name: "sm_90", shared_per_block_bytes: 227 << 10, shared_bytes: 228 << 10 },
    Architecture { name: "sm_100", shared_per_block_bytes: 227 << 10, shared_bytes: 228 << 10 },
];

impl Architecture {
    /// Returns what is wrong with the largest launch of a kernel on this architecture, one text for each limit that it
    /// exceeds.
    pub(crate) fn problems(&self, kernel: &Kernel, launch: &LargestLaunch) -> Vec<String> {
        let LargestLaunch { threads, shared_bytes, resident, .. } = *launch;
        let registers = registers_of_block(kernel.registers, threads);
        let shared = kernel.static_shared_bytes + shared_bytes;
        let resident_shared = resident * (shared + SYSTEM_SHARED_BYTES);
        let at_most = [
            ("registers per thread", kernel.registers, REGISTERS_PER_THREAD),
            ("bytes of stack frame", kernel.stack_bytes, 0),
            ("threads per block", threads, THREADS_PER_BLOCK),
            ("threads per block, by its launch bound", threads, kernel.threads_max),
            ("threads beyond whole warps", threads % WARP, 0),
            ("registers per block", registers, REGISTERS_PER_BLOCK),
            ("bytes of static shared memory", kernel.static_shared_bytes, STATIC_SHARED_BYTES),
            ("bytes of shared memory per block", shared, self.shared_per_block_bytes),
            ("registers of the blocks that must fit", resident * registers, REGISTERS_PER_BLOCK),
            ("bytes of shared memory of these blocks", resident_shared, self.shared_bytes),
        ];
        let mut problems: Vec<String> = at_most
            .into_iter()
            .filter(|(_, value, most)| value > most)
            .map(|(what, value, most)| format!("{value} {what}, at most {most}"))
            .collect();
        if shared > 0 && !kernel.shared_alignment.is_multiple_of(SHARED_ALIGNMENT) {
            problems.push(format!("shared memory aligned to {}", kernel.shared_alignment));
        }
        problems
    }
}

/// Returns the registers that a thread block takes: each warp gets a multiple of the unit.
fn registers_of_block(registers: u32, threads: u32) -> u32 {
    threads.div_ceil(WARP) * (registers * WARP).next_multiple_of(REGISTER_UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: Kernel = Kernel {
        registers: 128,
        stack_bytes: 0,
        threads_max: 128,
        static_shared_bytes: 0,
        shared_alignment: 16,
    };
    const LAUNCH: LargestLaunch =
        LargestLaunch { kernel: "a", threads: 128, shared_bytes: 40 << 10, resident: 4 };

    fn problems(kernel: Kernel, launch: LargestLaunch) -> Vec<String> {
        ARCHITECTURES[0].problems(&kernel, &launch)
    }

    #[test]
    fn a_launch_at_every_limit_is_accepted() {
        assert_eq!(problems(KERNEL, LAUNCH), [""; 0]);
        let large = LargestLaunch { shared_bytes: 163 << 10, resident: 1, ..LAUNCH };
        assert_eq!(problems(Kernel { registers: 255, ..KERNEL }, large), [""; 0]);
    }

    #[test]
    fn each_limit_that_is_exceeded_is_told() {
        let told = |kernel, launch, expected: &[&str]| {
            assert_eq!(problems(kernel, launch), expected);
        };
        told(Kernel { stack_bytes: 8, ..KERNEL }, LAUNCH, &["8 bytes of stack frame, at most 0"]);
        told(
            Kernel { registers: 129, ..KERNEL },
            LAUNCH,
            &["69632 registers of the blocks that must fit, at most 65536"],
        );
        told(
            Kernel { threads_max: 64, ..KERNEL },
            LAUNCH,
            &["128 threads per block, by its launch bound, at most 64"],
        );
        told(Kernel { shared_alignment: 8, ..KERNEL }, LAUNCH, &["shared memory aligned to 8"]);
        told(
            KERNEL,
            LargestLaunch { shared_bytes: (163 << 10) + 1, resident: 1, ..LAUNCH },
            &[
                "166913 bytes of shared memory per block, at most 166912",
                "167937 bytes of shared memory of these blocks, at most 167936",
            ],
        );
        told(
            KERNEL,
            LargestLaunch { threads: 100, resident: 1, ..LAUNCH },
            &["4 threads beyond whole warps, at most 0"],
        );
        told(
            Kernel { registers: 66, threads_max: 1024, ..KERNEL },
            LargestLaunch { threads: 1024, resident: 1, ..LAUNCH },
            &[
                "73728 registers per block, at most 65536",
                "73728 registers of the blocks that must fit, at most 65536",
            ],
        );
    }
}
