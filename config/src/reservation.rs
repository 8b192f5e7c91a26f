//! Reservations: blocks and slots that are reserved for a tier.

use crate::SettingsError;
use crate::engine::range;
use serde::{Deserialize, Serialize};

words! {
    /// Use that other tiers may make of a tier's reservation while the tier does not need it.
    Reservation, RESERVATIONS {
        /// Other tiers may not use the reservation.
        Hard = "hard",
        /// Other tiers may use as much of the reservation as they can give back at once. Slots can always be given
        /// back; blocks as far as the host pool has copies of the other tiers' blocks (`preemption.mirror_percent`
        /// makes copies ahead of need).
        Lent = "lent",
    }
}

/// Settings of reservations: blocks and slots that are reserved for a tier.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReservationSettings {
    /// Whether other tiers may use a reservation while its tier does not need it.
    pub kind: Reservation,
    /// Share of the device's blocks that is reserved for premium, percent.
    pub premium_blocks_percent: f64,
    /// Share of the device's blocks that is reserved for standard, percent.
    pub standard_blocks_percent: f64,
    /// Share of the slots of a step that is reserved for premium, percent.
    pub premium_slots_percent: f64,
    /// Share of the slots of a step that is reserved for standard, percent.
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

/// Most that may be reserved for all tiers together, percent. The rest is left so that tiers without a reservation can
/// run.
const MOST_PERCENT: f64 = 90.0;

impl ReservationSettings {
    /// Returns the reserved shares of the blocks by tier (system, premium, standard, background), percent.
    pub fn blocks_percent(&self) -> [f64; 4] {
        [0.0, self.premium_blocks_percent, self.standard_blocks_percent, 0.0]
    }

    /// Returns the reserved shares of the slots by tier (system, premium, standard, background), percent.
    pub fn slots_percent(&self) -> [f64; 4] {
        [0.0, self.premium_slots_percent, self.standard_slots_percent, 0.0]
    }

    /// Checks that every reservation is in its range and that all together leave enough for other tiers.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        let most = MOST_PERCENT;
        range("reservation.premium_blocks_percent", self.premium_blocks_percent, 0.0, most)?;
        range("reservation.standard_blocks_percent", self.standard_blocks_percent, 0.0, most)?;
        range("reservation.premium_slots_percent", self.premium_slots_percent, 0.0, most)?;
        range("reservation.standard_slots_percent", self.standard_slots_percent, 0.0, most)?;
        let conflict = |field| SettingsError::Conflict {
            field,
            why: "must, with the reservation for premium, leave at least 10 percent for other tiers",
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
