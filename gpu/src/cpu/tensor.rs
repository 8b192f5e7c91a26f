//! Activations, bias and norm vectors, and rotary tables in CPU memory.

/// Activations `[rows, cols]` in f32, row-major, with room for a fixed number of rows.
#[derive(Debug, Clone)]
pub struct Tensor {
    data: Vec<f32>,
    max_rows: usize,
    rows: usize,
    cols: usize,
}

impl Tensor {
    pub(crate) fn new(max_rows: usize, cols: usize) -> Tensor {
        assert!(cols > 0, "a tensor without columns");
        Tensor { data: vec![0.0; max_rows * cols], max_rows, rows: 0, cols }
    }

    /// Returns the number of rows of the tensor that are in use, at most its row capacity.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of the tensor's columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the values of all tensor rows in use, one row after the other.
    pub fn values(&self) -> &[f32] {
        &self.data[..self.rows * self.cols]
    }

    /// Returns the values of all tensor rows in use, one row after the other, for writing.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.data[..self.rows * self.cols]
    }

    /// Returns the values of the tensor's row `row`, which must be in use.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values()[row * self.cols..(row + 1) * self.cols]
    }

    /// Sets the number of rows of the tensor that are in use. The values in the rows stay unchanged.
    ///
    /// # Panics
    /// If `rows` exceeds the row capacity of the tensor.
    pub fn set_rows(&mut self, rows: usize) {
        assert!(rows <= self.max_rows, "{rows} rows in a tensor for {}", self.max_rows);
        self.rows = rows;
    }
}

/// Vector of parameters in CPU memory: a bias or the weights of a norm.
#[derive(Debug, Clone)]
pub struct Vector {
    pub(crate) values: Vec<f32>,
}

/// Rotary table (RoPE): cosines and sines by position, `[position][head_dim / 2]`.
#[derive(Debug, Clone)]
pub struct Rope {
    pub(crate) half: usize,
    pub(crate) positions: usize,
    pub(crate) cos: Vec<f32>,
    pub(crate) sin: Vec<f32>,
}

impl Rope {
    /// Computes the rotary table. The angles are computed in f32, as the reference implementations do, and their
    /// cosines and sines in f64.
    pub(crate) fn new(inv_freq: &[f32], attention_factor: f32, positions: usize) -> Rope {
        let half = inv_freq.len();
        let angles = || (0..positions).flat_map(|p| inv_freq.iter().map(move |f| p as f32 * f));
        let scaled = |value: f64| value as f32 * attention_factor;
        Rope {
            half,
            positions,
            cos: angles().map(|angle| scaled(f64::from(angle).cos())).collect(),
            sin: angles().map(|angle| scaled(f64::from(angle).sin())).collect(),
        }
    }

    /// Returns the cosines and the sines of the rotary table for a position.
    pub(crate) fn at(&self, position: usize) -> (&[f32], &[f32]) {
        assert!(position < self.positions, "position {position} of {}", self.positions);
        let range = position * self.half..(position + 1) * self.half;
        (&self.cos[range.clone()], &self.sin[range])
    }
}
