//! The options of the webhook.

use std::path::PathBuf;
use std::time::Duration;

use crate::engine::loops::Severity;
use crate::engine::options::{DAY, MILLISECOND, MINUTE, SECOND, human};

crate::engine::options! {
    /// Whom to tell of sessions that run away, and how often.
    pub struct WebhookOptions in "webhook" {
        /// The endpoint; nobody is told if it is empty.
        pub url: String = String::new();
        /// Plain http is fine.
        pub allow_http: bool = false;
        /// A file with the secret that bodies are signed with.
        pub secret_file: PathBuf = PathBuf::new();
        /// The environment variable with it, if there is no file.
        pub secret_env: String = "AGENTGAUGE_WEBHOOK_SECRET".to_owned();
        /// Only log what would be sent.
        pub dry_run: bool = true;
        /// The severity of a loop from which its session runs away: warning, critical.
        pub severity: Severity = Severity::Critical;
        /// How long the endpoint is not told of the same session again.
        #[serde(with = "human")]
        pub cooldown: Duration = 10 * MINUTE, within SECOND..=DAY;
        /// Most sessions the endpoint is told of in a minute; more are left out and counted.
        pub max_per_minute: usize = 10, within 1..=1_000;
        /// How long one attempt may take.
        #[serde(with = "human")]
        pub timeout: Duration = 5 * SECOND, within MILLISECOND..=MINUTE;
        /// Attempts for one session.
        pub max_attempts: u32 = 4, within 1..=10;
    }
}
