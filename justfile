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

# What takes hours, by the same tests: new random cases, many kills, losses of power, changes of owners, long outages, load for
# long, fuzzing. Each form has a short one, which CI runs; docs/reliability.md has what came of it last.
soak rounds="10": (soak-cases rounds) (soak-store rounds) (soak-kills rounds) (soak-load "3600" "600") (soak-week "7") (soak-changes "1000000") (soak-fuzz "3600") (soak-kafka rounds)

# New random cases of every property.
soak-cases rounds="10":
    #!/usr/bin/env bash
    set -euxo pipefail
    for round in $(seq {{rounds}}); do
        PROPTEST_RNG_SEED=$(od -An -N6 -tu8 /dev/urandom | tr -d ' ') cargo test --workspace --lib --test engine
    done

# 10,000 losses of power over the simulated disk.
soak-store rounds="10":
    AGENTGAUGE_STORE_SEEDS=$(({{rounds}} * 1000)) cargo test --lib loss_of_power

# 200 kills under load.
soak-kills rounds="10":
    AGENTGAUGE_KILLS=$(({{rounds}} * 20)) cargo test --test daemon kill

# An hour at 80 % of saturation, ten minutes at 200 %, caps of memory from 64 MiB to 2 GiB, ten minutes of a network that is cut.
soak-load steady="3600" twice="600":
    cargo build --release
    AGENTGAUGE_STEADY_SECONDS={{steady}} AGENTGAUGE_TWICE_SECONDS={{twice}} AGENTGAUGE_CUTS_SECONDS={{twice}} tests/real/load.py target/release/agentgauge

# So many days of simulated traffic, whose state does not grow from the second on.
soak-week days="7":
    AGENTGAUGE_DAYS={{days}} cargo test --test daemon days_of_traffic -- --nocapture

# So many random changes of what each decoder reads, by fixed seeds; one that breaks a check goes to target/tmp/fuzz.
soak-changes cases="1000000":
    AGENTGAUGE_FUZZ_CASES={{cases}} cargo test --release --test engine corpus::

# Seconds for each decoder, led by what its code does; what breaks a check goes to target/fuzz.
soak-fuzz seconds="3600":
    #!/usr/bin/env bash
    set -euxo pipefail
    for target in $(sed -nE 's/^name = "([a-z]+)"$/\1/p' fuzz/Cargo.toml); do
        fuzz/run "$target" -max_total_time={{seconds}}
    done

# 100 changes of owners, and four minutes without brokers, with real Kafka.
soak-kafka rounds="10":
    AGENTGAUGE_REBALANCES=$(({{rounds}} * 10)) AGENTGAUGE_OUTAGE_SECONDS=240 .ci/run packaged kafka
