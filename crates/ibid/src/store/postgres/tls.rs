//! TLS by URL: `sslmode` and `sslrootcert`.
//!
//! `require`, `verify-ca` and `verify-full` all check the certificate and the name in it: encryption to an unverified server
//! keeps out only passive listeners. The other modes, and a URL without a mode, are without TLS.

#[cfg(feature = "postgres-tls")]
use std::sync::Arc;

use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use super::PostgresOpenError;

/// The TLS parameters of a URL.
#[derive(Debug, Default)]
pub(super) struct PostgresTlsOptions {
    required: bool,
    /// A file of certificates to trust instead of the system's.
    roots: Option<String>,
}

impl PostgresTlsOptions {
    /// Takes `sslmode` or `sslrootcert`; anything else is not about TLS.
    pub(super) fn take(&mut self, name: &str, value: &str) -> Result<bool, PostgresOpenError> {
        match (name, value) {
            ("sslmode", "require" | "verify-ca" | "verify-full") => self.required = true,
            ("sslmode", "disable" | "allow" | "prefer") => self.required = false,
            ("sslmode", _) => return Err(PostgresOpenError::BadUrl),
            // The one value of libpq that is not a path.
            ("sslrootcert", "system") => self.roots = None,
            ("sslrootcert", path) => self.roots = Some(percent_decode(path)),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets the mode of the driver and returns the connector.
    pub(super) fn apply_to(self, config: &mut Config) -> Result<Tls, PostgresOpenError> {
        if !self.required {
            config.ssl_mode(SslMode::Disable);
            return Ok(Tls::Off);
        }
        config.ssl_mode(SslMode::Require);
        connector(self.roots)
    }
}

/// The connector: plain TCP or TLS.
#[derive(Clone)]
pub(super) enum Tls {
    Off,
    #[cfg(feature = "postgres-tls")]
    On(tokio_postgres_rustls::MakeRustlsConnect),
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Tls::Off) { "Off" } else { "On" })
    }
}

#[cfg(not(feature = "postgres-tls"))]
fn connector(_: Option<String>) -> Result<Tls, PostgresOpenError> {
    Err(PostgresOpenError::Tls { source: "this build has no TLS: the feature `postgres-tls` is off".into() })
}

#[cfg(feature = "postgres-tls")]
fn connector(roots: Option<String>) -> Result<Tls, PostgresOpenError> {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    let failed = |source: Box<dyn std::error::Error + Send + Sync>| PostgresOpenError::Tls { source };
    let certificates: Vec<CertificateDer<'static>> = match roots {
        Some(path) => CertificateDer::pem_file_iter(&path)
            .and_then(Iterator::collect)
            .map_err(|error| failed(format!("cannot read certificates from `{path}`: {error}").into()))?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let mut trusted = rustls::RootCertStore::empty();
    let (taken, _) = trusted.add_parsable_certificates(certificates);
    if taken == 0 {
        return Err(failed("there is no certificate to trust; name a file with `sslrootcert=PATH`".into()));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(error.into()))?
        .with_root_certificates(trusted)
        .with_no_client_auth();
    Ok(Tls::On(tokio_postgres_rustls::MakeRustlsConnect::new(config)))
}

/// Decodes the percent escapes of a path in a URL. Text that is not an escape stays the same.
fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = (*first == b'%')
            .then(|| tail.get(..2))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
