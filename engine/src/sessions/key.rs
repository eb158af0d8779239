//! The keys of sessions, and their order.

use serde::{Deserialize, Serialize};

use crate::facts::{ScopedId, SessionKey};
use crate::span::TraceId;
use crate::tenants::TraceKey;

/// A session. Sessions of one id stand next to each other.
#[derive(Clone, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct SessionId {
    /// The tenant; empty without tenants.
    pub tenant: String,
    /// The session id.
    pub id: String,
    /// Its scope; see [`SessionKey`].
    pub scope: String,
}

impl SessionId {
    /// The session among those of its tenant.
    pub fn scoped(&self) -> ScopedId {
        ScopedId { id: self.id.clone(), scope: self.scope.clone() }
    }

    /// The trace that has this id among those of the session's tenant.
    pub(super) fn trace(&self, trace: TraceId) -> TraceKey {
        TraceKey::new(trace, Some(&self.tenant))
    }
}

/// Tenant, id and scope.
impl From<(&str, &str, &str)> for SessionId {
    fn from((tenant, id, scope): (&str, &str, &str)) -> Self {
        Self { tenant: tenant.to_owned(), id: id.to_owned(), scope: scope.to_owned() }
    }
}

impl From<&SessionKey> for SessionId {
    fn from(key: &SessionKey) -> Self {
        Self::from((&*key.tenant, &*key.id, &*key.scope))
    }
}
