//! Checks that the tokens sampled on the device are those that the host's sampler takes from the same logits, with and
//! without masks.

use crate::CheckError;
use crate::pair::{Pair, PairOptions, Setting, shape};
use crate::report::Report;
use std::sync::Arc;
use tiercel_device::mix::mix;
use tiercel_device::{MaskThreads, MaskWait, SamplingParams, TokenId, TokenMask};
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

/// Returns the mask for a row: half of the tokens of the first half of the vocabulary, one in 32 of all tokens, or a
/// single token.
fn mask(row: usize) -> TokenMask {
    let random = |at: usize| mix((row * VOCAB + at) as u64) as u32;
    let words = VOCAB.div_ceil(32);
    match row % 3 {
        0 => TokenMask::from_words((0..words / 2).map(random).collect()),
        1 => {
            let sparse = |at| (0..5).fold(u32::MAX, |word, part| word & random(at * 5 + part));
            TokenMask::from_words((0..words).map(sparse).collect())
        }
        _ => {
            let mut mask = TokenMask::none(VOCAB);
            mask.allow(random(0) % VOCAB as u32);
            mask
        }
    }
}

/// Checks sampling on the device over all sampling options, for equal logits, and for rows without a usable logit.
///
/// # Errors
/// [`CheckError`] if something could not be run at all.
pub fn check_sampling<D: Driver>(
    open: &dyn Fn() -> Result<D, CheckError>,
    report: &mut Report,
) -> Result<(), CheckError> {
    let setting = Setting { shape: shape(16, 2, 2), blocks: 1, options: PairOptions::default() };
    let mut pair = Pair::new(open()?, setting, 21)?;
    // Cube the random numbers, so that the logits spread enough for a few tokens to be much more likely than the rest.
    // The numbers are rounded to bf16, so that many logits are equal.
    let values: Vec<f32> = pair.numbers(ROWS * COLS, 2.0).iter().map(|v| v * v * v).collect();
    let mut logits = pair.cuda.tensor(ROWS, COLS, TensorUse::Logits)?;
    pair.cuda.write(&mut logits, &values)?;
    let masks: Vec<TokenMask> = (0..ROWS).map(mask).collect();
    for ((name, params), masked) in
        settings().into_iter().flat_map(|setting| [(setting.clone(), false), (setting, true)])
    {
        let what = format!("{name}{}", if masked { ", with masks" } else { "" });
        let mut sampler = Sampler::new(Arc::new(params), &[], VOCAB, &MaskThreads::default());
        // Sample the rows in descending order, so that a token's place in the results is not the number of its row. The
        // row also serves as number of the output token, which selects the random number.
        let draws: Vec<Draw<'_>> = (0..ROWS)
            .rev()
            .filter_map(|row| {
                let draw = sampler.draw_on_device(row, row as u32)?;
                Some(Draw { mask: masked.then_some(&masks[row]), ..draw })
            })
            .collect();
        let drawn = draw(&mut pair, &logits, &draws)?;
        // Sample the same rows again: the emulator executes threads in another order then, and the tokens must be the
        // same.
        let again = draw(&mut pair, &logits, &draws)?;
        report.holds(&format!("the same draws once more, {what}"), drawn == again);
        let mut same = 0;
        for (draw, token) in draws.iter().zip(&drawn) {
            let mut row = values[draw.row * COLS..(draw.row + 1) * COLS].to_vec();
            if let Some(mask) = draw.mask {
                mask.apply(&mut row);
            }
            let host = sampler.sample(&mut row, draw.row as u32, &MaskWait::endless());
            let host = host.ok().map(|sampled| sampled.token);
            same += usize::from(host.is_some() && host == *token);
        }
        let limit = if name == "greedy" { 0.0 } else { MOST_DIFFERENT };
        let different = 100.0 * (1.0 - same as f64 / ROWS as f64);
        report.at_most(&format!("draws unlike the host's, {what}"), different, limit, "%");
    }
    unusable(&mut pair, report)?;
    outside_masks(&mut pair, report)
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
        let draw = |row| Draw { temperature, top_k: 1, at: 0.999, ..Draw::greedy(row) };
        let draws: Vec<Draw<'_>> = (0..6).map(draw).collect();
        let drawn = self::draw(pair, &logits, &draws)?;
        let last = Some(VOCAB as u32 - 1);
        let expected = [Some(70), None, None, None, last, Some(0)];
        report.holds(&format!("ties and rows without usable logits, {name}"), drawn == expected);
    }
    // Sample a row whose logits are all equal with the smallest and with the largest random number: the results must be
    // the first and the last token of the vocabulary.
    let ends = [(0.0, 0), (1.0 - f64::EPSILON, VOCAB as u32 - 1)]
        .map(|(at, token)| (Draw { temperature: 1.0, at, ..Draw::greedy(5) }, Some(token)));
    // A step samples each row at most once, so two samples from one row take two steps.
    for (draw, token) in ends {
        let drawn = self::draw(pair, &logits, &[draw])?;
        report.holds("the ends of the weight", drawn == [token]);
    }
    Ok(())
}

