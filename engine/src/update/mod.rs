//! What one stage tells the next.
//!
//! Every hop is an idempotent upsert: what is told replaces everything of a lower revision under the same key, so a stage
//! may see it late, twice or again after a restart. The receiver keeps the highest revision; an equal one is accepted.
//! Within a process these structs are moved; between processes, and in snapshots, they are `MessagePack` with the names of
//! those fields that do not have their default.

mod session;
mod trace;

use serde::{Deserialize, Serialize};

use crate::span::TraceId;

pub use session::{
    DoneTrace, Effort, Exemplar, LastTrace, Level, PaneSum, PartialSum, RunTrace, ScoreHistogram,
    SessionUpdate, SignalSum, Silences,
};
pub use trace::{
    Attempt, CallResult, Content, Expectation, ExpectedLayer, ExpectedStatus, Guardrail, Loop,
    OutputDigest, OverBy, Remarks, ReportedScore, Spent, Step, StepKind, SubAgent, Tokens,
    ToldLoops, ToolCall, TraceState, TraceUpdate, TurnStart, Violation,
};

/// Structs whose fields are left out where they have their default, when they are written: so they are written with names, never
/// by their order.
macro_rules! facts {
    ($($(#[$about:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: $kind:ty,)* })*) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
        #[serde(default)]
        pub struct $name {
            $($(#[$doc])* #[serde(skip_serializing_if = "is_default")] pub $field: $kind,)*
        }
    )*};
}
use facts;

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

facts! {
    /// Whose series a trace counts towards.
    pub struct AgentKey {
        /// Authenticated tenant; empty: without tenants.
        pub tenant: String,
        /// `service.name`.
        pub service_name: String,
        /// `gen_ai.agent.name`; empty: no span named it.
        pub agent_name: String,
        /// Its version; empty: not told.
        pub agent_version: String,
        /// `deployment.environment.name`; empty: not told.
        pub environment: String,
    }

    /// Which conversation a trace belongs to.
    pub struct SessionKey {
        /// Authenticated tenant; empty: without tenants.
        pub tenant: String,
        /// The session id.
        pub id: String,
        /// Tells sessions of one id apart: the namespace of their services, or their agent; empty: the id is one's own.
        pub scope: String,
        /// The attribute that named the session, `trace` or `instance`.
        pub source: String,
    }

    /// A session of a tenant that is known.
    pub struct ScopedId {
        /// The session id.
        pub id: String,
        /// Its scope, as [`SessionKey`] has it.
        pub scope: String,
    }

    /// A marker that divides what came before it from what comes after.
    /// A stage passes it on when it has come in on all of its inputs.
    #[derive(Copy)]
    pub struct Barrier {
        /// Which one it is.
        pub epoch: u64,
        /// What a stage holds when it has come in on all inputs goes into the snapshot
        /// of the state after this record of the log; absent: no snapshot.
        pub log_sequence: Option<u64>,
    }

    /// A response that a trace has.
    pub struct Response {
        /// Absent: without tenants.
        pub tenant: Option<String>,
        /// The provider's id of the response.
        pub id: String,
        /// The trace.
        pub trace_id: TraceId,
    }

    /// A shard of the session stage has a new owner, who has told everything that the shard holds: what was told of it under a
    /// lower revision and not again is no more.
    #[derive(Copy)]
    pub struct Began {
        /// The shard.
        pub shard: u32,
        /// What is of a lower revision was told by an earlier owner.
        pub revision: u64,
    }
}

impl AgentKey {
    /// Stands before all versions of an agent of this name, in whatever environment.
    pub(crate) fn before_versions(&self) -> Self {
        Self {
            tenant: self.tenant.clone(),
            service_name: self.service_name.clone(),
            agent_name: self.agent_name.clone(),
            ..Self::default()
        }
    }

    /// Whether both are called the same: versions and environments of one agent, which stand next to each other.
    pub(crate) fn is_called_as(&self, other: &Self) -> bool {
        (&self.tenant, &self.service_name, &self.agent_name)
            == (&other.tenant, &other.service_name, &other.agent_name)
    }
}

impl SessionKey {
    /// Whether it is that of one trace alone, which named none.
    pub fn is_own(&self) -> bool {
        self.source == "trace"
    }

    /// Whether a span or a resource named it.
    pub fn is_named(&self) -> bool {
        !matches!(&*self.source, "trace" | "instance")
    }
}
