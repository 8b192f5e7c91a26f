//! Random step requests for the block store, and checks that every answer must pass.

use crate::content::Draws;
use crate::world::{Phase, Seq, Slice, Step, World};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tiercel_device::{Epoch, SeqId, StepId, Ticket};
use tiercel_policy::{
    Grant, GrantOutcome, PreemptOutcome, Release, ResumeCosts, StepGrant, StepRequest, Victim,
    Want, WantKind,
};

impl World {
    /// Plans a step for a random part of the sequences; older sequences are served before younger ones.
    pub(crate) fn plan(&mut self, draws: &mut Draws) {
        if self.in_flight.len() >= 2 {
            return;
        }
        self.last_step += 1;
        self.finish(draws);
        let victims = self.victims(draws);
        let wants: Vec<Want> = {
            let willing = self.seqs.values().filter(|_| draws.percent(70)).collect::<Vec<_>>();
            willing.into_iter().filter_map(|seq| self.want(seq, &victims, draws)).collect()
        };
        let request = StepRequest {
            step: StepId(self.last_step),
            completed_step: StepId(self.completed),
            progress: std::mem::take(&mut self.progress),
            released: std::mem::take(&mut self.released),
            wants,
            victims,
            costs: draws
                .pick(&[
                    ResumeCosts { copy_us: 200.0, first_block_us: 1600.0, block_before_us: 8.0 },
                    ResumeCosts { copy_us: 200.0, first_block_us: 150.0, block_before_us: 60.0 },
                ])
                .expect("there are two"),
            victims_by_cost: draws.percent(30),
            resumes_by_cost: draws.percent(50),
            release: draws
                .pick(&[
                    Release::All,
                    Release::Unshared,
                    Release::Needed { unit: 1 },
                    Release::Needed { unit: 3 },
                ])
                .expect("there are four"),
            mirror: if draws.percent(40) { draws.below(5) as u32 } else { 0 },
            mirrors: true,
            lends: draws.percent(50),
        };
        let grant = self.store.reserve(&request);
        assert_eq!(grant.free_blocks, self.store.snapshot().device.free);
        self.apply(&request, &grant);
    }

    /// Ends most of the sequences that have no token left to compute.
    fn finish(&mut self, draws: &mut Draws) {
        let done = |seq: &&Seq| seq.phase == Phase::Running && seq.computed == seq.last;
        let ended: Vec<SeqId> = self.seqs.values().filter(done).map(|seq| seq.id).collect();
        for id in ended {
            if draws.percent(80) {
                self.cancel(id, false);
            }
        }
    }

    /// Returns a random part of the sequences that hold blocks as victims, youngest first.
    fn victims(&mut self, draws: &mut Draws) -> Vec<Victim> {
        let (taking, swapping) = (draws.below(101), draws.below(101));
        let mut victims = Vec::new();
        for seq in self.seqs.values_mut().rev() {
            let holds =
                seq.phase == Phase::Running || (seq.phase == Phase::Waiting && seq.retained > 0);
            if holds && draws.percent(taking) {
                let ticket = Ticket { seq: seq.id, epoch: Epoch(seq.epoch + 1) };
                victims.push(Victim {
                    ticket,
                    swap: draws.percent(swapping),
                    spared: false,
                    group: 0,
                });
            }
        }
        victims
    }

    fn want(&self, seq: &Seq, victims: &[Victim], draws: &mut Draws) -> Option<Want> {
        let worse = victims.iter().take_while(|victim| victim.ticket.seq > seq.id).count() as u32;
        // Length to plan for: if the steps in flight compute all known tokens of the sequence, the last of them also
        // samples a token, which counts too.
        let len = (seq.known + u32::from(seq.planned == seq.known)).min(seq.last);
        let chunk = 1 + draws.below(u64::from(self.config.block_size) * 4) as u32;
        let (kind, ticket, new_tokens) = match seq.phase {
            Phase::Running if seq.planned < len => {
                (WantKind::Grow, seq.ticket(), seq.planned - seq.computed + chunk)
            }
            Phase::Waiting => {
                let full = ((seq.known - 1) / self.config.block_size) as usize;
                let kind = WantKind::Open {
                    hashes: seq.hashes[..full].into(),
                    keep_free: draws.below(2) as u32,
                    must_fit: if draws.percent(30) { seq.known } else { 0 },
                    own_only: draws.percent(20),
                };
                (kind, Ticket { seq: seq.id, epoch: Epoch(seq.epoch + 1) }, chunk)
            }
            _ => return None,
        };
        let reserve = if draws.percent(10) { seq.last } else { 0 };
        let kept_for_others = if draws.percent(10) { draws.below(3) as u32 } else { 0 };
        let max_victims = worse;
        Some(Want { ticket, len, new_tokens, reserve, kept_for_others, kind, max_victims })
    }

