//! Checks the upstream from here: whether it accepts connections and, with TLS, whether the gateway would trust it and for
//! how much longer. Sends nothing but the handshake.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::Uri;
use http::uri::Scheme;
use rustls::ProtocolVersion;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use x509_cert::Certificate;
use x509_cert::der::Decode;

use super::findings::{Finding, Grade, line};
use crate::config::UpstreamSettings;
use crate::gateway::connect::CONNECT_FOR;
use crate::gateway::upstream_tls::{Offer, UpstreamTls};
use crate::output::Failure;

/// The findings, and the failure that the command ends with, if the upstream caused one.
pub(super) struct UpstreamProbe {
    pub(super) findings: Vec<Finding>,
    pub(super) failure: Option<Failure>,
}

impl UpstreamProbe {
    fn with_failure(mut self, finding: Finding, problem: String, hint: &str) -> UpstreamProbe {
        let cause = finding.found.clone();
        self.findings.push(finding);
        self.failure = Some(Failure::no(problem).because(cause).hint(hint));
        self
    }
}

/// Connects to the upstream, speaks TLS if it is an `https` one, and hangs up.
pub(super) async fn look_at(settings: &UpstreamSettings) -> UpstreamProbe {
    let mut probe = UpstreamProbe { findings: Vec::new(), failure: None };
    let url = &settings.url;
    let tcp = match connect(url).await {
        Ok(tcp) => tcp,
        Err(cause) => {
            let finding = line("upstream", Grade::Bad, cause, "requests get 503 and are not executed");
            let hint = "start the upstream, or give the address that it listens on";
            return probe.with_failure(finding, format!("cannot connect to the upstream at `{url}`"), hint);
        }
    };
    probe.findings.push(line("upstream", Grade::Ok, url.to_string(), "it takes connections"));
    if url.scheme() != Some(&Scheme::HTTPS) {
        return probe;
    }
    let offer = if settings.http2 { Offer::Http2Only } else { Offer::Either };
    let tls = match UpstreamTls::new(url.host().unwrap_or_default(), &settings.tls, offer) {
        Ok(tls) => tls,
        Err(error) => {
            let finding = line("upstream TLS", Grade::Bad, error.to_string(), "the gateway would not start");
            return probe.with_failure(
                finding,
                format!("no TLS with the upstream at `{url}`"),
                "check `[upstream_tls]`",
            );
        }
    };
    match tls.handshake(tcp).await {
        Err(failure) => {
            let finding =
                line("upstream TLS", Grade::Bad, failure.cause, "requests get 503 and are not executed");
            probe = probe.with_failure(finding, format!("no TLS with the upstream at `{url}`"), failure.hint);
        }
        Ok(connection) => probe.findings.extend(tls_findings(&connection, &tls, settings)),
    }
    if let Some(identity) = &settings.tls.identity {
        probe.findings.extend(identity.cert.first().map(|own| expiry("client certificate", own)));
    }
    probe
}

async fn connect(url: &Uri) -> Result<TcpStream, String> {
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    let usual = if url.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 };
    let connecting = TcpStream::connect((host, url.port_u16().unwrap_or(usual)));
    match tokio::time::timeout(CONNECT_FOR, connecting).await {
        Ok(connected) => connected.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no connection within {} s", CONNECT_FOR.as_secs())),
    }
}

/// Returns the findings about a successful handshake: protocol, certificate, expiry.
fn tls_findings(
    connection: &TlsStream<TcpStream>,
    tls: &UpstreamTls,
    settings: &UpstreamSettings,
) -> Vec<Finding> {
    let session = connection.get_ref().1;
    let version = match session.protocol_version() {
        Some(ProtocolVersion::TLSv1_3) => "TLS 1.3",
        Some(ProtocolVersion::TLSv1_2) => "TLS 1.2",
        _ => "TLS",
    };
    let (alpn, meaning) = match session.alpn_protocol() {
        Some(b"h2") => ("h2", "requests share connections by HTTP/2"),
        Some(_) => ("http/1.1", "requests go by HTTP/1.1"),
        None => ("none", "it negotiates no protocol, so requests go by HTTP/1.1"),
    };
    let mut findings = vec![line("upstream TLS", Grade::Ok, format!("{version}, ALPN {alpn}"), meaning)];
    let Some(leaf) = session.peer_certificates().and_then(|chain| chain.first()) else { return findings };
    let issuer = Certificate::from_der(leaf).map(|leaf| leaf.tbs_certificate.issuer.to_string());
    let by = if settings.tls.roots.is_some() { "`ca`" } else { "the system's authorities" };
    findings.push(line(
        "upstream certificate",
        Grade::Ok,
        format!(
            "for `{}`, signed by {}",
            tls.server_name().to_str(),
            issuer.unwrap_or_else(|_| "?".to_owned())
        ),
        format!("trusted by {by}"),
    ));
    findings.push(expiry("upstream expiry", leaf));
    findings
}

/// Returns the finding about the remaining validity of a certificate.
fn expiry(check: &'static str, certificate: &CertificateDer<'_>) -> Finding {
    let Ok(parsed) = Certificate::from_der(certificate) else {
        return line(check, Grade::Unseen, "its dates can't be read", "ask who issued it");
    };
    let until = parsed.tbs_certificate.validity.not_after.to_unix_duration();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    remaining(check, until, now)
}

fn remaining(check: &'static str, until: Duration, now: Duration) -> Finding {
    match until.checked_sub(now) {
        None => line(check, Grade::Bad, "expired", "renew it: it is refused"),
        Some(left) => {
            let facts = match left.as_secs() / DAY.as_secs() {
                1 => "1 day left".to_owned(),
                days => format!("{days} days left"),
            };
            match left < RENEW_BEFORE {
                true => {
                    line(check, Grade::Warning, facts, "renew it now: requests get 503 once it has expired")
                }
                false => line(check, Grade::Ok, facts, "valid"),
            }
        }
    }
}

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Remaining validity below which a certificate should have been renewed: automatic renewal happens with a third of 90
/// days left, and two weeks before expiry an operator still has time.
const RENEW_BEFORE: Duration = Duration::from_secs(14 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_left_are_counted_and_graded() {
        let now = 1000 * DAY;
        for (until, found, grade) in [
            (now + 90 * DAY, "90 days left", Grade::Ok),
            (now + 14 * DAY, "14 days left", Grade::Ok),
            (now + 13 * DAY, "13 days left", Grade::Warning),
            (now + DAY, "1 day left", Grade::Warning),
            (now, "0 days left", Grade::Warning),
            (now - DAY, "expired", Grade::Bad),
        ] {
            let finding = remaining("expiry", until, now);
            assert_eq!((finding.found.as_str(), finding.grade), (found, grade));
        }
    }
}
