//! Tests that the mock device does not check a block twice, unless the content of a checked block has changed.

use super::{Bench, PROMPT, known, local};
use crate::CopyDirection;
use crate::mock::Fingerprints;

/// Decodes sequence 1 on three blocks until the first two are full and checked by the mock device. Returns its output
/// tokens.
async fn decoded(bench: &mut Bench) -> Vec<u32> {
    let mut output = bench.sampled(&[1], vec![known(1, 0, &PROMPT, &[0, 1, 2], Some(0))]).await;
    for i in 1..4 {
        let slice = known(1, 5 + i, &output[i as usize - 1..], &[0, 1, 2], Some(i));
        output.extend(bench.sampled(&[], vec![slice]).await);
    }
    output
}

fn next(output: &[u32], table: &[u32]) -> crate::SeqSlice {
    let i = output.len() as u32;
    known(1, 5 + i, &output[output.len() - 1..], table, Some(i))
}

#[test]
fn a_block_overwritten_after_it_was_looked_at_is_noticed() {
    local(|| async {
        let mut bench = Bench::open(|options| options.fingerprints = Fingerprints::PerBlock);
        let output = decoded(&mut bench).await;
        bench.sampled(&[2], vec![known(2, 0, &PROMPT[..2], &[0], None)]).await;
        let why = bench.failed(&[], vec![next(&output, &[0, 1, 2])]).await;
        assert!(why.contains("d0, entry 0 of seq1"), "{why}");
    });
}

#[test]
fn a_copy_into_a_block_that_was_looked_at_is_noticed() {
    local(|| async {
        let mut bench = Bench::open(|options| options.fingerprints = Fingerprints::PerBlock);
        let output = decoded(&mut bench).await;
        let copy = bench.copy(CopyDirection::In, &[(1, 0)]).await.expect("an answer");
        assert!(copy.result.is_ok());
        let why = bench.failed(&[], vec![next(&output, &[0, 1, 2])]).await;
        assert!(why.contains("d1, entry 1 of seq1"), "{why}");
    });
}

#[test]
fn another_table_is_looked_at_from_where_it_differs() {
    local(|| async {
        let mut bench = Bench::open(|options| options.fingerprints = Fingerprints::PerBlock);
        let output = decoded(&mut bench).await;
        let why = bench.failed(&[], vec![next(&output, &[0, 5, 2])]).await;
        assert!(why.contains("d5, entry 1 of seq1"), "{why}");
        let why = bench.failed(&[], vec![next(&output, &[1, 0, 2])]).await;
        assert!(why.contains("d1, entry 0 of seq1"), "{why}");
        let right = bench.sampled(&[], vec![next(&output, &[0, 1, 2])]).await;
        assert_eq!(right, bench.oracle.output(&PROMPT, 5)[4..]);
    });
}
