//! Real devices: the op set that a model's forward pass is written against, and its implementations.

mod ops;

pub use ops::{AttentionShape, MatrixPart, OpError, Ops, SeqRows, SourceType, WeightFormat};
