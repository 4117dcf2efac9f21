//! Explains a failed TLS handshake in plain words: the cause, and what to do about it.

use std::io;
use std::time::{Duration, UNIX_EPOCH};

use rustls::pki_types::{ServerName, UnixTime};
use rustls::{AlertDescription, CertificateError, Error};

/// The cause of a failed handshake. Nothing of a request was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no TLS with the upstream: {cause}")]
pub(crate) struct TlsError {
    pub(crate) cause: String,
    pub(crate) hint: &'static str,
}

impl TlsError {
    /// Explains an error of the handshake on a connection to `name`.
    pub(crate) fn explain(error: &io::Error, name: &ServerName<'_>) -> TlsError {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        let (cause, hint) = match inner {
            Some(inner) => of_rustls(inner, &name.to_str()),
            None if error.kind() == io::ErrorKind::UnexpectedEof => {
                ("it closed the connection during the handshake".to_owned(), NOT_TLS)
            }
            None => (format!("the connection broke during the handshake: {error}"), NOT_TLS),
        };
        TlsError { cause, hint }
    }

    /// Failure of a handshake that took longer than `limit`.
    pub(crate) fn too_slow(limit: Duration) -> TlsError {
        TlsError { cause: format!("the handshake was not done within {} s", limit.as_secs()), hint: NOT_TLS }
    }

    /// Failure of an upstream that speaks TLS and did not choose HTTP/2.
    pub(crate) fn no_http2() -> TlsError {
        TlsError { cause: "it does not offer HTTP/2 (ALPN)".to_owned(), hint: NO_HTTP2 }
    }
}

fn of_rustls(error: &Error, name: &str) -> (String, &'static str) {
    match error {
        Error::InvalidCertificate(error) => of_certificate(error, name),
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            ("it demands a client certificate".to_owned(), GIVE_CERTIFICATE)
        }
        Error::AlertReceived(alert) if is_about_our_certificate(*alert) => {
            (format!("it refused the gateway's client certificate ({alert:?})"), OTHER_CERTIFICATE)
        }
        Error::AlertReceived(AlertDescription::NoApplicationProtocol) | Error::NoApplicationProtocol => {
            ("it does not offer the HTTP version that is asked for (ALPN)".to_owned(), NO_HTTP2)
        }
        Error::AlertReceived(AlertDescription::UnrecognisedName) => {
            (format!("it serves no host named `{name}`"), OTHER_NAME)
        }
        // Servers with TLS 1.2 also send this for a missing client certificate.
        Error::AlertReceived(AlertDescription::HandshakeFailure) => {
            ("it refused the handshake (HandshakeFailure)".to_owned(), NOTHING_IN_COMMON)
        }
        Error::AlertReceived(alert) => {
            (format!("it ended the handshake with the alert {alert:?}"), LOOK_THERE)
        }
        Error::InvalidMessage(_) => ("its answer is not TLS".to_owned(), NOT_TLS),
        Error::PeerIncompatible(why) => {
            (format!("there is no TLS version or cipher that both speak ({why:?})"), NOTHING_IN_COMMON)
        }
        other => (other.to_string(), LOOK_THERE),
    }
}

fn of_certificate(error: &CertificateError, name: &str) -> (String, &'static str) {
    match error {
        CertificateError::UnknownIssuer => {
            ("its certificate is not signed by an authority that the gateway trusts".to_owned(), TRUST)
        }
        CertificateError::BadSignature => (
            "its certificate names an authority that the gateway trusts, and another one of that name signed it"
                .to_owned(),
            TRUST,
        ),
        CertificateError::ExpiredContext { not_after, .. } => {
            (format!("its certificate expired on {}", day(*not_after)), RENEW)
        }
        CertificateError::Expired => ("its certificate has expired".to_owned(), RENEW),
        CertificateError::NotValidYetContext { not_before, .. } => {
            (format!("its certificate is valid only from {}", day(*not_before)), RENEW)
        }
        CertificateError::NotValidYet => ("its certificate is not valid yet".to_owned(), RENEW),
        CertificateError::NotValidForNameContext { presented, .. } => {
            let names: Vec<String> = presented.iter().map(|name| format!("`{}`", plain_name(name))).collect();
            let names = if names.is_empty() { "no name at all".to_owned() } else { names.join(", ") };
            (format!("its certificate is for {names}, not for `{name}`"), OTHER_NAME)
        }
        CertificateError::NotValidForName => (format!("its certificate is not for `{name}`"), OTHER_NAME),
        other => (format!("its certificate can't be used: {other}"), LOOK_THERE),
    }
}

/// Extracts the name from rustls' form: `DnsName("api.test")` or `IpAddress(127.0.0.1)`.
fn plain_name(listed: &str) -> &str {
    let inner = listed.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(listed);
    inner.trim_matches('"')
}

fn is_about_our_certificate(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::DecryptError
    )
}

fn day(at: UnixTime) -> String {
    let at = UNIX_EPOCH + Duration::from_secs(at.as_secs());
    jiff::Timestamp::try_from(at).map_or_else(|_| "?".to_owned(), |at| at.strftime("%Y-%m-%d").to_string())
}

const TRUST: &str = "name the file with the authority's certificate as `ca` in `[upstream_tls]`";
const RENEW: &str = "renew the upstream's certificate, or set this host's clock";
const OTHER_NAME: &str = "set `server_name` in `[upstream_tls]` to a name of the upstream's certificate";
const GIVE_CERTIFICATE: &str = "give the gateway one by `cert` and `key` in `[upstream_tls]`";
const OTHER_CERTIFICATE: &str =
    "check that `cert` in `[upstream_tls]` is valid and signed by an authority of the upstream's";
const NO_HTTP2: &str = "remove `upstream_http2`: without it HTTP/2 is used where the upstream offers it";
const NOTHING_IN_COMMON: &str =
    "let the upstream speak TLS 1.2 or 1.3; it may also demand a client certificate";
const NOT_TLS: &str = "check that the upstream speaks TLS on this port; if it does not, write `http://`";
const LOOK_THERE: &str = "the upstream's own log says more";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_errors_are_told_in_plain_words() {
        let name = ServerName::try_from("api.test").unwrap();
        let at = UnixTime::since_unix_epoch(Duration::from_secs(1_577_836_800));
        let presented = vec!["DnsName(\"a.test\")".to_owned(), "IpAddress(10.0.0.1)".to_owned()];
        let expected = name.clone();
        for (error, words) in [
            (CertificateError::UnknownIssuer, "not signed by an authority"),
            (CertificateError::ExpiredContext { time: at, not_after: at }, "expired on 2020-01-01"),
            (CertificateError::NotValidYetContext { time: at, not_before: at }, "only from 2020-01-01"),
            (
                CertificateError::NotValidForNameContext { expected, presented },
                "for `a.test`, `10.0.0.1`, not for `api.test`",
            ),
            (CertificateError::Revoked, "can't be used"),
        ] {
            let error = io::Error::new(io::ErrorKind::InvalidData, Error::InvalidCertificate(error));
            let failure = TlsError::explain(&error, &name);
            assert!(failure.cause.contains(words), "{failure:?}");
        }
    }
}
