//! Exponentially weighted means.

/// An exponentially weighted mean: each observation `x` moves the mean by `weight * (x - mean)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ewma {
    mean: f64,
    /// Weight of a new observation, 0 to 1.
    weight: f64,
}

impl Ewma {
    /// Returns a weighted mean with an initial value of `mean`, in which each later observation has the weight
    /// `weight`.
    pub(crate) fn starting_at(mean: f64, weight: f64) -> Ewma {
        Ewma { mean, weight }
    }

    pub(crate) fn mean(&self) -> f64 {
        self.mean
    }

    pub(crate) fn observe(&mut self, x: f64) {
        self.observe_as(self.weight, x);
    }

    /// Adds an observation with the larger of `weight` and the mean's usual weight. With a weight of `1/n` for the
    /// `n`-th observation, the result is a plain mean while there are few observations.
    pub(crate) fn observe_as(&mut self, weight: f64, x: f64) {
        self.mean += self.weight.max(weight) * (x - self.mean);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observation_moves_the_mean_by_its_weight() {
        let mut mean = Ewma::starting_at(10.0, 0.1);
        mean.observe(20.0);
        assert_eq!(mean.mean(), 11.0);
        mean.observe_as(0.5, 21.0);
        assert_eq!(mean.mean(), 16.0);
        mean.observe_as(0.0, 16.0);
        assert_eq!(mean.mean(), 16.0);
    }
}
