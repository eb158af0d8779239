//! Compiles `proto/` to Rust without a `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(
        ["proto/agentgauge/v1/update.proto", "proto/agentgauge/v1/report.proto"],
        ["proto"],
    )?;
    prost_build::Config::new()
        .btree_map(["."])
        .type_attribute("agentgauge.v1.AgentKey", "#[derive(Ord, PartialOrd)]")
        // Most traces have none, and an envelope is mostly something smaller.
        .boxed(".agentgauge.v1.TraceUpdate.attempt")
        .boxed(".agentgauge.v1.Envelope.message.trace")
        .boxed(".agentgauge.v1.Envelope.message.session")
        .compile_fds(files)?;
    Ok(())
}
