//! Faults that tests ask of the emulated GPU.

/// A fault that the emulated GPU makes on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The driver refuses the kernel launch with this number, counted from 0.
    Launch(usize),
    /// The driver cannot make CUDA graphs.
    Graphs,
    /// The driver takes this many bytes of device memory for itself when the first kernel is launched, as a real driver
    /// does that loads kernels late.
    LateMemory(usize),
    /// The driver can pin only this many pieces of the host pool.
    Pinning(usize),
    /// The device is lost at the kernel launch with this number, counted from 0. The wait in which that launch runs
    /// reports the loss, and so do later calls.
    Lost(usize),
    /// The driver refuses the copy between device and host memory with this number, counted from 0.
    Copy(usize),
    /// The device is lost at the copy between device and host memory with this number, counted from 0.
    LostCopy(usize),
}
