//! Messages from one stage to the next.
//!
//! Every hop is an idempotent upsert: an update replaces everything of a lower revision under the same key, so it may arrive late,
//! twice, or again after a restart. The receiver keeps the highest revision; an equal one is accepted. Within a process these
//! structs are moved; between processes, and in snapshots, they are `MessagePack` with the names of the fields that differ from
//! their default.

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

/// Structs whose fields with the default value are left out when written; so fields are written by name, never by order.
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
        /// What distinguishes sessions with the same id: the namespace of their services, or their agent; empty: the id suffices.
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

    /// A marker that separates earlier inputs from later ones. A stage passes it on once it has arrived on all of its inputs.
    #[derive(Copy)]
    pub struct Barrier {
        /// The number of the barrier.
        pub epoch: u64,
        /// The record of the log after which a snapshot is made, of each stage's state when the barrier has arrived on all its
        /// inputs; absent: no snapshot.
        pub log_sequence: Option<u64>,
    }

    /// A shard of the session stage has a new owner, which has sent everything that the shard holds: whatever was sent for the
    /// shard under a lower revision, and not again, is gone.
    #[derive(Copy)]
    pub struct Began {
        /// The shard.
        pub shard: u32,
        /// The lowest revision of the new owner.
        pub revision: u64,
    }
}

impl SessionKey {
    /// Whether it is the session of a single trace without a session key.
    pub fn is_own(&self) -> bool {
        &*self.source == "trace"
    }

    /// Whether a span or a resource named it.
    pub fn is_named(&self) -> bool {
        !matches!(&*self.source, "trace" | "instance")
    }
}
