//! What every estimate and decision is based on: rules, the speed of the device, and the targets in effect.

use crate::scheduler::cost::CostModel;
use crate::scheduler::rules::Rules;
use crate::slo::Targets;

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(crate) struct Basis {
    pub(crate) rules: Rules,
    pub(crate) cost: CostModel,
    pub(crate) targets: Targets,
}
