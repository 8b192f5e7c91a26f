//! What the op set needs of a GPU: memory, launches, matrix products, and waiting. The real one is
//! [`CudaDriver`](super::CudaDriver); tests run the same launches on an emulator.

use super::copier::CopyDriver;
use tiercel_device::StepError;

/// An address in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The address `bytes` further on.
    #[must_use]
    pub fn offset(self, bytes: usize) -> DevicePtr {
        DevicePtr(self.0 + bytes as u64)
    }
}

/// An argument of a kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arg {
    /// A pointer; the null pointer for `DevicePtr(0)`.
    Ptr(DevicePtr),
    /// `u32`.
    U32(u32),
    /// `u64`.
    U64(u64),
    /// `float`.
    F32(f32),
}

impl Arg {
    /// The argument's bytes, as the kernel reads them from the start of the array.
    pub fn bytes(self) -> [u8; 8] {
        match self {
            Arg::Ptr(DevicePtr(value)) | Arg::U64(value) => value.to_ne_bytes(),
            Arg::U32(value) => u64::from(value).to_le().to_ne_bytes(),
            Arg::F32(value) => u64::from(value.to_bits()).to_le().to_ne_bytes(),
        }
    }
}

/// A launch of a kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Launch<'a> {
    /// Its name in the source.
    pub kernel: &'static str,
    /// Blocks of threads in x and y; neither is 0, y is at most 65,535.
    pub grid: (u32, u32),
    /// Threads of a block, whole warps.
    pub threads: u32,
    /// Shared memory of a block, bytes.
    pub shared_bytes: u32,
    /// Arguments in the order of the source.
    pub args: &'a [Arg],
}

/// Something that a graph does, each time it is replayed.
#[derive(Debug, Clone, PartialEq)]
pub enum Work {
    /// A launch: kernel, grid, threads, shared bytes, arguments.
    Launch(&'static str, (u32, u32), u32, u32, Vec<Arg>),
    /// A product.
    Multiply(Product),
}

/// `out = x · wᵀ`: `w` is `[n, k]`, `x` is `[m, k]`, both bf16 and row-major, `out` is `[m, n]`. Sums are f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Product {
    /// Weights.
    pub w: DevicePtr,
    /// Activations.
    pub x: DevicePtr,
    /// Result.
    pub out: DevicePtr,
    /// Rows of activations; at least 1.
    pub m: usize,
    /// Output features.
    pub n: usize,
    /// Input features.
    pub k: usize,
    /// Whether the result stays f32; otherwise it is rounded to bf16.
    pub wide: bool,
}

/// The parts of a model's shape that attention kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KernelShape {
    /// Width of a head.
    pub head_dim: usize,
    /// Query heads per key head.
    pub queries: usize,
}

/// Slots for what comes back to the host.
pub const SLOTS: usize = 2;
/// Most bytes in one.
pub const SLOT_BYTES: usize = 16 << 10;

