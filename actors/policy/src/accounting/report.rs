//! Reports of the usage of tiers and tenants.

use crate::blocks::Salt;
use tiercel_device::Tier;

/// Usage of a tier, or of a tenant in a tier.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PartyUsage {
    /// Number of live sequences that are not on hold, waiting or running.
    pub working: u32,
    /// Prompt tokens of sequences that have started, since the start of the engine.
    pub prompt_tokens: u64,
    /// Those of the prompt tokens whose KV was found in the prefix cache.
    pub cached_tokens: u64,
    /// Output tokens since the start of the engine.
    pub output_tokens: u64,
    /// Device time that the party had since the start of the engine, us.
    pub device_us: f64,
    /// Device time that was due to the party since the start of the engine, us.
    pub due_us: f64,
    /// Device time that the party had in the last minute, us.
    pub recent_device_us: f64,
    /// Device time that was due to the party in the last minute, us.
    pub recent_due_us: f64,
    /// Device time that the party had less the time that was due to it, in the last minute, as a share of all device
    /// time of that minute, -1 to 1.
    pub deviation: f64,
}

/// Usage of one tenant in one tier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TenantUsage {
    /// Tier in which the tenant had the usage.
    pub tier: Tier,
    /// Tenant; `None` for all tenants without an account of their own together; the time that is due to them is the
    /// time that they had.
    pub tenant: Option<Salt>,
    /// Tokens and device time of the tenant in the tier.
    pub usage: PartyUsage,
}

/// Usage of all tiers and tenants.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UsageReport {
    /// Usage of each tier; that of the system tier is always 0.
    pub tiers: [PartyUsage; Tier::ALL.len()],
    /// Usage of each tenant in each tier in which its account holds anything; the first tenants of the engine come
    /// first.
    pub tenants: Vec<TenantUsage>,
}
