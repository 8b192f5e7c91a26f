//! Usage of tiers and tenants as the control API shows it.

use crate::document::schema;
use crate::http::Keys;
use serde::Serialize;
use std::sync::Arc;
use tiercel_actors::{PartyUsage, UsageReport};
use tiercel_device::Tier;
use utoipa::ToSchema;

/// Name of all tenants without an account of their own.
const OTHERS: &str = "[other]";

/// Tokens and device time that tiers and tenants had, and the device time that was due to them.
#[derive(Serialize, ToSchema)]
pub(crate) struct Usage {
    /// Usage of each tier.
    tiers: Vec<TierUsage>,
    /// Usage of each tenant in each tier in which it ever had work.
    tenants: Vec<TenantUsage>,
}

/// Usage of a tier.
#[derive(Serialize, ToSchema)]
struct TierUsage {
    #[schema(schema_with = schema::tier)]
    tier: &'static str,
    #[serde(flatten)]
    amounts: Amounts,
}

/// Usage of a tenant in a tier.
#[derive(Serialize, ToSchema)]
struct TenantUsage {
    /// Name of the tenant; `[other]` for all tenants after the first 64 together.
    #[schema(value_type = String)]
    tenant: Arc<str>,
    #[schema(schema_with = schema::tier)]
    tier: &'static str,
    #[serde(flatten)]
    amounts: Amounts,
}

/// Amounts that a tier or a tenant used since the start of the server.
#[derive(Serialize, ToSchema)]
struct Amounts {
    /// Live choices that are not on hold, waiting or running.
    working: u32,
    /// Prompt tokens of choices that have started.
    prompt_tokens: u64,
    /// Those of the prompt tokens that were found in the prefix cache.
    cached_tokens: u64,
    output_tokens: u64,
    /// Device time, s.
    device_s: f64,
    /// Device time that was due, s.
    due_s: f64,
    /// Device time of the last minute less the time that was due, as a share of all device time of that minute.
    deviation: f64,
}

impl Amounts {
    fn new(usage: &PartyUsage) -> Amounts {
        Amounts {
            working: usage.working,
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            output_tokens: usage.output_tokens,
            device_s: usage.device_us / 1e6,
            due_s: usage.due_us / 1e6,
            deviation: usage.deviation,
        }
    }
}

/// Returns the usage with the names of the tenants, which `keys` know.
pub(super) fn usage_of(keys: &Keys, report: &UsageReport) -> Usage {
    let tiers = Tier::ALL.into_iter().zip(&report.tiers).filter(|(tier, _)| *tier != Tier::System);
    Usage {
        tiers: tiers
            .map(|(tier, usage)| TierUsage { tier: tier.name(), amounts: Amounts::new(usage) })
            .collect(),
        tenants: report
            .tenants
            .iter()
            .map(|row| TenantUsage {
                tenant: row.tenant.map_or_else(|| OTHERS.into(), |salt| keys.tenant_name(salt)),
                tier: row.tier.name(),
                amounts: Amounts::new(&row.usage),
            })
            .collect(),
    }
}
