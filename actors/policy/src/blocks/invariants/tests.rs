//! Tests that the check of the block store's invariants finds a store whose parts disagree.

use super::*;
use crate::blocks::StoreConfig;
use crate::{Progress, StepRequest, Victim, Want, WantKind};
use std::sync::Arc;
use tiercel_device::{Epoch, StepId, Ticket};

/// Number of tokens in a block, and number of blocks in each pool.
const SIZE: u32 = 4;
const BLOCKS: u32 = 8;

fn ticket(seq: u64, epoch: u32) -> Ticket {
    Ticket { seq: SeqId(seq), epoch: Epoch(epoch) }
}

/// Returns the names of the two full blocks of the text number `text`.
fn names(text: u8) -> Vec<BlockHash> {
    vec![BlockHash([text; 16]), BlockHash([text + 100; 16])]
}

/// Returns a request to open a sequence that is `tokens` tokens long, computes `new_tokens` of them and must find room
/// for `must_fit`.
fn open(seq: u64, (tokens, new_tokens, must_fit): (u32, u32, u32), victims: u32) -> Want {
    let kind = WantKind::Open { hashes: Arc::from([]), keep_free: 0, must_fit, own_only: false };
    Want {
        ticket: ticket(seq, 0),
        len: tokens,
        new_tokens,
        reserve: 0,
        kept_for_others: 0,
        kind,
        max_victims: victims,
    }
}

/// Returns a store in which each of the sequences 1 to `sequences` runs with two full blocks of the text of its own
/// number.
fn running(sequences: u8) -> BlockStore {
    let mut store = BlockStore::new(StoreConfig {
        block_size: SIZE,
        device_blocks: BLOCKS,
        host_blocks: BLOCKS,
        max_copy_blocks_in_transit: 4,
        max_copy_blocks_per_batch: 4,
    });
    for text in 1..=sequences {
        let seq = u64::from(text);
        let wants = vec![open(seq, (2 * SIZE, 2 * SIZE, 0), 0)];
        store.reserve(&StepRequest { step: StepId(seq), wants, ..StepRequest::default() });
        let hashes = names(text);
        store.advance(&Progress { seq: SeqId(seq), computed: 2 * SIZE, hashes });
    }
    store.check().expect("the store is sound");
    store
}

/// Returns a store in which the sequence 1 was preempted, and its two blocks are pinned on the host.
fn swapped_out() -> BlockStore {
    let mut store = running(1);
    let all = BLOCKS * SIZE;
    store.reserve(&StepRequest {
        step: StepId(50),
        completed_step: StepId(49),
        wants: vec![open(9, (all, 0, all), 1)],
        victims: vec![Victim { ticket: ticket(1, 1), swap: true, spared: false, group: 0 }],
        ..StepRequest::default()
    });
    for batch in store.take_copies() {
        store.copy_done(batch.id, true);
    }
    assert!(store.commit_preempt(ticket(1, 1)));
    store.check().expect("the store is sound");
    assert_eq!(sequence(&mut store, 1).pins.len(), 2);
    store
}

fn sequence(store: &mut BlockStore, seq: u64) -> &mut Sequence {
    store.sequences.get_mut(SeqId(seq)).expect("the store knows the sequence")
}

/// Checks that the check of the store finds a violation whose text contains `what`.
fn assert_violation(store: &BlockStore, what: &str) {
    let Violation(violation) = store.check().expect_err(what);
    assert!(violation.contains(what), "{violation}");
}

#[test]
fn references_are_as_many_as_holders() {
    let mut store = running(1);
    let block = sequence(&mut store, 1).table[0];
    store.device.slots[block.0 as usize].refs += 1;
    assert_violation(&store, &format!("device {}: 2 references, 1 holders", block.0));
    let mut store = running(1);
    store.host.slots[3].in_transit = true;
    assert_violation(&store, "host 3: transit mark is wrong");
    let mut store = running(1);
    store.device.empty.pop_front();
    assert_violation(&store, "free list is wrong");
}

#[test]
fn valid_tokens_are_in_blocks_and_full_blocks_in_valid_tokens() {
    let mut store = running(1);
    sequence(&mut store, 1).computed = 2 * SIZE + 1;
    assert_violation(&store, "has more valid tokens than its table covers");
    let mut store = running(1);
    sequence(&mut store, 1).computed = 2 * SIZE - 1;
    assert_violation(&store, "has names for blocks that are not full");
}

#[test]
fn a_running_sequence_waits_for_no_copy_and_has_no_pins() {
    let mut store = running(1);
    sequence(&mut store, 1).waits.push(99);
    assert_violation(&store, "runs with pins or copies");
    let mut store = running(1);
    sequence(&mut store, 1).pins.push(Pin { depth: 0, host: 0 });
    // The check of the whole store would first find that the host pool does not count the pin.
    let seq = store.sequences.get(SeqId(1)).expect("it runs");
    let Violation(violation) = store.check_sequence(SeqId(1), seq).expect_err("a pin");
    assert!(violation.contains("runs with pins or copies"), "{violation}");
}

#[test]
fn a_named_block_is_at_the_position_in_its_name() {
    let mut store = running(1);
    let block = sequence(&mut store, 1).table[1];
    let name = store.device.slots[block.0 as usize].name.as_mut().expect("the block is full");
    name.depth = 0;
    assert_violation(&store, "does not hold what entry 1 of");
}

#[test]
fn pins_are_in_order_and_hold_what_they_are_for() {
    let mut store = swapped_out();
    sequence(&mut store, 1).pins[1].depth = 0;
    assert_violation(&store, "are out of order");
    let mut store = swapped_out();
    let pins = &mut sequence(&mut store, 1).pins;
    (pins[0].host, pins[1].host) = (pins[1].host, pins[0].host);
    assert_violation(&store, "holds other content");
}

/// Returns whether a store passes the check of shared blocks in which the sequences 1 and 2 have the tables and the
/// block names that `change` makes of theirs. Before that, they share nothing.
fn may_share(change: impl FnOnce(&mut [(Vec<u32>, Vec<BlockHash>); 2])) -> bool {
    let mut store = running(2);
    let mut both = [1, 2].map(|seq| {
        let sequence = sequence(&mut store, seq);
        let table: Vec<u32> = sequence.table.iter().map(|block| block.0).collect();
        (table, sequence.names.clone())
    });
    change(&mut both);
    for (seq, (table, names)) in [1, 2].into_iter().zip(both) {
        let sequence = sequence(&mut store, seq);
        sequence.table = table.into_iter().map(tiercel_device::BlockId).collect();
        sequence.names = names;
    }
    store.check_shared_entries().is_ok()
}

#[test]
fn a_shared_block_is_one_named_block_at_one_position() {
    assert!(may_share(|_| ()));
    assert!(may_share(|[one, two]| (two.0[0], two.1[0]) = (one.0[0], one.1[0])));
    assert!(!may_share(|[one, two]| two.0[0] = one.0[0]), "two names");
    assert!(!may_share(|[one, two]| (two.0[1], two.1[1]) = (one.0[0], one.1[0])), "two positions");
    let nameless = |[one, two]: &mut [(Vec<u32>, Vec<BlockHash>); 2]| {
        two.0[0] = one.0[0];
        one.1.clear();
        two.1.clear();
    };
    assert!(!may_share(nameless), "no name");
}

#[test]
fn a_sequence_waits_only_for_copies_that_know_of_it() {
    let mut store = running(1);
    sequence(&mut store, 1).waits.push(99);
    let Violation(violation) = store.check_transfers().expect_err("there is no copy");
    assert!(violation.ends_with("waits for copy 99 for ever"), "{violation}");
}
