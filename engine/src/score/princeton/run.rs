//! The facts of a run that are needed to subtract it.

use std::sync::Arc;

use super::confidence::plausible;
use super::{Condition, RunRecord, Severity};
use crate::math::Quanta;
use crate::span::Timestamp;

/// A run without its actions and resources.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) start: Timestamp,
    pub(super) success: Option<bool>,
    pub(super) confidence: Option<Quanta>,
    pub(super) condition: Condition,
    /// The severity of its worst broken rule, if it broke any.
    pub(super) worst: Option<Severity>,
    /// Whether rules were checked.
    pub(super) looked: bool,
}

/// The order of all runs of an agent.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct RunKey {
    pub(super) start: Timestamp,
    pub(super) task: Option<Arc<str>>,
    pub(super) id: Arc<str>,
}

impl Facts {
    pub(super) fn new(run: &RunRecord) -> Self {
        Self {
            start: run.start,
            success: run.success,
            confidence: run.confidence.and_then(plausible),
            condition: run.condition,
            worst: run.violations.iter().flatten().max().copied(),
            looked: run.looked,
        }
    }
}

impl RunKey {
    pub(super) fn new(run: &RunRecord) -> Self {
        Self { start: run.start, task: run.task.clone(), id: Arc::clone(&run.id) }
    }
}
