//! The page: the files of `web/`, which the binary contains unchanged. There is no build step, and nothing is loaded from
//! elsewhere.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

use super::http::Exporter;
use super::query::Query;

/// A file of the page, with its path and its content type.
struct Asset {
    path: &'static str,
    content_type: &'static str,
    text: &'static str,
}

macro_rules! assets {
    ($($path:literal => $file:literal, $content_type:literal;)*) => {
        &[$(Asset {
            path: $path,
            content_type: concat!($content_type, "; charset=utf-8"),
            text: include_str!(concat!("web/", $file)),
        }),*]
    };
}

/// All files of the page.
const ASSETS: &[Asset] = assets! {
    "/" => "index.html", "text/html";
    "/assets/style.css" => "style.css", "text/css";
    "/assets/app.js" => "app.js", "text/javascript";
    "/assets/runbook.js" => "runbook.js", "text/javascript";
    "/assets/scheme.js" => "scheme.js", "text/javascript";
    "/assets/search.js" => "search.js", "text/javascript";
    "/assets/problems.js" => "problems.js", "text/javascript";
    "/assets/sessions.js" => "sessions.js", "text/javascript";
    "/assets/timeline.js" => "timeline.js", "text/javascript";
    "/assets/alerts.js" => "alerts.js", "text/javascript";
    "/assets/range.js" => "range.js", "text/javascript";
    "/assets/dom.js" => "dom.js", "text/javascript";
    "/assets/chart.js" => "chart.js", "text/javascript";
    "/assets/fleet.js" => "fleet.js", "text/javascript";
    "/assets/agent.js" => "agent.js", "text/javascript";
    "/assets/drops.js" => "drops.js", "text/javascript";
    "/assets/session.js" => "session.js", "text/javascript";
    "/assets/icon.svg" => "icon.svg", "image/svg+xml";
    "/assets/uplot/uPlot.iife.min.js" => "uplot/uPlot.iife.min.js", "text/javascript";
    "/assets/uplot/uPlot.min.css" => "uplot/uPlot.min.css", "text/css";
    "/assets/uplot/LICENSE" => "uplot/LICENSE", "text/plain";
};

/// The routes.
pub(super) fn router<Q: Query>() -> Router<Exporter<Q>> {
    let mut router = Router::new();
    for asset in ASSETS {
        let headers = [
            (header::CONTENT_TYPE, asset.content_type),
            // A new version of the daemon has a new page.
            (header::CACHE_CONTROL, "no-cache"),
        ];
        router = router
            .route(asset.path, get(move || async move { (headers, asset.text).into_response() }));
    }
    router
}
