//! The options of the webhook.

use std::path::PathBuf;
use std::time::Duration;

use crate::engine::loops::Severity;
use crate::engine::options::{DAY, MILLISECOND, MINUTE, SECOND, human};

crate::engine::options! {
    /// The endpoint that is called about runaway sessions, and how often.
    pub struct WebhookOptions in "webhook" {
        /// The endpoint; empty: none.
        pub url: String = String::new();
        /// Send over plain http too, where the address says so.
        pub allow_http: bool = false;
        /// A file with the secret that bodies are signed with.
        pub secret_file: PathBuf = PathBuf::new();
        /// The environment variable that holds the secret, if there is no file.
        pub secret_env: String = "AGENTGAUGE_WEBHOOK_SECRET".to_owned();
        /// Only log what would be sent.
        pub dry_run: bool = true;
        /// The severity of a loop from which its session counts as a runaway: warning, critical.
        pub severity: Severity = Severity::Critical;
        /// Least time between two calls about one session.
        #[serde(with = "human")]
        pub cooldown: Duration = 10 * MINUTE, within SECOND..=DAY;
        /// Most sessions in a minute that the endpoint is called about; more are left out and counted.
        pub max_per_minute: usize = 10, within 1..=1_000;
        /// How long one attempt may take.
        #[serde(with = "human")]
        pub timeout: Duration = 5 * SECOND, within MILLISECOND..=MINUTE;
        /// Attempts for one session.
        pub max_attempts: u32 = 4, within 1..=10;
    }
}
