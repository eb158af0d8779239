//! The messages between the stages, generated from `proto/agentgauge/v1/update.proto`.
//!
//! Every hop is an idempotent upsert: a message replaces everything of a lower revision
//! under the same key, so a stage may see it late, twice or again after a restart.

#[expect(
    missing_docs,
    clippy::doc_markdown,
    clippy::struct_excessive_bools,
    reason = "generated from proto/, where the messages are documented"
)]
mod v1 {
    include!(concat!(env!("OUT_DIR"), "/agentgauge.v1.rs"));
}

pub use v1::*;

impl From<i128> for Int128 {
    fn from(value: i128) -> Self {
        let bytes = value.to_be_bytes();
        let (high, low) = bytes.split_at(8);
        Self {
            high: high.iter().fold(0_i64, |sum, byte| (sum << 8) | i64::from(*byte)),
            low: low.iter().fold(0_u64, |sum, byte| (sum << 8) | u64::from(*byte)),
        }
    }
}

impl From<Int128> for i128 {
    fn from(value: Int128) -> Self {
        (Self::from(value.high) << 64) | Self::from(value.low)
    }
}

impl DoneTrace {
    /// When its facts count among those of all agents: as they came, whichever shard tells them.
    pub fn turn(&self) -> (u64, u64, &[u8], &str) {
        (self.touched_unix_nano, self.start_unix_nano, &self.trace_id, &self.session)
    }

    /// What is told once under this name: the facts of a trace that was done, or an outcome that was told later.
    pub fn name(&self) -> Vec<u8> {
        let about = if self.trace_id.is_empty() { self.session.as_bytes() } else { &self.trace_id };
        [&[u8::from(self.looped.is_some())], about].concat()
    }
}

impl Spent {
    /// All that a trace says it has spent.
    pub fn of(update: &TraceUpdate) -> Self {
        let tokens = update.tokens.unwrap_or_default();
        let cost = update.cost_quanta.and_then(|cost| u64::try_from(cost).ok());
        let tools = |error| update.tools.iter().filter(|tool| tool.error == error).count() as u64;
        Self {
            input_tokens: tokens.input.unwrap_or(0),
            output_tokens: tokens.output.unwrap_or(0),
            cost_quanta: cost.unwrap_or(0),
            tools_ok: tools(Some(false)),
            tools_failed: tools(Some(true)),
            tools_unknown: tools(None),
            model_calls: update.llm_calls,
            adjacent_tool_repeats: update.adjacent_tool_repeats,
        }
    }
}

impl Expectation {
    /// The layers by name, in order; one that is absent is skipped.
    pub fn layers(&self) -> [(&'static str, Option<&ExpectedLayer>); 4] {
        [
            ("correctness", self.correctness.as_ref()),
            ("path", self.path.as_ref()),
            ("retrieval", self.retrieval.as_ref()),
            ("cost", self.cost.as_ref()),
        ]
    }
}

impl ExpectedStatus {
    /// As results and labels carry it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Pass => "pass",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_int128_survives_the_wire() {
        for value in [0, 1, -1, i128::MAX, i128::MIN, 1 << 64, -(1 << 64) + 7] {
            assert_eq!(i128::from(Int128::from(value)), value);
        }
    }
}
