//! Due time: the weighted max-min fair share of the time of a step.

/// A tier or a tenant that has work while a step runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Party {
    /// Weight of the party among all parties; more than 0.
    pub(super) weight: f64,
    /// Time that the party has in the step.
    pub(super) had: f64,
    /// Whether the party wants more time than it has: one of its sequences could be in the step and is not.
    pub(super) wants_more: bool,
}

/// Returns the time that each party is due, in the unit of the time that they have; the sum is the same.
pub(super) fn due(parties: &[Party]) -> Vec<f64> {
    let mut due: Vec<Option<f64>> = vec![None; parties.len()];
    let mut left: f64 = parties.iter().map(|party| party.had).sum();
    if !parties.iter().any(|party| party.wants_more) {
        return parties.iter().map(|party| party.had).collect();
    }
    loop {
        let open = || parties.iter().zip(&due).filter(|(_, due)| due.is_none());
        let weights: f64 = open().map(|(party, _)| party.weight).sum();
        // `level` is the time per unit of weight for parties whose due time is still open. A party that wants no more
        // and had less than its part is due what it had; the rest goes to the other parties. The loop ends, because
        // parties that want more stay open.
        let level = left / weights;
        let mut settled = false;
        for (party, due) in parties.iter().zip(&mut due).filter(|(_, due)| due.is_none()) {
            if !party.wants_more && party.had < level * party.weight {
                *due = Some(party.had);
                left -= party.had;
                settled = true;
            }
        }
        if !settled {
            let rest = |(party, due): (&Party, &Option<f64>)| due.unwrap_or(level * party.weight);
            return parties.iter().zip(&due).map(rest).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(weight: f64, had: f64, wants_more: bool) -> Party {
        Party { weight, had, wants_more }
    }

    #[test]
    fn parties_that_want_no_more_are_due_the_time_that_they_had() {
        assert_eq!(due(&[party(1.0, 90.0, false), party(3.0, 10.0, false)]), [90.0, 10.0]);
        assert_eq!(due(&[]), [0.0; 0]);
    }

    #[test]
    fn parties_that_want_more_are_due_time_by_their_weights() {
        let greedy = [party(1.0, 90.0, true), party(3.0, 10.0, true)];
        assert_eq!(due(&greedy), [25.0, 75.0]);
        let one = [party(1.0, 90.0, false), party(3.0, 10.0, true)];
        assert_eq!(due(&one), [25.0, 75.0], "the first has more than its weight gives it");
        assert_eq!(due(&[party(7.0, 50.0, true)]), [50.0], "nobody else has work");
    }

    #[test]
    fn what_one_does_not_want_is_divided_among_the_others() {
        // Each is due 25 by weight; the first wants only 10, so the others are due 30 each.
        let parties = [
            party(1.0, 10.0, false),
            party(1.0, 28.0, false),
            party(1.0, 60.0, true),
            party(1.0, 2.0, true),
        ];
        // The second is content with 28 as soon as the level is 30, which raises the level to 31.
        assert_eq!(due(&parties), [10.0, 28.0, 31.0, 31.0]);
    }
}
