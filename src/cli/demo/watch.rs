//! Prints the problems that the daemon finds during the story, one per line, from its own API.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::LOOK_EVERY;
use crate::cli::{CliError, Process};

/// Prints each problem when it is found, and when it is over.
pub(super) async fn watch(process: &mut Process<'_>, http: &str) -> Result<(), CliError> {
    let mut found = BTreeMap::new();
    let mut since = Duration::ZERO;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        since += LOOK_EVERY;
        let now = problems(http).await?;
        let began = now.iter().filter(|(key, _)| !found.contains_key(*key));
        let over = found.iter().filter(|(key, _)| !now.contains_key(*key));
        let lines: Vec<String> = began
            .map(|(_, text)| text.clone())
            .chain(over.map(|((agent, what), _): (&(String, String), &String)| {
                format!("{agent}: over ({what})")
            }))
            .collect();
        for line in lines {
            let (minutes, seconds) = (since.as_secs() / 60, since.as_secs() % 60);
            writeln!(process.out, "  {minutes}:{seconds:02}  {line}").map_err(CliError::Output)?;
        }
        process.out.flush().map_err(CliError::Output)?;
        found = now;
    }
}

/// The present problems, one per line, by agent and kind.
async fn problems(http: &str) -> Result<BTreeMap<(String, String), String>, CliError> {
    let failed = |why: String| CliError::Client { address: http.to_owned(), why };
    let body = get(http, "/api/v1/problems").await.map_err(|error| failed(error.to_string()))?;
    let answer: Value = serde_json::from_str(&body).map_err(CliError::Json)?;
    let problems = answer["problems"].as_array().into_iter().flatten();
    Ok(problems.filter(|problem| problem["severity"] == "critical").map(line).collect())
}

fn line(problem: &Value) -> ((String, String), String) {
    let text = |key: &str| problem[key].as_str().unwrap_or_default().to_owned();
    let agent = &problem["agent"];
    let named = ["agent_name", "service_name"].iter().find_map(|key| agent[key].as_str());
    let version = agent["agent_version"].as_str().map(|version| format!(" {version}"));
    let name = format!("{}{}", named.unwrap_or("?"), version.unwrap_or_default());
    let percent = |key: &str| problem[key].as_f64().map_or(0.0, |share| (share * 100.0).round());
    let said = match problem["kind"].as_str() {
        Some("drop") => {
            let (from, to) = (percent("from"), percent("to"));
            format!("{name} drops: {} up from {from} % to {to} %", text("what"))
        }
        Some("loop") => format!("{name} loops: {} of {}", text("what"), text("tool")),
        _ => format!("{name}: {}", text("kind")),
    };
    ((name, format!("{} {}", text("kind"), text("what")).trim().to_owned()), said)
}

/// Requests a path and returns the body of the answer; over HTTP/1.0, so that the body ends with the connection.
async fn get(address: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.split_once("\r\n\r\n").map_or_else(String::new, |(_, body)| body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_says_from_where_to_where() {
        let problem = serde_json::json!({
            "kind": "drop", "what": "verdict", "severity": "critical", "from": 0.031, "to": 0.4,
            "agent": {"agent_name": "refunds", "service_name": "shop", "agent_version": "1.5"},
        });
        let (key, said) = line(&problem);
        assert_eq!(said, "refunds 1.5 drops: verdict up from 3 % to 40 %");
        assert_eq!(key.1, "drop verdict");
    }
}