/// A GPU with one compute stream: everything is done in the order it was asked for. Memory lives as long as the driver.
pub trait Driver: Send + 'static {
    /// Its copy side.
    type Copies: CopyDriver;
    /// What logs and metrics call it.
    fn name(&self) -> String;
    /// Memory that can be allocated, bytes.
    ///
    /// # Errors
    /// [`CudaError::Lost`].
    fn free_bytes(&mut self) -> Result<u64, CudaError>;
    /// The copy side, with so much pinned host memory. It must be dropped before the driver is.
    ///
    /// # Errors
    /// [`CudaError::Memory`].
    fn copies(&mut self, host_bytes: usize) -> Result<Self::Copies, CudaError>;
    /// Positions of a row that attention sums up at once; the kernels are compiled for it.
    fn span(&self) -> usize;
    /// Compiles or loads the kernels for a model.
    ///
    /// # Errors
    /// [`CudaError::Compile`] with the compiler's own words.
    fn load(&mut self, shape: KernelShape) -> Result<(), CudaError>;
    /// Allocates memory, aligned to 256 bytes. Its content is undefined.
    ///
    /// # Errors
    /// [`CudaError::Memory`].
    fn allocate(&mut self, bytes: usize) -> Result<DevicePtr, CudaError>;
    /// Sets memory to zero.
    ///
    /// # Errors
    /// [`CudaError::Lost`].
    fn clear(&mut self, at: DevicePtr, bytes: usize) -> Result<(), CudaError>;
    /// Copies to the device. `bytes` may be reused at once.
    ///
    /// # Errors
    /// [`CudaError::Lost`] or [`CudaError::Copy`].
    fn upload(&mut self, to: DevicePtr, bytes: &[u8]) -> Result<(), CudaError>;
    /// Waits for all that was asked for and copies from the device.
    ///
    /// # Errors
    /// [`CudaError::Lost`] or [`CudaError::Copy`].
    fn download(&mut self, from: DevicePtr, bytes: &mut [u8]) -> Result<(), CudaError>;
    /// Sends back what the device will have made of these bytes once it has done all that was asked for, without waiting:
    /// at most [`SLOT_BYTES`], into a slot below [`SLOTS`] whose last content was received.
    ///
    /// # Errors
    /// [`CudaError::Lost`] or [`CudaError::Copy`].
    fn send_back(&mut self, slot: usize, from: DevicePtr, bytes: usize) -> Result<(), CudaError>;
    /// Whether all that was asked for before the last [`Driver::send_back`] into the slot has been done, or went wrong.
    fn has_arrived(&mut self, slot: usize) -> bool;
    /// Waits until that is so, and no longer; takes what was sent back.
    ///
    /// # Errors
    /// [`CudaError::Lost`] if some of it went wrong.
    fn receive(&mut self, slot: usize, bytes: &mut [u8]) -> Result<(), CudaError>;
    /// Launches a kernel of the last [`Driver::load`].
    ///
    /// # Errors
    /// [`CudaError::Launch`] if it was not accepted.
    fn launch(&mut self, launch: Launch<'_>) -> Result<(), CudaError>;
    /// Multiplies matrices.
    ///
    /// # Errors
    /// [`CudaError::Launch`] if it was not accepted.
    fn multiply(&mut self, product: Product) -> Result<(), CudaError>;
    /// Makes a graph that does all of this in order; it is not done yet. Graphs live until [`Driver::forget_graphs`].
    ///
    /// # Errors
    /// [`CudaError::Launch`] if no graph can be made of it.
    fn graph(&mut self, work: &[Work]) -> Result<usize, CudaError>;
    /// Does what a graph was made of.
    ///
    /// # Errors
    /// [`CudaError::Launch`] if it was not accepted.
    fn replay(&mut self, graph: usize) -> Result<(), CudaError>;
    /// Gives up all graphs. Those that are under way are done.
    fn forget_graphs(&mut self);
    /// Waits for all that was asked for.
    ///
    /// # Errors
    /// [`CudaError::Lost`] if some of it went wrong.
    fn wait(&mut self) -> Result<(), CudaError>;
}

/// What can go wrong with a GPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// There is no GPU to use, or a library is missing.
    #[error("{0}")]
    Unavailable(String),
    /// The model does not fit the kernels.
    #[error("the CUDA kernels cannot run this model: {0}; use --device cpu")]
    Shape(String),
    /// Out of device memory, or of pinned host memory.
    #[error(
        "{bytes} bytes of {what} memory could not be allocated ({why}); choose fewer KV blocks"
    )]
    Memory {
        /// Bytes asked for.
        bytes: usize,
        /// `"device"` or `"pinned host"`.
        what: &'static str,
        /// What the driver said.
        why: String,
    },
    /// A kernel was not compiled.
    #[error("the kernels of {unit} could not be compiled for {arch}: {log}")]
    Compile {
        /// Source file.
        unit: String,
        /// Architecture.
        arch: String,
        /// What the compiler said.
        log: String,
    },
    /// A launch was not accepted; what was launched before is not affected.
    #[error("{kernel} could not be launched: {why}")]
    Launch {
        /// Which kernel.
        kernel: String,
        /// What the driver said.
        why: String,
    },
    /// A copy was not accepted.
    #[error("a copy could not be started: {0}")]
    Copy(String),
    /// Something that was accepted went wrong: nothing on the device can be used any more.
    #[error("{0}")]
    Lost(String),
}

impl From<CudaError> for StepError {
    fn from(error: CudaError) -> StepError {
        match error {
            CudaError::Lost(why) => StepError::DeviceLost(why),
            other => StepError::Failed(other.to_string()),
        }
    }
}
