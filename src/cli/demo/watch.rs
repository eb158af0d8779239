//! The live table: what the daemon's own API says of its agents.

use std::io::IsTerminal;

use comfy_table::{Table, presets};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::LOOK_EVERY;
use crate::cli::{CliError, Process};

/// Prints the agents whenever they change, in place on a terminal.
pub(super) async fn watch(process: &mut Process<'_>, http: &str) -> Result<(), CliError> {
    let in_place = std::io::stdout().is_terminal();
    let mut shown = String::new();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let agents = agents(http).await?;
        let text = table(&agents).to_string();
        if agents.is_empty() || text == shown {
            continue;
        }
        let up = shown.lines().count();
        if in_place && up > 0 {
            // Back to the first line of the table, and clear what is below.
            write!(process.out, "\x1b[{up}A\x1b[J").map_err(CliError::Output)?;
        }
        writeln!(process.out, "{text}")
            .and_then(|()| process.out.flush())
            .map_err(CliError::Output)?;
        shown = text;
    }
}

async fn agents(http: &str) -> Result<Vec<Value>, CliError> {
    let body = get(http, "/api/v1/agents")
        .await
        .map_err(|error| CliError::Client { address: http.to_owned(), why: error.to_string() })?;
    let mut answer: Value = serde_json::from_str(&body).map_err(CliError::Json)?;
    match answer.get_mut("agents").map(Value::take) {
        Some(Value::Array(agents)) => Ok(agents),
        _ => Ok(Vec::new()),
    }
}

/// The body of an answer; HTTP/1.0, so that it ends with the connection.
async fn get(address: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.split_once("\r\n\r\n").map_or_else(String::new, |(_, body)| body.to_owned()))
}

fn table(agents: &[Value]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "service",
        "agent",
        "sessions",
        "traces",
        "reliability",
        "consistency",
        "loops",
    ]);
    for agent in agents {
        let name = |key: &str| agent[key].as_str().unwrap_or("-").to_owned();
        let score = |key: &str| {
            agent[key].as_f64().map_or_else(|| "-".to_owned(), |score| format!("{score:.4}"))
        };
        let loops: Vec<String> = agent["loops"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(kind, count)| format!("{kind} {count}"))
            .collect();
        table.add_row([
            name("service_name"),
            name("agent_name"),
            agent["sessions"].to_string(),
            agent["traces"].to_string(),
            score("reliability"),
            score("consistency"),
            loops.join(", "),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_without_scores_has_dashes() {
        let agent = serde_json::json!({
            "agent_name": null, "service_name": "shop", "sessions": 1, "traces": 2,
            "reliability": 0.5, "consistency": null, "loops": {"exact_repeat": 1},
        });
        let text = table(&[agent]).to_string();
        assert!(text.contains("shop") && text.contains("0.5000"), "{text}");
        assert!(text.contains(" - ") && text.contains("exact_repeat 1"), "{text}");
    }
}
