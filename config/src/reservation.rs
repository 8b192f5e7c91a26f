//! Blocks and places that are kept for a tier.

use crate::SettingsError;
use crate::engine::range;
use serde::{Deserialize, Serialize};

words! {
    /// What others may do with what is kept for a tier while it does not use it.
    Reservation, RESERVATIONS {
        /// Nothing.
        Hard = "hard",
        /// They may use what they can give back at once: blocks for as many of theirs as the host tier has copies of
        /// (`preemption.mirror_percent` makes them ahead of need), places always.
        Lent = "lent",
    }
}

/// Blocks and places that are kept for a tier.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReservationSettings {
    /// What others may do with them.
    pub kind: Reservation,
    /// Share of the device's blocks that is kept for premium, percent.
    pub premium_blocks_percent: f64,
    /// The same for standard.
    pub standard_blocks_percent: f64,
    /// Share of the places in a step that is kept for premium, percent.
    pub premium_slots_percent: f64,
    /// The same for standard.
    pub standard_slots_percent: f64,
}

impl Default for ReservationSettings {
    fn default() -> Self {
        ReservationSettings {
            kind: Reservation::Lent,
            premium_blocks_percent: 0.0,
            standard_blocks_percent: 0.0,
            premium_slots_percent: 0.0,
            standard_slots_percent: 0.0,
        }
    }
}

/// Most that may be kept for all tiers together: the others must be able to run, percent.
const MOST_PERCENT: f64 = 90.0;

impl ReservationSettings {
    /// Shares of the blocks by tier (system, premium, standard, background), percent.
    pub fn blocks_percent(&self) -> [f64; 4] {
        [0.0, self.premium_blocks_percent, self.standard_blocks_percent, 0.0]
    }

    /// Shares of the places by tier, percent.
    pub fn slots_percent(&self) -> [f64; 4] {
        [0.0, self.premium_slots_percent, self.standard_slots_percent, 0.0]
    }

    /// Checks every bound.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        let most = MOST_PERCENT;
        range("reservation.premium_blocks_percent", self.premium_blocks_percent, 0.0, most)?;
        range("reservation.standard_blocks_percent", self.standard_blocks_percent, 0.0, most)?;
        range("reservation.premium_slots_percent", self.premium_slots_percent, 0.0, most)?;
        range("reservation.standard_slots_percent", self.standard_slots_percent, 0.0, most)?;
        let conflict = |field| SettingsError::Conflict {
            field,
            why: "must leave, with what is kept for premium, at least a tenth for the others",
        };
        if self.premium_blocks_percent + self.standard_blocks_percent > most {
            return Err(conflict("reservation.standard_blocks_percent"));
        }
        if self.premium_slots_percent + self.standard_slots_percent > most {
            return Err(conflict("reservation.standard_slots_percent"));
        }
        Ok(())
    }
}
