//! Exponentially weighted means.

/// An exponentially weighted mean: each observation `x` moves the mean by `weight * (x - mean)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ewma {
    mean: f64,
    /// Weight of an observation, 0 to 1.
    weight: f64,
}

impl Ewma {
    /// A mean of `mean`, before any observation or after the first one.
    pub(crate) fn starting_at(mean: f64, weight: f64) -> Ewma {
        Ewma { mean, weight }
    }

    pub(crate) fn mean(&self) -> f64 {
        self.mean
    }

    pub(crate) fn observe(&mut self, x: f64) {
        self.observe_as(self.weight, x);
    }

    /// Takes in an observation with a weight of its own, where that is larger: the `n`-th observation with a weight of `1/n`
    /// makes a plain mean as long as there are few.
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
