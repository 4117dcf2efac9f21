//! TLS by URL: `ssl-mode` and `ssl-ca`, as the client programs name them.
//!
//! `required`, `verify_ca` and `verify_identity` all check the certificate and the name in it: encryption to an unverified
//! server keeps out only passive listeners. The other modes, and a URL without a mode, are without TLS.

use mysql_async::Opts;

use super::MysqlOpenError;

/// The TLS parameters of a URL.
#[derive(Debug, Default)]
pub(super) struct MysqlTlsOptions {
    is_required: bool,
    /// A file of certificates to trust instead of the built-in ones.
    roots: Option<String>,
}

impl MysqlTlsOptions {
    /// Takes `ssl-mode` or `ssl-ca`; anything else is not about TLS.
    pub(super) fn take(&mut self, name: &str, value: &str) -> Result<bool, MysqlOpenError> {
        match (name, value.to_ascii_lowercase().as_str()) {
            ("ssl-mode", "required" | "verify_ca" | "verify_identity") => self.is_required = true,
            ("ssl-mode", "disabled" | "preferred") => self.is_required = false,
            ("ssl-mode", _) => return Err(MysqlOpenError::BadUrl),
            ("ssl-ca", _) => self.roots = Some(value.to_owned()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets the mode of TLS in the options of the driver.
    pub(super) fn apply_to(self, opts: Opts) -> Result<Opts, MysqlOpenError> {
        if self.is_required { with_tls(opts, self.roots) } else { Ok(opts) }
    }
}

#[cfg(not(feature = "mysql-tls"))]
fn with_tls(_: Opts, _: Option<String>) -> Result<Opts, MysqlOpenError> {
    Err(MysqlOpenError::Tls { source: "this build has no TLS: the feature `mysql-tls` is off".into() })
}

#[cfg(feature = "mysql-tls")]
fn with_tls(opts: Opts, roots: Option<String>) -> Result<Opts, MysqlOpenError> {
    use std::path::PathBuf;

    let mut tls = mysql_async::SslOpts::default();
    if let Some(path) = roots {
        if let Err(error) = std::fs::metadata(&path) {
            let source = format!("cannot read certificates from `{path}`: {error}").into();
            return Err(MysqlOpenError::Tls { source });
        }
        tls = tls.with_root_certs(vec![PathBuf::from(path).into()]).with_disable_built_in_roots(true);
    }
    Ok(mysql_async::OptsBuilder::from_opts(opts).ssl_opts(tls).into())
}
