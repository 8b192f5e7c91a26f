//! Reservations: blocks and slots that are reserved for a tier.

use crate::SettingsError;

/// Most that may be reserved for all tiers together, percent. The rest is left so that tiers without a reservation can
/// run.
const MOST_PERCENT: f64 = 90.0;

words! {
    /// Use that other tiers may make of a tier's reservation while the tier does not need it.
    Reservation {
        /// Other tiers may not use the reservation.
        Hard = "hard",
        /// Other tiers may use as much of the reservation as they can give back at once. Slots can always be given
        /// back; blocks as far as the host pool has copies of the other tiers' blocks (`preemption.mirror_percent`
        /// makes copies ahead of need).
        Lent = "lent",
    }
}

settings! {
    /// Settings of reservations: blocks and slots that are reserved for a tier.
    #[derive(Copy)]
    pub struct ReservationSettings {
        /// Whether other tiers may use the slots and KV blocks that are reserved for a tier while it does not need
        /// them. hard: no. lent: as far as they can give them back at once, which is all slots, and blocks as far as
        /// the host pool has copies (see preemption.mirror_percent).
        kind: Reservation = Reservation::Lent;
        /// Share of the KV blocks that is reserved for premium, percent. Premium and standard together: at most 90.
        premium_blocks_percent: f64 = 0.0, in 0.0..=MOST_PERCENT;
        /// Share of the KV blocks that is reserved for standard, percent. Premium and standard together: at most 90.
        standard_blocks_percent: f64 = 0.0, in 0.0..=MOST_PERCENT;
        /// Share of the slots (scheduler.max_num_seqs) that is reserved for premium, percent. Premium and standard
        /// together: at most 90.
        premium_slots_percent: f64 = 0.0, in 0.0..=MOST_PERCENT;
        /// Share of the slots (scheduler.max_num_seqs) that is reserved for standard, percent. Premium and standard
        /// together: at most 90.
        standard_slots_percent: f64 = 0.0, in 0.0..=MOST_PERCENT;
    }
}

impl ReservationSettings {
    /// Returns the share of the KV blocks that is reserved for each tier (system, premium, standard, background),
    /// percent.
    pub fn blocks_percent(&self) -> [f64; 4] {
        [0.0, self.premium_blocks_percent, self.standard_blocks_percent, 0.0]
    }

    /// Returns the share of the slots that is reserved for each tier (system, premium, standard, background), percent.
    pub fn slots_percent(&self) -> [f64; 4] {
        [0.0, self.premium_slots_percent, self.standard_slots_percent, 0.0]
    }

    /// Checks that all reservations together leave enough for other tiers.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        let conflict = |field| SettingsError::Conflict {
            field,
            why: "must, with the reservation for premium, leave at least 10 percent for other tiers",
        };
        if self.premium_blocks_percent + self.standard_blocks_percent > MOST_PERCENT {
            return Err(conflict("reservation.standard_blocks_percent"));
        }
        if self.premium_slots_percent + self.standard_slots_percent > MOST_PERCENT {
            return Err(conflict("reservation.standard_slots_percent"));
        }
        Ok(())
    }
}
