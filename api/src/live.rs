//! Live requests of the server: the ids that clients know, and the sequences that the engine knows.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tiercel_device::{SeqId, Tier};
use tiercel_policy::blocks::Salt;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Most requests that are looked up while other threads wait for the index. The thread that looks them up may have a
/// lower priority than the others.
const FOUND_AT_ONCE: usize = 256;

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct LiveRequest {
    /// Id in the response, such as `chatcmpl-...`; unique.
    pub(crate) id: String,
    /// Id that the client gave the request (`X-Request-Id`), or that the server made; need not be unique.
    pub(crate) request_id: Arc<str>,
    /// Name of the API key of the client.
    pub(crate) key: Arc<str>,
    /// Name of the client's tenant.
    pub(crate) tenant: Arc<str>,
    /// Salt of the client's tenant.
    pub(crate) salt: Salt,
    /// Sequences of the request's choices, in order.
    pub(crate) sequences: Vec<SeqId>,
    /// Tier that the request is in now, as the index of the tier.
    pub(crate) tier: AtomicU8,
}

impl LiveRequest {
    /// Makes a request of a tier, for tests.
    #[cfg(test)]
    pub(crate) fn of_tier(tier: Tier) -> LiveRequest {
        LiveRequest {
            id: "chatcmpl-1".into(),
            request_id: "req-1".into(),
            key: "key".into(),
            tenant: "tenant".into(),
            salt: Salt([0; 16]),
            sequences: Vec::new(),
            tier: AtomicU8::new(tier.index() as u8),
        }
    }

    /// Returns the tier that the request is in now.
    pub(crate) fn tier(&self) -> Tier {
        Tier::ALL[usize::from(self.tier.load(Ordering::Relaxed))]
    }

    /// Records that an operator moved the request to another tier.
    pub(crate) fn set_tier(&self, tier: Tier) {
        self.tier.store(tier.index() as u8, Ordering::Relaxed);
    }
}

/// All live requests. Their number is limited by the engine's permits.
#[derive(Debug, Default)]
pub(crate) struct LiveRequests {
    index: Mutex<Index>,
    /// Read by each request from its submission to its entry in the index.
    submitting: RwLock<()>,
}

/// Live requests, by all that clients and operators name them by.
#[derive(Debug, Default)]
struct Index {
    /// Live requests by each sequence of theirs.
    by_seq: HashMap<SeqId, Arc<LiveRequest>>,
    /// Both ids of each request, with the request's first sequence, because clients may give several requests one id.
    names: BTreeSet<(Arc<str>, SeqId)>,
}

/// Returns the entries of a request in [`Index::names`].
fn names(request: &LiveRequest) -> impl Iterator<Item = (Arc<str>, SeqId)> {
    let first = request.sequences.first().copied();
    let ids = [Arc::from(request.id.as_str()), request.request_id.clone()];
    ids.into_iter().filter_map(move |id| Some((id, first?)))
}

/// Entry of a live request, which is removed when this value is dropped.
pub(crate) struct Listed {
    requests: Arc<LiveRequests>,
    request: Arc<LiveRequest>,
}

impl Listed {
    /// Returns the request of this entry.
    pub(crate) fn request(&self) -> Arc<LiveRequest> {
        self.request.clone()
    }
}

