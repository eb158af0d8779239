//! Prometheus and Alertmanager beside the demo, if they are installed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::cli::{CliError, Process};
use crate::config::Config;
use crate::rules::Plan;

/// Running Prometheus and Alertmanager, which end when it is dropped.
#[derive(Debug)]
pub(super) struct Alerting {
    children: Vec<Child>,
    folder: PathBuf,
}

/// The addresses of Prometheus and Alertmanager.
const PROMETHEUS: &str = "127.0.0.1:9090";
const ALERTMANAGER: &str = "127.0.0.1:9093";

impl Alerting {
    /// Starts those that are installed, with the rules for this configuration, and prints their addresses.
    pub(super) fn start(
        process: &mut Process<'_>,
        http: &str,
        config: &Config,
    ) -> Result<Self, CliError> {
        let folder = std::env::temp_dir().join(format!("agentgauge-demo-{}", std::process::id()));
        let rules = Plan { url: format!("http://{http}"), ..Plan::default() }.with_own(config);
        let rules = rules.render(config)?;
        let files = [
            ("rules.yml", rules),
            ("prometheus.yml", settings(http)),
            ("alertmanager.yml", RECEIVERS.to_owned()),
        ];
        std::fs::create_dir_all(&folder).map_err(CliError::Output)?;
        for (name, text) in files {
            std::fs::write(folder.join(name), text).map_err(CliError::Output)?;
        }
        let mut alerting = Self { children: Vec::new(), folder };
        let path = |name: &str| alerting.folder.join(name).display().to_string();
        let commands: [(&[&str], Vec<String>, &str); 2] = [
            (
                &["alertmanager", "prometheus-alertmanager"],
                vec![
                    format!("--config.file={}", path("alertmanager.yml")),
                    format!("--storage.path={}", path("alerts")),
                    format!("--web.listen-address={ALERTMANAGER}"),
                    "--cluster.listen-address=".to_owned(),
                ],
                ALERTMANAGER,
            ),
            (
                &["prometheus"],
                vec![
                    format!("--config.file={}", path("prometheus.yml")),
                    format!("--storage.tsdb.path={}", path("series")),
                    format!("--web.listen-address={PROMETHEUS}"),
                ],
                PROMETHEUS,
            ),
        ];
        for (names, arguments, address) in commands {
            let child = names.iter().find_map(|name| spawn(name, &arguments));
            let line = match &child {
                Some(_) => format!("{}: http://{address}/", names[0]),
                None => format!("{} is not installed, so it is left out.", names[0]),
            };
            alerting.children.extend(child);
            writeln!(process.out, "{line}").map_err(CliError::Output)?;
        }
        writeln!(process.out, "Alerts: http://{PROMETHEUS}/alerts\n").map_err(CliError::Output)?;
        Ok(alerting)
    }
}

impl Drop for Alerting {
    fn drop(&mut self) {
        for child in &mut self.children {
            // An error means that the process has already ended.
            let _ = child.kill();
            let _ = child.wait();
        }
        remove(&self.folder);
    }
}

fn spawn(name: &str, arguments: &[String]) -> Option<Child> {
    let mut command = Command::new(name);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().ok()
}

/// Removes a temporary folder; if that fails, the system cleans it up.
fn remove(folder: &Path) {
    let _ = std::fs::remove_dir_all(folder);
}

fn settings(http: &str) -> String {
    format!(
        "global: {{scrape_interval: 5s, evaluation_interval: 5s}}\n\
         scrape_configs:\n\
         - job_name: agentgauge\n  static_configs: [{{targets: [\"{http}\"]}}]\n\
         rule_files: [rules.yml]\n\
         alerting: {{alertmanagers: [{{static_configs: [{{targets: [\"{ALERTMANAGER}\"]}}]}}]}}\n"
    )
}

/// A configuration without notifications; alerts are only shown.
const RECEIVERS: &str = "\
route: {receiver: nobody, group_by: [alertname, service_name, gen_ai_agent_name]}
receivers: [{name: nobody}]
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_scrapes_the_demo() {
        assert!(settings("127.0.0.1:1").contains("targets: [\"127.0.0.1:1\"]"));
    }
}
