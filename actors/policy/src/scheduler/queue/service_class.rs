//! Service class of a sequence: the first part of the sequence's rank in the order of service.

use tiercel_device::Tier;

/// Service class of a sequence: its effective tier, and the tier whose share pays for it. A lower class is served
/// first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServiceClass {
    /// Effective tier: the sequence's own tier, a higher one that it gained by ageing, or background if it is best
    /// effort.
    tier: Tier,
    /// Tier whose share of the device's time pays for the sequence: the sequence's own tier, if the sequence is served
    /// as background and tiers share the time of background. `None` otherwise. So either all sequences of an effective
    /// tier have a payer, or none has.
    payer: Option<Tier>,
}

impl ServiceClass {
    /// Class of all sequences if the order of service ignores tiers.
    pub(crate) const UNTIERED: ServiceClass = ServiceClass { tier: Tier::System, payer: None };

    /// Returns the class of a sequence of tier `own` that is served as `tier`. `shared` says that tiers share the time
    /// of the background tier. Best-effort sequences of all tiers are served as background.
    pub(crate) fn new(own: Tier, tier: Tier, shared: bool) -> ServiceClass {
        ServiceClass { tier, payer: (shared && tier == Tier::Background).then_some(own) }
    }

    /// Returns the effective tier.
    pub(crate) fn tier(self) -> Tier {
        self.tier
    }

    /// Returns the tier whose share pays for the sequence; `None` if tiers do not share time for it.
    pub(crate) fn payer(self) -> Option<Tier> {
        self.payer
    }

    /// Returns the class of the sequence after it gained a tier by ageing.
    pub(crate) fn aged(self) -> ServiceClass {
        ServiceClass { tier: Tier::ALL[self.tier.index().saturating_sub(1)], payer: None }
    }
}
