//! Documents that are written from the code are those of this code.

#[test]
fn the_page_of_conventions_is_not_stale() {
    let page = agentgauge::engine::convention::page();
    assert!(
        include_str!("../../docs/conventions.md") == page,
        "docs/conventions.md is stale; write it anew with `cargo run -- conventions > docs/conventions.md`"
    );
}

#[test]
fn the_page_of_metrics_is_not_stale() {
    let page = agentgauge::export::page();
    assert!(
        include_str!("../../docs/metrics.md") == page,
        "docs/metrics.md is stale; write it anew with `cargo run -- metrics > docs/metrics.md`"
    );
}
