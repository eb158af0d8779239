//! The `agentgauge` command.

fn main() {}
