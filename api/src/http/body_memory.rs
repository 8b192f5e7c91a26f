//! Memory that the bodies of HTTP requests take until they are parsed. The memory is limited in total, and its last
//! part is left to keys with the right to premium. While several tenants share the server, each tenant has a limit too.

use crate::http::{ApiError, Caller};
use actix_web::http::StatusCode;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tiercel_device::Tier;

/// Memory for bodies, as a multiple of the largest body (`http.max_body_kib`).
const BODIES: usize = 64;
/// Share of the memory, percent, beyond which only bodies of keys with the right to premium may take more. The bodies
/// of all keys count towards this share.
const BELOW_PREMIUM_PERCENT: usize = 87;
/// Part of the memory that one tenant may take if there are several tenants, percent.
const TENANT_PERCENT: usize = 75;
/// First bytes of a body that take no memory. So small bodies are never refused; the number of
/// connections limits the memory of the small bodies.
const FREE_BYTES: usize = 32 * 1024;
/// Retry time of clients whose tenant has no memory left, ms: another body may be complete at any time.
const RETRY_MS: u64 = 1_000;

/// Memory for the bodies of all requests.
pub(crate) struct BodyMemory {
    /// Most bytes of all bodies together.
    limit: usize,
    taken: Mutex<Taken>,
}

/// Memory that bodies have taken, bytes.
#[derive(Default)]
struct Taken {
    total: usize,
    /// Memory of each tenant that has any.
    tenants: HashMap<Arc<str>, usize>,
}

/// Part of the memory that one body has taken. It is free again when this value is dropped.
pub(crate) struct BodyShare {
    memory: Arc<BodyMemory>,
    tenant: Arc<str>,
    /// Most bytes of all bodies together at which this body may take more.
    total_limit: usize,
    /// Most bytes of the bodies of the tenant.
    tenant_limit: usize,
    /// Bytes of the body that have arrived.
    arrived: usize,
    /// Bytes that the body has taken.
    taken: usize,
}

impl BodyMemory {
    /// Makes the memory of a server whose largest body has `max_body` bytes.
    pub(crate) fn new(max_body: usize) -> BodyMemory {
        BodyMemory { limit: BODIES * max_body, taken: Mutex::default() }
    }

    /// Begins a body, which has taken no memory yet. `shared` says whether there are several tenants.
    pub(crate) fn begin(self: &Arc<BodyMemory>, caller: &Caller, shared: bool) -> BodyShare {
        let total_limit = match caller.rights.highest_tier {
            Tier::System | Tier::Premium => self.limit,
            Tier::Standard | Tier::Background => self.limit * BELOW_PREMIUM_PERCENT / 100,
        };
        let tenant_limit = if shared { self.limit * TENANT_PERCENT / 100 } else { usize::MAX };
        let (memory, tenant) = (self.clone(), caller.tenant.clone());
        BodyShare { memory, tenant, total_limit, tenant_limit, arrived: 0, taken: 0 }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // Ignore that the mutex is poisoned: the numbers that it guards stay valid after a panic.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BodyShare {
    /// Takes memory for `bytes` more bytes of the body.
    ///
    /// # Errors
    /// 503 if the bodies of all requests would take more than the limit, and 429 if the bodies of the tenant would.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.arrived += bytes;
        let more = self.arrived.saturating_sub(FREE_BYTES + self.taken);
        if more == 0 {
            return Ok(());
        }
        let mut taken = self.memory.taken();
        let of_tenant = taken.tenants.get(&self.tenant).copied().unwrap_or(0) + more;
        if of_tenant > self.tenant_limit {
            return Err(tenant_full(self.tenant_limit));
        }
        if taken.total + more > self.total_limit {
            return Err(full(self.total_limit));
        }
        taken.total += more;
        taken.tenants.insert(self.tenant.clone(), of_tenant);
        self.taken += more;
        Ok(())
    }
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        let mut taken = self.memory.taken();
        taken.total -= self.taken;
        if let Some(of_tenant) = taken.tenants.get_mut(&self.tenant) {
            *of_tenant -= self.taken;
            if *of_tenant == 0 {
                taken.tenants.remove(&self.tenant);
            }
        }
    }
}

