//! Checks that the tokens sampled on the device are those that the host's sampler takes from the same logits.

use crate::CheckError;
use crate::pair::{Pair, Setting, shape};
use crate::report::Report;
use std::sync::Arc;
use tiercel_device::{MaskThreads, SamplingParams, TokenId};
use tiercel_gpu::cuda::{CudaTensor, Driver};
use tiercel_gpu::{Draw, Ops, TensorUse};
use tiercel_model::sampling::Sampler;

/// Columns of the logits matrix. The first `VOCAB` columns are tokens; the rest is padding.
const COLS: usize = 3008;
const VOCAB: usize = 3001;
const ROWS: usize = 48;
/// Maximum share of sampled tokens in which device and host may differ, percent, unless sampling is greedy, where none
/// may. If the random number falls on the edge between two tokens, the last bit of a token's weight decides.
const MOST_DIFFERENT: f64 = 3.0;

fn settings() -> [(&'static str, SamplingParams); 8] {
    let plain = SamplingParams { temperature: 0.8, seed: 11, ..SamplingParams::default() };
    [
        ("greedy", SamplingParams::greedy()),
        ("temperature", plain.clone()),
        ("top-k", SamplingParams { top_k: 7, ..plain.clone() }),
        ("top-p", SamplingParams { top_p: 0.7, ..plain.clone() }),
        ("min-p", SamplingParams { min_p: 0.1, ..plain.clone() }),
        ("top-k and top-p", SamplingParams { top_k: 40, top_p: 0.9, ..plain.clone() }),
        ("all of it", SamplingParams { top_k: 100, top_p: 0.95, min_p: 0.02, ..plain.clone() }),
        ("a small top-p, very hot", SamplingParams { top_p: 0.01, temperature: 50.0, ..plain }),
    ]
}

/// Checks sampling on the device over all sampling options, for equal logits, and for rows without a usable logit.
///
/// # Errors
/// [`CheckError`] if something could not be run at all.
pub fn check_sampling<D: Driver>(
    open: &dyn Fn() -> Result<D, CheckError>,
    report: &mut Report,
) -> Result<(), CheckError> {
    let setting = Setting { shape: shape(16, 2, 2), blocks: 1, block_size: 16, exact: false };
    let mut pair = Pair::new(open()?, setting, 21)?;
    // Cube the random numbers, so that the logits spread enough for a few tokens to be much more likely than the rest.
    // The numbers are rounded to bf16, so that many logits are equal.
    let values: Vec<f32> = pair.numbers(ROWS * COLS, 2.0).iter().map(|v| v * v * v).collect();
    let mut logits = pair.cuda.tensor(ROWS, COLS, TensorUse::Logits)?;
    pair.cuda.write(&mut logits, &values)?;
    for (name, params) in settings() {
        let mut sampler = Sampler::new(Arc::new(params), &[], VOCAB, &MaskThreads::default());
        // Sample the rows in descending order, so that a token's place in the results is not the number of its row. The
        // row also serves as number of the output token, which selects the random number.
        let draws: Vec<Draw> =
            (0..ROWS).rev().filter_map(|row| sampler.draw_on_device(row, row as u32)).collect();
        let drawn = draw(&mut pair, &logits, &draws)?;
        // Sample the same rows again: the emulator executes threads in another order then, and the tokens must be the
        // same.
        let again = draw(&mut pair, &logits, &draws)?;
        report.holds(&format!("the same draws once more, {name}"), drawn == again);
        let mut same = 0;
        for (draw, token) in draws.iter().zip(&drawn) {
            let mut row = values[draw.row * COLS..(draw.row + 1) * COLS].to_vec();
            let host = sampler.sample(&mut row, draw.row as u32).ok().map(|sampled| sampled.token);
            same += usize::from(host.is_some() && host == *token);
        }
        let limit = if name == "greedy" { 0.0 } else { MOST_DIFFERENT };
        let different = 100.0 * (1.0 - same as f64 / ROWS as f64);
        report.at_most(&format!("draws unlike the host's, {name}"), different, limit, "%");
    }
    unusable(&mut pair, report)
}

/// Checks that among equal logits the lowest token id wins, that no token is sampled from a row with NaN, with
/// +infinity, or without a finite logit, and that padding columns are ignored.
fn unusable<D: Driver>(pair: &mut Pair<D>, report: &mut Report) -> Result<(), CheckError> {
    let mut rows = vec![vec![-1.0_f32; COLS]; 6];
    (rows[0][900], rows[0][70], rows[0][COLS - 1]) = (2.0, 2.0, 9.0);
    rows[1][5] = f32::NAN;
    rows[2][VOCAB - 1] = f32::INFINITY;
    rows[3] = vec![f32::NEG_INFINITY; COLS];
    rows[4] = vec![f32::NEG_INFINITY; COLS];
    rows[4][VOCAB - 1] = -3e38;
    rows[5][VOCAB] = f32::NAN;
    let mut logits = pair.cuda.tensor(6, COLS, TensorUse::Logits)?;
    pair.cuda.write(&mut logits, &rows.concat())?;
    for (name, temperature) in [("greedy", 0.0), ("drawn", 1.0)] {
        let draw = |row| Draw { row, temperature, top_k: 1, top_p: 1.0, min_p: 0.0, at: 0.999 };
        let draws: Vec<Draw> = (0..6).map(draw).collect();
        let drawn = self::draw(pair, &logits, &draws)?;
        let last = Some(VOCAB as u32 - 1);
        let expected = [Some(70), None, None, None, last, Some(0)];
        report.holds(&format!("ties and rows without usable logits, {name}"), drawn == expected);
    }
    // Sample a row whose logits are all equal with the smallest and with the largest random number: the results must be
    // the first and the last token of the vocabulary.
    let ends = [(0.0, 0), (1.0 - f64::EPSILON, VOCAB as u32 - 1)].map(|(at, token)| {
        (Draw { row: 5, temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, at }, Some(token))
    });
    // A step samples each row at most once, so two samples from one row take two steps.
    for (draw, token) in ends {
        let drawn = self::draw(pair, &logits, &[draw])?;
        report.holds("the ends of the weight", drawn == [token]);
    }
    Ok(())
}

/// Samples tokens from rows of logits on the device; returns them in the order of `draws`, `None` for rows without a
/// usable logit.
fn draw<D: Driver>(
    pair: &mut Pair<D>,
    logits: &CudaTensor,
    draws: &[Draw],
) -> Result<Vec<Option<TokenId>>, CheckError> {
    pair.cuda.draw_rows(logits, VOCAB, 0, draws);
    pair.cuda.submit();
    Ok(pair.cuda.finish()?.into_iter().map(|(_, token)| token).collect())
}
