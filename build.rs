//! Compiles `proto/` to Rust without a `protoc`.

use std::path::PathBuf;
use std::{env, fs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["proto/agentgauge/v1/report.proto"], ["proto"])?;
    prost_build::compile_fds(files)?;
    query()
}

/// The query API, as a service.
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
