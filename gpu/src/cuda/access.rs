//! Copies of GPU tensors from and to the host: logits for the host's sampler, and any tensor for checks.

use super::driver::{CudaError, Driver};
use super::memory::CudaTensor;
use super::ops::CudaOps;
use half::bf16;
use std::ops::Range;

impl<D: Driver> CudaOps<D> {
    /// Writes `values` from the host to the first rows of a GPU tensor, whose row count it sets to the number of rows
    /// written; for checks.
    ///
    /// # Errors
    /// [`CudaError`] of the device.
    pub fn write(&mut self, tensor: &mut CudaTensor, values: &[f32]) -> Result<(), CudaError> {
        tensor.set_rows(values.len() / tensor.cols);
        let bytes: Vec<u8> = match tensor.wide {
            true => values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
            false => values.iter().flat_map(|v| bf16::from_f32(*v).to_ne_bytes()).collect(),
        };
        self.driver.upload(tensor.at, &bytes)
    }

    /// Reads all rows in use of a GPU tensor to the host, for checks.
    ///
    /// # Errors
    /// [`CudaError`] of the device, or of an earlier launch.
    pub fn read(&mut self, tensor: &CudaTensor) -> Result<Vec<f32>, CudaError> {
        self.read_rows(tensor, 0..tensor.rows)
    }

    pub(super) fn read_rows(
        &mut self,
        tensor: &CudaTensor,
        rows: Range<usize>,
    ) -> Result<Vec<f32>, CudaError> {
        assert!(rows.end <= tensor.rows, "rows {rows:?} of {}", tensor.rows);
        assert!(self.graphs.is_plain(), "a step that is drawn from by the device is not read");
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let mut bytes = vec![0; rows.len() * tensor.row_bytes()];
        let from = tensor.at.offset(rows.start * tensor.row_bytes());
        self.driver.download(from, &mut bytes)?;
        Ok(match tensor.wide {
            true => {
                let values = bytes.chunks_exact(4);
                values.map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
            }
            false => {
                let values = bytes.chunks_exact(2);
                values.map(|b| bf16::from_ne_bytes([b[0], b[1]]).to_f32()).collect()
            }
        })
    }
}
