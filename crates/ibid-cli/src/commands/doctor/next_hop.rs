//! Reports the proxies between here and the upstream, as far as a response to one `HEAD /` names them.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::Empty;
use tower_service::Service;

use super::findings::{Finding, Grade, line};
use crate::config::UpstreamSettings;
use crate::gateway::forward::Forwarder;
use crate::gateway::next_hop::NamedProxy;

/// Requests the upstream's root and reports the proxies that the response came through.
pub(super) async fn look_at(settings: &UpstreamSettings) -> Vec<Finding> {
    let Some(fields) = response_fields(settings).await else {
        let meaning = "`HEAD /` got no response, so proxies can't be recognised";
        return vec![line("next hop", Grade::Unseen, "no answer", meaning)];
    };
    let findings: Vec<_> = NamedProxy::in_response(&fields).map(finding).collect();
    match findings.is_empty() {
        true => vec![line(
            "next hop",
            Grade::Unseen,
            "no proxy is named",
            "HAProxy, for one, doesn't name itself",
        )],
        false => findings,
    }
}

fn finding(proxy: NamedProxy) -> Finding {
    let grade = if proxy.has_warning() { Grade::Warning } else { Grade::Ok };
    line("next hop", grade, proxy.name(), proxy.advice())
}

async fn response_fields(settings: &UpstreamSettings) -> Option<HeaderMap> {
    let mut forwarder = Forwarder::new(settings.url.clone(), settings.http2, &settings.tls).ok()?;
    let head = Request::builder().method(Method::HEAD).uri("/").body(Empty::<Bytes>::new()).ok()?;
    let response = tokio::time::timeout(ANSWER_WITHIN, forwarder.call(head)).await.ok()?;
    response.ok().map(|response| response.into_parts().0.headers)
}

/// Time-out of the request: enough for any root page.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
