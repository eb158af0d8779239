//! What one stage tells the next.
//!
//! Every hop is an idempotent upsert: an update replaces everything of a lower revision under the same key, so a stage may
//! see it late, twice or again after a restart. The receiver keeps the highest revision; an equal one is accepted.
//! Within a process these structs are moved; between processes, and in snapshots, they are `MessagePack` with the names of
//! those fields that do not have their default.

mod agent;
mod session;
mod session_id;
mod trace;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub(crate) use agent::AgentKeys;
pub use agent::{AgentKey, AgentParts, OVERFLOW};
pub use session::{
    BucketCounts, DoneTrace, Effort, Exemplar, LastTrace, Level, PaneSum, PartialSum, RunTrace,
    ScoreHistogram, SessionFacts, SignalSum, Silences, SilencesOfWeek,
};
pub use session_id::SessionId;
pub use trace::{
    Content, CountedUsage, Expectation, ExpectedLayer, ExpectedStatus, Loop, ModelEmbedding,
    OutputDigest, OverBy, Remarks, ReportedScore, Step, StepKind, SubAgent, Tokens, ToldLoops,
    ToolCall, TraceFacts, TraceState, TurnStart,
};

/// Structs of which fields with the default value are left out when written; so fields are written by name, never by order.
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
    /// The session, or conversation, that a trace belongs to.
    pub struct SessionKey {
        /// Authenticated tenant; empty: without tenants.
        pub tenant: Arc<str>,
        /// The session id.
        pub id: Arc<str>,
        /// What tells sessions with the same id apart: the namespace of their services, or their agent; empty: the id alone does.
        pub scope: Arc<str>,
        /// The attribute that named the session; `trace` or `instance` if none did.
        pub source: Arc<str>,
    }

    /// The name of a session within a known tenant.
    pub struct ScopedId {
        /// The session id.
        pub id: Arc<str>,
        /// Its scope, as in [`SessionKey`].
        pub scope: Arc<str>,
    }

    /// A marker that divides what came before it from what comes after.
    /// A stage passes it on when it has come in on all of its inputs.
    #[derive(Copy)]
    pub struct Barrier {
        /// The number of the barrier.
        pub epoch: u64,
        /// The record of the log after which a snapshot is made: of what each stage holds when the
        /// barrier has come in on all its inputs; absent: no snapshot.
        pub log_sequence: Option<u64>,
    }

    /// A shard of the session stage has a new owner, which has told everything that the shard holds: what was told of the shard
    /// under a lower revision, and not again, is gone.
    #[derive(Copy)]
    pub struct Began {
        /// The shard.
        pub shard: u32,
        /// The lowest revision of the new owner.
        pub revision: u64,
    }
}

impl SessionKey {
    /// Whether it is the session of a single trace that named none.
    pub fn is_own(&self) -> bool {
        &*self.source == "trace"
    }

    /// Whether a span or a resource named it.
    pub fn is_named(&self) -> bool {
        !matches!(&*self.source, "trace" | "instance")
    }
}
