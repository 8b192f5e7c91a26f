//! Live requests of the server: the ids that clients know, and the sequences that the engine knows.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tiercel_device::{SeqId, Tier};
use tiercel_policy::blocks::Salt;

/// Most requests that are looked up while other threads wait for the index. The thread that looks them up may have a lower
/// priority than the others.
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
pub(crate) struct LiveRequests(Mutex<Index>);

/// Live requests by each sequence of theirs.
type Index = HashMap<SeqId, Arc<LiveRequest>>;

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
    /// Adds a request that the engine has accepted.
    pub(crate) fn enter(self: &Arc<LiveRequests>, request: LiveRequest) -> Listed {
        let request = Arc::new(request);
        let mut index = self.index();
        for seq in &request.sequences {
            index.insert(*seq, request.clone());
        }
        drop(index);
        Listed { requests: self.clone(), request }
    }

    /// Returns the requests with this id: the id in their response, the client's `X-Request-Id`, or the number of a
    /// sequence. Only those of the tenant `of`, if it is given. In the order of their first sequences.
    pub(crate) fn find(&self, id: &str, of: Option<Salt>) -> Vec<Arc<LiveRequest>> {
        let index = self.index();
        let number = id.parse().ok().and_then(|number| index.get(&SeqId(number)));
        let named = index.iter().filter(|(seq, request)| {
            let is_first = request.sequences.first() == Some(seq);
            is_first && (request.id == id || *request.request_id == *id)
        });
        let mut found: Vec<Arc<LiveRequest>> =
            number.into_iter().chain(named.map(|(_, request)| request)).cloned().collect();
        found.retain(|request| of.is_none_or(|salt| request.salt == salt));
        found.sort_unstable_by_key(|request| request.sequences.first().copied());
        found.dedup_by(|a, b| Arc::ptr_eq(a, b));
        found
    }

    /// Returns the requests of these sequences, by sequence. Sequences that are no request's, such as the warm-up's, are
    /// left out.
    pub(crate) fn of(
        &self,
        sequences: impl Iterator<Item = SeqId>,
    ) -> HashMap<SeqId, Arc<LiveRequest>> {
        let (mut found, mut sequences) = (HashMap::new(), sequences.peekable());
        while sequences.peek().is_some() {
            let index = self.index();
            let some = sequences.by_ref().take(FOUND_AT_ONCE);
            found.extend(some.filter_map(|seq| Some((seq, index.get(&seq)?.clone()))));
        }
        found
    }

    /// Returns the sequences of all requests, in no particular order.
    pub(crate) fn sequences(&self) -> Vec<SeqId> {
        self.index().keys().copied().collect()
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        // Ignore that the mutex is poisoned: each change of the map is one call, which leaves it valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut index = self.requests.index();
        for seq in &self.request.sequences {
            index.remove(seq);
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
        let _second = live.enter(request("cmpl-2", "trace", 2, &[7]));
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
    }

    #[test]
    fn an_id_that_is_also_a_number_finds_a_request_once() {
        let live = Arc::new(LiveRequests::default());
        let _request = live.enter(request("chatcmpl-1", "5", 1, &[5]));
        assert_eq!(live.find("5", None).len(), 1);
    }
}