    fn apply(&mut self, request: &StepRequest, grant: &StepGrant) {
        for taken in &grant.preempted {
            let listed = request.victims.iter().any(|victim| victim.ticket == taken.ticket);
            assert!(listed, "{} was preempted unasked", taken.ticket);
            self.preempted(taken.ticket, taken.outcome);
        }
        let taken: BTreeSet<SeqId> = grant.preempted.iter().map(|p| p.ticket.seq).collect();
        assert_eq!(taken.len(), grant.preempted.len(), "each is heard of once");
        let asked = request.wants.iter().filter(|want| !taken.contains(&want.ticket.seq));
        let asked: Vec<&Want> = asked.collect();
        assert_eq!(asked.len(), grant.grants.len(), "one answer per want");
        let slices: Vec<Slice> = asked
            .into_iter()
            .zip(&grant.grants)
            .filter_map(|(want, grant)| self.granted(want, grant))
            .collect();
        self.assert_owners(&slices);
        self.in_flight.push_back(Step { id: grant.step, slices });
    }

    fn preempted(&mut self, ticket: Ticket, outcome: PreemptOutcome) {
        let seq = self.seqs.get_mut(&ticket.seq).expect("victims live");
        let had = (seq.phase == Phase::Waiting).then_some(seq.retained);
        assert!(had.is_some_and(|retained| retained > 0) || seq.phase == Phase::Running);
        seq.epoch = ticket.epoch.0;
        match outcome {
            PreemptOutcome::Freed { on_host, retained, .. } => {
                assert!(had.is_none_or(|had| retained < had), "{} gave nothing", ticket.seq);
                self.park(ticket.seq, retained);
                self.count(match (had, on_host) {
                    (Some(_), _) => "gave more",
                    (None, 0) => "freed",
                    (None, _) => "freed, on host",
                });
            }
            PreemptOutcome::Copying { blocks, retained } => {
                assert!(blocks > 0 && had.is_none());
                seq.retained = retained;
                seq.phase = Phase::Preempting { copied: false };
                self.count("prepared with copies");
            }
        }
    }

    fn granted(&mut self, want: &Want, grant: &Grant) -> Option<Slice> {
        assert_eq!(grant.ticket, want.ticket);
        let opens = matches!(want.kind, WantKind::Open { .. });
        let id = want.ticket.seq;
        let (computed, cover) = match &grant.outcome {
            GrantOutcome::Denied { pending_blocks } => {
                self.count(if *pending_blocks > 0 { "denied, pending" } else { "denied" });
                return None;
            }
            GrantOutcome::Copying { blocks } => {
                assert!(opens && *blocks > 0);
                self.count("opened with copies");
                let seq = self.seqs.get_mut(&id).expect("it lives");
                (seq.phase, seq.epoch) = (Phase::Opening, want.ticket.epoch.0);
                (seq.retained, seq.table) = (0, Arc::new([]));
                seq.life += 1;
                return None;
            }
            GrantOutcome::Run { computed, cover, table } => {
                let seq = self.seqs.get_mut(&id).expect("it lives");
                if let Some(table) = table {
                    seq.table = Arc::clone(table);
                }
                (*computed, *cover)
            }
        };
        let seq = self.seqs.get_mut(&id).expect("it lives");
        if opens {
            (seq.phase, seq.epoch, seq.retained) = (Phase::Running, want.ticket.epoch.0, 0);
            seq.life += 1;
            (seq.computed, seq.planned) = (computed, computed);
        }
        let shares = opens && computed > 0;
        assert_eq!(computed, seq.computed, "valid tokens of {id}");
        assert_eq!(cover, want.len.min(computed + want.new_tokens));
        assert!(seq.table.len() as u32 * self.config.block_size >= cover);
        assert!(computed < want.len, "the last token is always computed");
        let first = seq.planned;
        seq.planned = seq.planned.max(cover);
        let slice =
            Slice { seq: id, life: seq.life, first, end: cover, table: Arc::clone(&seq.table) };
        self.assert_prefix(id, computed, &slice.table, "a grant names");
        self.count(if shares { "opened with a prefix" } else { "granted" });
        (slice.first < slice.end).then_some(slice)
    }

    /// Asserts that each block that a step writes belongs to one sequence only, and that no running copy uses the
    /// block.
    fn assert_owners(&self, slices: &[Slice]) {
        let block_size = self.config.block_size;
        let mut holders: BTreeMap<u32, BTreeSet<SeqId>> = BTreeMap::new();
        for seq in self.seqs.values() {
            for block in seq.table.iter() {
                holders.entry(block.0).or_default().insert(seq.id);
            }
        }
        for slice in slices {
            let (first, end) = (slice.first / block_size, slice.end.div_ceil(block_size));
            for block in &slice.table[first as usize..end as usize] {
                let who = &holders[&block.0];
                assert!(who.len() == 1, "{} writes {block}, held by {who:?}", slice.seq);
                for (batch, _) in self.copies.values() {
                    let touched = batch.pairs.iter().any(|pair| pair.device == *block);
                    assert!(!touched, "{} may write {block} during {}", slice.seq, batch.id);
                }
            }
        }
    }
}