/// Checks that unusable logits outside a mask do not matter, that a row without a usable logit inside its mask gives no
/// token, and that neither changes the row beside it.
fn outside_masks<D: Driver>(pair: &mut Pair<D>, report: &mut Report) -> Result<(), CheckError> {
    let mut rows = vec![vec![-1.0_f32; COLS]; 5];
    (rows[0][0], rows[0][31], rows[0][33], rows[0][VOCAB - 1]) =
        (f32::NAN, f32::INFINITY, 2.0, 9.0);
    (rows[1][64], rows[1][65]) = (f32::NEG_INFINITY, 9.0);
    (rows[2][7], rows[2][8]) = (f32::NAN, 9.0);
    (rows[3][7], rows[3][VOCAB - 1]) = (9.0, 5.0);
    rows[4][8] = 9.0;
    let allow = |tokens: &[usize]| {
        let mut mask = TokenMask::none(VOCAB);
        tokens.iter().for_each(|token| mask.allow(*token as TokenId));
        mask
    };
    let masks =
        [allow(&[32, 33, 95]), allow(&[64]), allow(&[6, 7]), allow(&[6, VOCAB - 1]), allow(&[])];
    let mut logits = pair.cuda.tensor(5, COLS, TensorUse::Logits)?;
    pair.cuda.write(&mut logits, &rows.concat())?;
    for (name, temperature) in [("greedy", 0.0), ("drawn", 0.1)] {
        let draw = |row| Draw { temperature, mask: Some(&masks[row]), ..Draw::greedy(row) };
        let draws: Vec<Draw<'_>> = (0..5).map(draw).collect();
        let expected = [Some(33), None, None, Some(VOCAB as u32 - 1), None];
        // In a second part of the step, the fourth row has no mask, and the masks of the others overwrite those of the
        // first part.
        let others =
            [4, 3, 0].map(|row| Draw { mask: draws[row].mask.filter(|_| row != 3), ..draws[row] });
        pair.cuda.draw_rows(&logits, VOCAB, 0, &draws);
        pair.cuda.draw_rows(&logits, VOCAB, 5, &others);
        pair.cuda.submit();
        let drawn: Vec<Option<TokenId>> =
            pair.cuda.finish()?.into_iter().map(|(_, token)| token).collect();
        let expected = [&expected[..], &[None, Some(7), Some(33)]].concat();
        report.holds(&format!("rows with and without masks, {name}"), drawn == expected);
    }
    Ok(())
}

/// Samples tokens from rows of logits on the device; returns them in the order of `draws`, `None` for rows without a
/// usable logit.
fn draw<D: Driver>(
    pair: &mut Pair<D>,
    logits: &CudaTensor,
    draws: &[Draw<'_>],
) -> Result<Vec<Option<TokenId>>, CheckError> {
    pair.cuda.draw_rows(logits, VOCAB, 0, draws);
    pair.cuda.submit();
    Ok(pair.cuda.finish()?.into_iter().map(|(_, token)| token).collect())
}
