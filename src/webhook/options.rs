//! The options of the webhook.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::loops::Severity;
use crate::engine::options::human;

/// Whom to tell of sessions that run away, and how often.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebhookOptions {
    /// The endpoint; nobody is told if it is empty.
    pub url: String,
    /// Plain http is fine.
    pub allow_http: bool,
    /// A file with the secret that bodies are signed with.
    pub secret_file: PathBuf,
    /// The environment variable with it, if there is no file.
    pub secret_env: String,
    /// Only log what would be sent.
    pub dry_run: bool,
    /// The severity of a loop from which its session runs away; going over a limit is critical.
    pub severity: Severity,
    /// How long a session is not told of again.
    #[serde(with = "human")]
    pub cooldown: Duration,
    /// Sessions told in a minute; more are left out and counted.
    pub max_per_minute: usize,
    /// How long one attempt may take.
    #[serde(with = "human")]
    pub timeout: Duration,
    /// Attempts for one session.
    pub max_attempts: u32,
}

impl Default for WebhookOptions {
    fn default() -> Self {
        Self {
            url: String::new(),
            allow_http: false,
            secret_file: PathBuf::new(),
            secret_env: "AGENTGAUGE_WEBHOOK_SECRET".to_owned(),
            dry_run: true,
            severity: Severity::Critical,
            cooldown: Duration::from_secs(600),
            max_per_minute: 10,
            timeout: Duration::from_secs(5),
            max_attempts: 4,
        }
    }
}