fn full(limit: usize) -> ApiError {
    let message = format!(
        "requests are arriving whose bodies fill the {} KiB that this server has for them, a part of {BODIES} times \
         http.max_body_kib; try again soon",
        limit / 1024
    );
    ApiError::unavailable(message, "bodies_full")
}

fn tenant_full(limit: usize) -> ApiError {
    let message = format!(
        "requests of this tenant are arriving whose bodies fill the {} KiB that one tenant may have while others share \
         this server; try again soon",
        limit / 1024
    );
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
        .code("rate_limit_exceeded")
        .retry_after_ms(RETRY_MS)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests state what must hold")]
mod tests {
    use super::*;
    use crate::http::Rights;
    use actix_web::ResponseError;
    use tiercel_policy::Weight;
    use tiercel_policy::admission::KeyLimits;
    use tiercel_policy::blocks::Salt;

    /// Size of the memory in these tests, bytes.
    const ALL: usize = 64_000;

    fn caller(tenant: &str, rights: Rights) -> Caller {
        Caller {
            key: "key".into(),
            tenant: tenant.into(),
            limits: KeyLimits::default(),
            salt: Salt([0; 16]),
            weight: Weight::default(),
            rights,
        }
    }

    /// Begins a body and takes `bytes` of memory beyond the first bytes, which take none. Returns the body, or the
    /// status of the refusal.
    fn body(memory: &Arc<BodyMemory>, of: (&Caller, bool), bytes: usize) -> Result<BodyShare, u16> {
        let mut body = memory.begin(of.0, of.1);
        body.take(FREE_BYTES).unwrap();
        let taken = body.take(bytes).map_err(|refused| refused.status_code().as_u16());
        taken.map(|()| body)
    }

    #[test]
    fn bodies_take_memory_up_to_the_limit_until_they_are_dropped() {
        let memory = Arc::new(BodyMemory::new(1_000));
        let of = (&caller("one", Rights::ALL), false);
        let mut first = body(&memory, of, 40_000).unwrap();
        first.take(23_999).unwrap();
        let second = body(&memory, of, 1).unwrap();
        assert_eq!(body(&memory, of, 1).err(), Some(503));
        assert!(body(&memory, of, 0).is_ok(), "the first bytes take no memory");
        drop(first);
        let third = body(&memory, of, ALL - 1).unwrap();
        drop((second, third));
        let taken = memory.taken();
        assert_eq!((taken.total, taken.tenants.len()), (0, 0));
    }

    #[test]
    fn a_refused_body_takes_no_more_memory() {
        let memory = Arc::new(BodyMemory::new(1_000));
        let of = (&caller("one", Rights::ALL), false);
        let mut first = body(&memory, of, 40_000).unwrap();
        assert!(first.take(24_001).is_err());
        assert_eq!(memory.taken().total, 40_000);
        drop(first);
        assert!(body(&memory, of, ALL).is_ok());
    }

    #[test]
    fn one_tenant_of_several_leaves_memory_to_the_others() {
        let memory = Arc::new(BodyMemory::new(1_000));
        let (one, two) = (caller("one", Rights::ALL), caller("two", Rights::ALL));
        let first = body(&memory, (&one, true), ALL * 3 / 4).unwrap();
        assert_eq!(body(&memory, (&one, true), 1).err(), Some(429));
        let other = body(&memory, (&two, true), ALL / 4).unwrap();
        assert_eq!(body(&memory, (&two, true), 1).err(), Some(503));
        drop(first);
        assert!(!memory.taken().tenants.contains_key("one"));
        assert!(body(&memory, (&two, true), ALL / 2).is_ok());
        drop(other);
    }

    #[test]
    fn keys_below_premium_leave_memory_to_premium() {
        let memory = Arc::new(BodyMemory::new(1_000));
        let standard = caller("one", Rights::STANDARD);
        let below = body(&memory, (&standard, false), ALL * 87 / 100).unwrap();
        assert_eq!(body(&memory, (&standard, false), 1).err(), Some(503));
        assert!(body(&memory, (&caller("two", Rights::ALL), false), ALL / 8).is_ok());
        drop(below);
    }
}
