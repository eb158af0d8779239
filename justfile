# Recipes for the desk; CI runs the same commands from .ci/run.

# Everything a change must pass.
check: fmt clippy test doc deny

fmt:
    cargo fmt --check

clippy:
    cargo clippy --workspace --all-targets -- -D warnings

test:
    cargo test --workspace

doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items

deny:
    .ci/run licences advisories

# Writes deploy/prometheus/drops.test.yml anew: what the daemon exports of simulated agents, and what is expected of the rules.
simulate:
    -cargo test --test daemon simulated
    cp target/tmp/drops.test.yml deploy/prometheus/drops.test.yml
    promtool test rules deploy/prometheus/drops.test.yml

bench:
    cargo bench -p agentgauge-bench

# Puts faults into the engine, one after the other, each of which `verify` has to find.
mutants:
    tests/real/mutants

# Real parts: the Python SDK's exporters, Prometheus, Alertmanager, promtool, the Collector, Kafka.
real:
    .ci/run packaged real kafka

# What takes hours, by the same tests: new random cases, many kills, losses of power, changes of owners, long outages.
# docs/reliability.md has what came of it last.
soak rounds="10":
    #!/usr/bin/env bash
    set -euxo pipefail
    for round in $(seq {{rounds}}); do
        PROPTEST_RNG_SEED=$(od -An -N6 -tu8 /dev/urandom | tr -d ' ') cargo test --workspace --lib --test engine
    done
    AGENTGAUGE_STORE_SEEDS=$(({{rounds}} * 1000)) cargo test --lib loss_of_power
    AGENTGAUGE_KILLS=$(({{rounds}} * 20)) cargo test --test daemon kill
    AGENTGAUGE_REBALANCES=$(({{rounds}} * 10)) AGENTGAUGE_OUTAGE_SECONDS=240 .ci/run packaged kafka
