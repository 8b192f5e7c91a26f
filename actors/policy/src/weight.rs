//! Weights of tenants in fair queues.

/// Weight of a tenant in a fair queue: the tenant's part of the service is proportional to the weight. 1 unless the
/// tenant's API keys state another.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Weight(f64);

impl Weight {
    /// Smallest weight.
    const LEAST: f64 = 0.01;
    /// Largest weight.
    const MOST: f64 = 100.0;

    /// Creates a weight. A value outside 0.01 to 100 becomes the nearest bound; NaN becomes 1.
    pub fn new(weight: f64) -> Weight {
        if weight.is_nan() {
            Weight::default()
        } else {
            Weight(weight.clamp(Weight::LEAST, Weight::MOST))
        }
    }

    /// Returns the weight as a number, 0.01 to 100.
    pub fn get(self) -> f64 {
        self.0
    }

    /// Returns the virtual time that a service takes in a fair queue: service / weight.
    pub(crate) fn virtual_time(self, service: f64) -> f64 {
        service / self.0
    }
}

impl Default for Weight {
    fn default() -> Weight {
        Weight(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_divides_the_service_and_is_never_zero() {
        assert_eq!(Weight::new(4.0).virtual_time(100.0), 25.0);
        assert_eq!(Weight::default().virtual_time(0.1), 0.1);
        let made =
            [0.0, -1.0, f64::INFINITY, f64::NAN, 2.5].map(|weight| Weight::new(weight).get());
        assert_eq!(made, [0.01, 0.01, 100.0, 1.0, 2.5]);
    }
}
