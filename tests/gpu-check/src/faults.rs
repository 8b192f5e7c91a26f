//! Checks that a GPU's faults are reported as faults of their kind, and that work goes on after those that leave the
//! GPU usable.

use crate::CheckError;
use crate::report::Report;
use tiercel_gpu::cuda::{Arg, CudaError, DevicePtr, Driver, KernelShape, Launch};

/// Number of bytes that no GPU has.
const TOO_MANY_BYTES: usize = 1 << 50;
/// Threads of a thread block that no GPU takes.
const TOO_MANY_THREADS: u32 = 1 << 20;
/// Size of the rows that the launches of this check copy, bytes.
const ROW_BYTES: usize = 64;

/// Checks an allocation of too much memory and a refused launch. After each, the GPU must still compute.
///
/// # Errors
/// [`CheckError`] if something could not be run at all.
pub fn check_faults<D: Driver>(
    open: &dyn Fn() -> Result<D, CheckError>,
    report: &mut Report,
) -> Result<(), CheckError> {
    let mut driver = open()?;
    driver.load(KernelShape { head_dim: 64, queries: 1, q8: false })?;
    let memory = Memory::new(&mut driver)?;
    report.holds("the GPU copies a row", copies_row(&mut driver, memory, 1)?);
    let too_large = driver.allocate(TOO_MANY_BYTES);
    let refused = matches!(too_large, Err(CudaError::Memory { .. }));
    report.holds("too large an allocation is refused as such", refused);
    report.holds("the GPU copies a row after that", copies_row(&mut driver, memory, 2)?);
    let mut launch = memory.copy(memory.from);
    launch.threads = TOO_MANY_THREADS;
    let refused = matches!(driver.launch(&launch), Err(CudaError::Launch { .. }));
    report.holds("a launch with too many threads is refused as such", refused);
    report.holds("the GPU copies a row after that too", copies_row(&mut driver, memory, 3)?);
    Ok(())
}

/// Makes a kernel read memory that does not exist, and checks that the GPU is then reported as lost, in this call and
/// in later ones. This process cannot use the GPU afterwards; other processes can.
///
/// # Errors
/// [`CheckError`] if something could not be run at all.
pub fn lose_device<D: Driver>(mut driver: D, report: &mut Report) -> Result<(), CheckError> {
    driver.load(KernelShape { head_dim: 64, queries: 1, q8: false })?;
    let memory = Memory::new(&mut driver)?;
    // No allocation lies in the first megabytes of the address space.
    driver.launch(&memory.copy(DevicePtr(1 << 20)))?;
    let is_lost = |result: Result<(), CudaError>| matches!(result, Err(CudaError::Lost(_)));
    report.holds("a read of missing memory loses the GPU", is_lost(driver.wait()));
    report.holds("later uploads say so", is_lost(driver.upload(memory.from, &[0; ROW_BYTES])));
    let later = driver.launch(&memory.copy(memory.from));
    report.holds("later launches say so", is_lost(later));
    Ok(())
}

/// Device memory of the check: two rows and the number of a row.
#[derive(Debug, Clone, Copy)]
struct Memory {
    from: DevicePtr,
    to: DevicePtr,
    which: DevicePtr,
}

impl Memory {
    fn new(driver: &mut impl Driver) -> Result<Memory, CheckError> {
        let from = driver.allocate(ROW_BYTES)?;
        let to = driver.allocate(ROW_BYTES)?;
        let which = driver.allocate(ROW_BYTES)?;
        driver.upload(which, &[0; ROW_BYTES])?;
        Ok(Memory { from, to, which })
    }

    /// Returns the launch that copies the row at `from` to the row `to`.
    fn copy(self, from: DevicePtr) -> Launch {
        let words = (ROW_BYTES / 16) as u32;
        let args = vec![Arg::Ptr(from), Arg::Ptr(self.which), Arg::Ptr(self.to), Arg::U32(words)];
        Launch { kernel: "gather_rows", grid: (1, 1), threads: 32, shared_bytes: 0, args }
    }
}

/// Whether the GPU copies a row of bytes `byte` to another place.
fn copies_row(driver: &mut impl Driver, memory: Memory, byte: u8) -> Result<bool, CheckError> {
    driver.upload(memory.from, &[byte; ROW_BYTES])?;
    driver.launch(&memory.copy(memory.from))?;
    let mut copied = [0; ROW_BYTES];
    driver.download(memory.to, &mut copied)?;
    driver.wait()?;
    Ok(copied == [byte; ROW_BYTES])
}
