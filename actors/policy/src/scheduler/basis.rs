//! Basis of every estimate and decision: rules, the speed of the device, and the targets in effect.

use crate::scheduler::cost::CostModel;
use crate::scheduler::rules::Rules;
use crate::slo::Targets;

/// Rules, cost model and targets, which every estimate and decision uses.
#[derive(Debug, Clone)]
pub(crate) struct Basis {
    pub(crate) rules: Rules,
    pub(crate) cost: CostModel,
    pub(crate) targets: Targets,
}
