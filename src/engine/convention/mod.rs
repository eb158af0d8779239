//! Conventions: what each instrumentation library calls things.
//!
//! The only place that knows attribute names. A convention is one file and one line in
//! [`CONVENTIONS`]; it recognises by attributes and scope, never by schema URL.

mod raw;

pub use raw::{RawAttributes, RawEvent, RawLink, RawLog, RawResource, RawScope, RawSpan, RawValue};

/// Attributes that name a session, best first.
pub const SESSION_KEYS: &[&str] = &["session.id", "gen_ai.conversation.id"];

/// Attributes whose JSON value may hold a session id.
pub const SESSION_JSON_KEYS: &[&str] = &["metadata{session_id}", "metadata{thread_id}"];
