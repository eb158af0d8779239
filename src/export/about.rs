//! The facts about the daemon that the page needs: whether texts are kept, and links to other sites.

use schemars::JsonSchema;
use serde::Serialize;

crate::engine::options! {
    /// Addresses of the page, of traces and of Prometheus.
    pub struct LinkOptions in "links" {
        /// Address of the page for people; links in alerts and webhooks begin with it. The page needs a host of its own, not a
        /// path below one.
        pub public_url: String = "http://127.0.0.1:9464".to_owned();
        /// Where a trace is shown, as `https://tempo.example/trace/{trace_id}`; or jaeger+, langfuse+, phoenix+ or zipkin+
        /// before the address of one of these, such as `jaeger+http://jaeger:16686`. Empty: no link.
        pub trace: String = String::new();
        /// Where Prometheus is, such as `http://prometheus:9090`: the page then shows which alerts it fires. The daemon queries
        /// it; a browser need not reach it. Empty: the page shows which alerts the rules would raise.
        pub prometheus_url: String = String::new();
    }
}

/// The daemon.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct AboutView {
    /// Its version.
    pub version: &'static str,
    /// Whether texts and arguments are kept (`assemble.keep_content`).
    pub content_kept: bool,
    /// Where a trace is shown, with `{trace_id}` in it (`links.trace`); null without.
    pub trace_link: Option<String>,
    /// Where OTLP over HTTP is accepted; null where it is not.
    pub otlp_http: Option<String>,
    /// How far back the history of agents reaches.
    pub history_seconds: u64,
    /// Whether Prometheus is asked for the state of alerts (`links.prometheus_url`).
    pub prometheus: bool,
    /// Whether a token is needed to send (`access.tokens`).
    pub needs_token: bool,
}

/// The presets of links to traces: the name before the `+`, and the path.
const PRESETS: &[(&str, &str)] = &[
    ("jaeger", "/trace/{trace_id}"),
    ("langfuse", "/trace/{trace_id}"),
    ("phoenix", "/redirects/traces/{trace_id}"),
    ("zipkin", "/zipkin/traces/{trace_id}"),
];

impl LinkOptions {
    /// The address of the page for people, without a slash at the end.
    pub fn base(&self) -> &str {
        self.public_url.trim_end_matches('/')
    }

    /// Whether the address of the page is http or https and has no path, as the page works only at the root of a host.
    pub fn has_own_host(&self) -> bool {
        let (_, host) = self.base().split_once("://").unwrap_or_default();
        is_http(&self.public_url) && !host.is_empty() && !host.contains(['/', '?', '#'])
    }

    /// The link to a trace, with `{trace_id}` in it; `None` without one.
    pub fn trace_link(&self) -> Option<String> {
        let preset = PRESETS.iter().find_map(|(name, path)| {
            let base = self.trace.strip_prefix(name)?.strip_prefix('+')?;
            Some(format!("{}{path}", base.trim_end_matches('/')))
        });
        preset.or_else(|| (!self.trace.is_empty()).then(|| self.trace.clone()))
    }

    /// Whether the link to a trace is valid: http or https, and with a place for the trace id. True without a link.
    pub fn is_sound(&self) -> bool {
        self.trace_link().is_none_or(|link| is_http(&link) && link.contains("{trace_id}"))
    }
}

/// Whether an address is http or https, so that a browser may be sent there.
pub fn is_http(url: &str) -> bool {
    url.starts_with("http://") || url.starts_with("https://")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preset_knows_the_path() {
        let links = |trace: &str| LinkOptions { trace: trace.to_owned(), ..LinkOptions::default() };
        let jaeger = links("jaeger+http://jaeger:16686/");
        assert_eq!(jaeger.trace_link().unwrap(), "http://jaeger:16686/trace/{trace_id}");
        assert!(jaeger.is_sound() && links("").is_sound());
        assert!(!links("http://jaeger:16686").is_sound());
        assert!(!links("javascript:alert({trace_id})").is_sound());
    }

    #[test]
    fn the_page_has_a_host_of_its_own() {
        let is_allowed = |url: &str| {
            LinkOptions { public_url: url.to_owned(), ..LinkOptions::default() }.has_own_host()
        };
        for url in ["http://127.0.0.1:9464", "https://gauge.example.org/", "http://[::1]:9464"] {
            assert!(is_allowed(url), "{url}");
        }
        for url in [
            "https://ops.example.org/agentgauge",
            "https://ops.example.org/agentgauge/",
            "https://gauge.example.org/?tenant=shop",
            "https://gauge.example.org#/sessions",
            "gauge.example.org",
            "https://",
        ] {
            assert!(!is_allowed(url), "{url}");
        }
    }
}
