# Recipes for the desk; CI runs the same commands from .ci/run.

# Everything a change must pass.
check: fmt clippy test doc deny

fmt:
    cargo fmt --check

clippy:
    cargo clippy --all-targets -- -D warnings

test:
    cargo test

doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --document-private-items

deny:
    cargo deny check bans licenses sources

bench:
    cargo bench

# Real parts: the Python SDK's exporters, Prometheus, Alertmanager, promtool, Kafka, the Collector.
real:
    tests/real/run
