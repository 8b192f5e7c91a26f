//! A tensor as a checkpoint stores it: plain or quantized.

use super::WeightError;
use super::quantized::Quantized;
use std::borrow::Cow;
use tiercel_gpu::{QuantizedPart, SourceType, WeightFormat, cuda};

/// A tensor as a checkpoint stores it: shape and content.
pub(crate) struct Stored<'a> {
    /// Dimensions of the tensor, outermost first; of a quantized matrix, the dimensions of the decoded matrix.
    pub(crate) shape: Vec<usize>,
    pub(crate) content: Content<'a>,
}

/// Content of a stored tensor.
pub(crate) enum Content<'a> {
    /// Bytes of one tensor of the file, in an encoding that devices read.
    Encoded(SourceType, &'a [u8]),
    /// Several tensors of the file, which are rearranged for a GPU or decoded to floats when the matrix is loaded.
    Quantized(Quantized<'a>),
}

impl<'a> Stored<'a> {
    /// Returns the encoding of [`Stored::bytes`]. A quantized matrix is decoded to bf16 for the formats `Auto` and
    /// `Bf16`, and to f32 for all others: bf16 would round weights that are then rounded to 8 bits.
    pub(crate) fn source(&self, format: WeightFormat) -> SourceType {
        match (&self.content, format) {
            (Content::Encoded(source, _), _) => *source,
            (Content::Quantized(_), WeightFormat::Auto | WeightFormat::Bf16) => SourceType::Bf16,
            (Content::Quantized(_), _) => SourceType::F32,
        }
    }

    /// Whether the tensor is a matrix that is quantized by the method of a Hugging Face checkpoint.
    pub(crate) fn is_quantized(&self) -> bool {
        matches!(self.content, Content::Quantized(_))
    }

    /// Returns the matrix in the form in which a GPU holds it quantized; `None` if the tensor is not quantized by the
    /// method of a Hugging Face checkpoint, or if a GPU holds it decoded.
    pub(crate) fn held(&self) -> Option<QuantizedPart> {
        match &self.content {
            Content::Encoded(..) => None,
            Content::Quantized(matrix) => matrix.held(),
        }
    }

    /// Returns the size of the matrix in the memory of a GPU, bytes. If some scales of a matrix of integers have many
    /// bits, the matrix takes more.
    pub(crate) fn cuda_bytes(&self, [n, k]: [usize; 2], format: WeightFormat) -> u64 {
        match &self.content {
            Content::Encoded(source, _) => cuda::held_bytes(n, k, *source, format),
            Content::Quantized(matrix) => {
                let shape = matrix.held_shape().filter(|_| format == WeightFormat::Auto);
                shape.map_or(n * k * 2, |shape| shape.bytes()) as u64
            }
        }
    }

    /// Returns whether all bytes of the tensor are zero. `false` for a quantized matrix.
    pub(crate) fn is_zero(&self) -> bool {
        matches!(self.content, Content::Encoded(_, bytes) if bytes.iter().all(|&byte| byte == 0))
    }

    /// Returns the tensor in the encoding [`Stored::source`], row by row. A quantized matrix is decoded at each call.
    ///
    /// # Errors
    /// [`WeightError::Quantized`] if the numbers of a quantized matrix contradict each other.
    pub(crate) fn bytes(&self, format: WeightFormat) -> Result<Cow<'a, [u8]>, WeightError> {
        match &self.content {
            Content::Encoded(_, bytes) => Ok(Cow::Borrowed(bytes)),
            Content::Quantized(matrix) => {
                let bf16 = self.source(format) == SourceType::Bf16;
                Ok(Cow::Owned(matrix.decode(bf16)?))
            }
        }
    }
}
