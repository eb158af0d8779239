//! The effort of the done traces of a session, and the usage of all its traces, in little memory, as each session has both.

use serde::{Deserialize, Serialize};

use crate::facts::{Effort, PartialSum};
use crate::limits::UsageSums;

/// An [`Effort`] without the answer, the last calls and the way of ending. Counts are below 2^32, as the traces of a session and
/// their spans are bounded.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct CompactEffort {
    model_calls: u32,
    tool_calls: u32,
    judged_calls: u32,
    failed_calls: u32,
    failed_model_calls: u32,
    stopped_calls: u32,
    // Traces that report tokens, and traces that report a cost.
    tell_tokens: u32,
    tell_cost: u32,
    output_tokens: u64,
    cost_quanta: u64,
    nanos: u64,
    pub(super) longest_call_nanos: u64,
}

/// [`UsageSums`], with counts below 2^32.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct CompactUsage {
    model_calls: u32,
    tool_calls: u32,
    tokens: u64,
    pub(super) cost_quanta: u64,
}

impl From<UsageSums> for CompactUsage {
    fn from(sums: UsageSums) -> Self {
        let UsageSums { model_calls, tool_calls, tokens, cost_quanta } = sums;
        let (model_calls, tool_calls) = (count(model_calls), count(tool_calls));
        Self { model_calls, tool_calls, tokens, cost_quanta }
    }
}

impl CompactUsage {
    /// As sums.
    pub(super) fn sums(self) -> UsageSums {
        let Self { model_calls, tool_calls, tokens, cost_quanta } = self;
        let (model_calls, tool_calls) = (model_calls.into(), tool_calls.into());
        UsageSums { model_calls, tool_calls, tokens, cost_quanta }
    }
}

impl From<Effort> for CompactEffort {
    fn from(effort: Effort) -> Self {
        Self {
            model_calls: count(effort.model_calls),
            tool_calls: count(effort.tool_calls),
            judged_calls: count(effort.judged_calls),
            failed_calls: count(effort.failed_calls),
            failed_model_calls: count(effort.failed_model_calls),
            stopped_calls: count(effort.stopped_calls),
            tell_tokens: count(effort.output_tokens.traces),
            tell_cost: count(effort.cost_quanta.traces),
            output_tokens: effort.output_tokens.sum,
            cost_quanta: effort.cost_quanta.sum,
            nanos: effort.nanos,
            longest_call_nanos: effort.longest_call_nanos,
        }
    }
}

impl CompactEffort {
    /// As an effort with unknown answer, last calls and way of ending.
    pub(super) fn effort(self) -> Effort {
        let told = |traces: u32, sum| PartialSum { traces: traces.into(), sum };
        Effort {
            model_calls: self.model_calls.into(),
            tool_calls: self.tool_calls.into(),
            judged_calls: self.judged_calls.into(),
            failed_calls: self.failed_calls.into(),
            failed_model_calls: self.failed_model_calls.into(),
            stopped_calls: self.stopped_calls.into(),
            output_tokens: told(self.tell_tokens, self.output_tokens),
            cost_quanta: told(self.tell_cost, self.cost_quanta),
            nanos: self.nanos,
            longest_call_nanos: self.longest_call_nanos,
            answer_words: None,
            last_tool: None,
            last_models: None,
            ended_in_error: false,
        }
    }
}

fn count(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_what_was_last_is_lost() {
        let effort = Effort {
            model_calls: 1,
            tool_calls: 2,
            judged_calls: 3,
            failed_calls: 4,
            failed_model_calls: 5,
            stopped_calls: 6,
            output_tokens: PartialSum { traces: 7, sum: 8 << 33 },
            cost_quanta: PartialSum { traces: 9, sum: 10 << 33 },
            nanos: 11 << 33,
            longest_call_nanos: 12 << 33,
            answer_words: Some(13),
            last_tool: Some(14),
            last_models: Some(15),
            ended_in_error: true,
        };
        let kept = CompactEffort::from(effort).effort();
        let Effort { answer_words, last_tool, last_models, ended_in_error, .. } = effort;
        let kept = Effort { answer_words, last_tool, last_models, ended_in_error, ..kept };
        assert_eq!(kept, effort);
        let sums =
            UsageSums { model_calls: 1, tool_calls: 2, tokens: 3 << 33, cost_quanta: 4 << 33 };
        assert_eq!(CompactUsage::from(sums).sums(), sums);
        // There is one for each session, with the last state sent to its agent, and a record for each trace.
        assert_eq!(size_of::<CompactEffort>(), 64);
        assert_eq!(size_of::<Option<super::super::session::AnnouncedEffort>>(), 32);
        assert_eq!(size_of::<super::super::session::Session>(), 384);
        assert_eq!(size_of::<Option<super::super::card::Card>>(), 56);
        assert_eq!(size_of::<super::super::record::TraceRecord>(), 128);
    }
}
