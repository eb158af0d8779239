//! The full name of a session, and the order of sessions.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{ScopedId, SessionKey};
use crate::span::TraceId;
use crate::tenants::TraceKey;

/// A session. Sessions with the same id are adjacent in the order.
#[derive(Clone, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct SessionId {
    /// The tenant; empty without tenants.
    pub tenant: Arc<str>,
    /// The session id.
    pub id: Arc<str>,
    /// Its scope; see [`SessionKey`].
    pub scope: Arc<str>,
}

impl SessionId {
    /// The session among those of its tenant.
    pub fn scoped(&self) -> ScopedId {
        ScopedId { id: self.id.clone(), scope: self.scope.clone() }
    }

    /// The trace with this id, in the session's tenant.
    pub(crate) fn trace(&self, trace: TraceId) -> TraceKey {
        TraceKey::new(trace, Some(&self.tenant))
    }
}

/// Tenant, id and scope.
impl From<(&str, &str, &str)> for SessionId {
    fn from((tenant, id, scope): (&str, &str, &str)) -> Self {
        Self { tenant: tenant.into(), id: id.into(), scope: scope.into() }
    }
}

impl From<&SessionKey> for SessionId {
    fn from(key: &SessionKey) -> Self {
        let SessionKey { tenant, id, scope, .. } = key.clone();
        Self { tenant, id, scope }
    }
}
