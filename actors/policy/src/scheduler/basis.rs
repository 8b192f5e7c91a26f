//! What every estimate and decision of the scheduler uses: the rules set by the operator, the cost model of the device,
//! and the latency targets in effect.

use crate::scheduler::cost::CostModel;
use crate::scheduler::rules::Rules;
use crate::slo::Targets;

/// Rules, cost model and latency targets, which every estimate and decision of the scheduler uses.
#[derive(Debug, Clone)]
pub(crate) struct Basis {
    pub(crate) rules: Rules,
    pub(crate) cost: CostModel,
    pub(crate) targets: Targets,
}
