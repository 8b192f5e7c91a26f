//! The tensors of one quantized matrix in a safetensors file: looked up by name, checked, and read number by number.

use crate::weights::WeightError;
use crate::weights::hf_dir::{FileTensor, HfDir};
use half::{bf16, f16};
use safetensors::tensor::Dtype;

/// Parts (tensors) of one module of a checkpoint; an example of a module is `model.layers.0.mlp.up_proj`.
pub(super) struct Parts<'a, 'n> {
    pub(super) dir: &'a HfDir,
    pub(super) module: &'n str,
}

/// Packed integers: words of 32 bits.
#[derive(Clone, Copy)]
pub(super) struct Words<'a>(&'a [u8]);

/// Scales in the encoding of the file.
#[derive(Clone, Copy)]
pub(super) struct Floats<'a> {
    dtype: Dtype,
    bytes: &'a [u8],
}

impl<'a> Parts<'a, '_> {
    pub(super) fn name(&self, part: &str) -> String {
        format!("{}.{part}", self.module)
    }

    /// Returns a tensor of the module; `None` if it is absent.
    pub(super) fn get(&self, part: &str) -> Result<Option<FileTensor<'a>>, WeightError> {
        self.dir.raw(&self.name(part))
    }

    /// Returns packed integers that must have the given shape.
    pub(super) fn words(&self, part: &str, shape: &[usize]) -> Result<Words<'a>, WeightError> {
        let found = self.get(part)?;
        match &found {
            Some(tensor) if tensor.dtype == Dtype::I32 && tensor.shape == shape => {
                Ok(Words(tensor.bytes))
            }
            _ => Err(self.wrong(part, found.as_ref(), format!("I32 {shape:?}"))),
        }
    }

    /// Returns scales that must have the given shape.
    pub(super) fn floats(&self, part: &str, shape: &[usize]) -> Result<Floats<'a>, WeightError> {
        let found = self.get(part)?;
        match &found {
            Some(tensor) if tensor.shape == shape && Floats::reads(tensor.dtype) => {
                Ok(Floats::new(tensor))
            }
            _ => Err(self.wrong(part, found.as_ref(), format!("F16, BF16 or F32 {shape:?}"))),
        }
    }

    /// Returns packed weights, with the two dimensions of their tensor; `None` if there are none.
    pub(super) fn packed(
        &self,
        part: &str,
    ) -> Result<Option<(Words<'a>, [usize; 2])>, WeightError> {
        let Some(tensor) = self.get(part)? else { return Ok(None) };
        match tensor.shape {
            &[rows, columns] if tensor.dtype == Dtype::I32 => {
                Ok(Some((Words(tensor.bytes), [rows, columns])))
            }
            _ => Err(self.wrong(part, Some(&tensor), "I32 with two dimensions".to_owned())),
        }
    }

    /// Returns the error for a part that is not as expected.
    pub(super) fn wrong(
        &self,
        part: &str,
        found: Option<&FileTensor<'_>>,
        expected: String,
    ) -> WeightError {
        let found = found
            .map_or("absent".to_owned(), |tensor| format!("{:?} {:?}", tensor.dtype, tensor.shape));
        WeightError::Quantized { name: self.name(part), found, expected }
    }
}

impl Words<'_> {
    /// Returns a word; `at` must be below the product of the tensor's dimensions.
    pub(super) fn at(self, at: usize) -> u32 {
        let bytes = &self.0[4 * at..4 * at + 4];
        u32::from_le_bytes(bytes.try_into().expect("the range has four bytes"))
    }
}

impl<'a> Floats<'a> {
    /// Whether scales of this type are read.
    pub(super) fn reads(dtype: Dtype) -> bool {
        matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16)
    }

    /// Returns the numbers of a tensor of a type that is read.
    pub(super) fn new(tensor: &FileTensor<'a>) -> Floats<'a> {
        Floats { dtype: tensor.dtype, bytes: tensor.bytes }
    }

    /// Returns a number; `at` must be below the product of the tensor's dimensions.
    pub(super) fn at(self, at: usize) -> f32 {
        let pair = || [self.bytes[2 * at], self.bytes[2 * at + 1]];
        match self.dtype {
            Dtype::F16 => f16::from_le_bytes(pair()).to_f32(),
            Dtype::BF16 => bf16::from_le_bytes(pair()).to_f32(),
            _ => {
                let bytes = &self.bytes[4 * at..4 * at + 4];
                f32::from_le_bytes(bytes.try_into().expect("the range has four bytes"))
            }
        }
    }
}