impl LiveRequests {
    /// Returns a guard that a request holds from before its submission to the engine until the request has entered.
    /// Waits while another caller holds requests back, which takes that caller two seconds at most.
    pub(crate) async fn submitting(&self) -> RwLockReadGuard<'_, ()> {
        self.submitting.read().await
    }

    /// Waits until every request that is being submitted has entered or has been refused. While the caller holds the
    /// guard, no other request is submitted, so each sequence of a client in the engine is listed here.
    pub(crate) async fn hold_back(&self) -> RwLockWriteGuard<'_, ()> {
        self.submitting.write().await
    }

    /// Adds a request that the engine has accepted.
    pub(crate) fn enter(self: &Arc<LiveRequests>, request: LiveRequest) -> Listed {
        let request = Arc::new(request);
        let mut index = self.index();
        for seq in &request.sequences {
            index.by_seq.insert(*seq, request.clone());
        }
        index.names.extend(names(&request));
        drop(index);
        Listed { requests: self.clone(), request }
    }

    /// Returns the requests with this id: the id in their response, the client's `X-Request-Id`, or the number of a
    /// sequence. Only those of the tenant `of`, if it is given. In the order of their first sequences.
    pub(crate) fn find(&self, id: &str, of: Option<Salt>) -> Vec<Arc<LiveRequest>> {
        let name: Arc<str> = id.into();
        let index = self.index();
        let named = index.names.range((name.clone(), SeqId(0))..=(name, SeqId(u64::MAX)));
        let seqs = id.parse().ok().map(SeqId).into_iter().chain(named.map(|(_, seq)| *seq));
        let mut found: Vec<Arc<LiveRequest>> =
            seqs.filter_map(|seq| index.by_seq.get(&seq).cloned()).collect();
        drop(index);
        found.retain(|request| of.is_none_or(|salt| request.salt == salt));
        found.sort_unstable_by_key(|request| request.sequences.first().copied());
        found.dedup_by(|a, b| Arc::ptr_eq(a, b));
        found
    }

    /// Returns the requests of these sequences, by sequence. Sequences that are no request's, such as the warm-up's,
    /// are left out.
    pub(crate) fn of(
        &self,
        sequences: impl Iterator<Item = SeqId>,
    ) -> HashMap<SeqId, Arc<LiveRequest>> {
        let (mut found, mut sequences) = (HashMap::new(), sequences.peekable());
        while sequences.peek().is_some() {
            let index = self.index();
            let some = sequences.by_ref().take(FOUND_AT_ONCE);
            found.extend(some.filter_map(|seq| Some((seq, index.by_seq.get(&seq)?.clone()))));
        }
        found
    }

    /// Returns the sequences of all requests, in no particular order.
    pub(crate) fn sequences(&self) -> Vec<SeqId> {
        self.index().by_seq.keys().copied().collect()
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        // Ignore that the mutex is poisoned: no change of the index panics halfway.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut index = self.requests.index();
        for seq in &self.request.sequences {
            index.by_seq.remove(seq);
        }
        for name in names(&self.request) {
            index.names.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: &str, request_id: &str, salt: u8, sequences: &[u64]) -> LiveRequest {
        LiveRequest {
            id: id.into(),
            request_id: request_id.into(),
            salt: Salt([salt; 16]),
            sequences: sequences.iter().map(|id| SeqId(*id)).collect(),
            ..LiveRequest::of_tier(Tier::Standard)
        }
    }

    #[test]
    fn a_request_is_found_under_its_three_ids_until_it_ends() {
        let live = Arc::new(LiveRequests::default());
        let first = live.enter(request("chatcmpl-1", "trace", 1, &[5, 6]));
        let second = live.enter(request("cmpl-2", "trace", 2, &[7]));
        let found = |id: &str, of: Option<u8>| -> Vec<String> {
            let found = live.find(id, of.map(|byte| Salt([byte; 16])));
            found.iter().map(|request| request.id.clone()).collect()
        };
        assert_eq!(found("chatcmpl-1", None), ["chatcmpl-1"]);
        assert_eq!(found("6", None), ["chatcmpl-1"]);
        assert_eq!(found("trace", None), ["chatcmpl-1", "cmpl-2"], "ids of clients may repeat");
        assert_eq!(found("trace", Some(2)), ["cmpl-2"]);
        assert_eq!(found("7", Some(1)), [] as [&str; 0], "it is another tenant's");
        assert_eq!(live.of([5, 6, 8].map(SeqId).into_iter()).len(), 2);
        drop(first);
        assert_eq!(found("5", None), [] as [&str; 0]);
        assert_eq!(found("trace", None), ["cmpl-2"]);
        drop(second);
        assert!(live.index().by_seq.is_empty() && live.index().names.is_empty());
    }

    #[test]
    fn an_id_that_is_also_a_number_finds_a_request_once() {
        let live = Arc::new(LiveRequests::default());
        let _request = live.enter(request("chatcmpl-1", "5", 1, &[5]));
        assert_eq!(live.find("5", None).len(), 1);
    }
}
