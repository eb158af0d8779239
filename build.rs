//! Compiles `proto/` to Rust without a `protoc`.

use std::path::PathBuf;
use std::{env, fs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(
        ["proto/agentgauge/v1/update.proto", "proto/agentgauge/v1/report.proto"],
        ["proto"],
    )?;
    prost_build::Config::new()
        .btree_map(["."])
        .type_attribute("agentgauge.v1.AgentKey", "#[derive(Ord, PartialOrd)]")
        // What stages hold of them is in snapshots.
        .type_attribute("agentgauge.v1.AgentKey", SAVED)
        .type_attribute("agentgauge.v1.Attempt", SAVED)
        .type_attribute("agentgauge.v1.ReportedScore", SAVED)
        .type_attribute("agentgauge.v1.RunTrace", SAVED)
        .type_attribute("agentgauge.v1.SessionKey", SAVED)
        .type_attribute("agentgauge.v1.Loop", SAVED)
        .type_attribute("agentgauge.v1.Spent", SAVED)
        .type_attribute("agentgauge.v1.Tokens", SAVED)
        .type_attribute("agentgauge.v1.Violation", SAVED)
        // Most traces have none, and an envelope is mostly something smaller.
        .boxed(".agentgauge.v1.TraceUpdate.attempt")
        .boxed(".agentgauge.v1.Envelope.message.trace")
        .boxed(".agentgauge.v1.Envelope.message.session")
        .compile_fds(files)?;
    query()
}

/// The query API apart from the messages between stages: its code speaks to the network, and the engine must not.
fn query() -> Result<(), Box<dyn std::error::Error>> {
    #[expect(clippy::disallowed_methods, reason = "how Cargo tells where to write")]
    let out = PathBuf::from(env::var("OUT_DIR")?).join("query");
    fs::create_dir_all(&out)?;
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).open_file("agentgauge/v1/query.proto")?;
    fs::write(out.join("descriptors.bin"), compiler.encode_file_descriptor_set())?;
    tonic_prost_build::configure()
        .build_client(false)
        .btree_map(".")
        .out_dir(&out)
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}

const SAVED: &str = "#[derive(serde::Deserialize, serde::Serialize)] #[serde(default)]";
