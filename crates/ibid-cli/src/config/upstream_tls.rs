//! `[upstream_tls]`: reads the files and checks that they match, so that a wrong one is an error at start.

use std::io::Read;
use std::sync::Arc;

use http::Uri;
use http::uri::Scheme;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;

use super::toml_reader::{Reader, Section};
use crate::gateway::upstream_tls::{TlsSettings, provider};

/// Reads the table. `upstream` is `None` if it could not be read.
pub(super) fn read(root: &mut Section<'_, '_>, reader: &Reader<'_>, upstream: Option<&Uri>) -> TlsSettings {
    let mut section = root.section("upstream_tls", "upstream_tls");
    let (ca, cert, key) = (section.text("ca"), section.text("cert"), section.text("key"));
    let name = section.text("server_name");
    if section.is_there() && upstream.is_some_and(|upstream| upstream.scheme() != Some(&Scheme::HTTPS)) {
        reader.refuse_with_hint(
            section.line,
            "`[upstream_tls]` has no effect: the upstream is an `http://` URL",
            "write `https://` in `upstream`, or remove the table",
        );
    }
    let keep = |key: &'static str, problem: String| {
        reader.refuse(section.line_of(key).unwrap_or(section.line), format!("`{key}` {problem}"));
    };
    let roots = ca.and_then(|path| roots(&path).inspect_err(|problem| keep("ca", problem.clone())).ok());
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => {
            identity(&cert, &key).inspect_err(|(key, problem)| keep(key, problem.clone())).ok()
        }
        (Some(_), None) if section.line_of("key").is_none() => {
            keep("cert", "needs `key`, the file with its private key".to_owned());
            None
        }
        (None, Some(_)) if section.line_of("cert").is_none() => {
            keep("key", "needs `cert`, the file with its certificate".to_owned());
            None
        }
        _ => None,
    };
    let server_name = name.and_then(|name| match ServerName::try_from(name.clone()) {
        Ok(parsed) => Some(parsed),
        Err(_) => {
            keep("server_name", format!("must be a host name or an address, not `{name}`"));
            None
        }
    });
    section.finish();
    TlsSettings { roots: roots.map(Arc::new), identity: identity.map(Arc::new), server_name }
}

fn roots(path: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for (nth, certificate) in (1..).zip(certificates(path)?) {
        roots
            .add(certificate)
            .map_err(|error| format!("names `{path}`, whose certificate {nth} can't be used: {error}"))?;
    }
    Ok(roots)
}

/// Reads the client certificate with its key. An error comes with the key of the setting that it is about.
fn identity(cert: &str, key: &str) -> Result<CertifiedKey, (&'static str, String)> {
    let chain = certificates(cert).map_err(|problem| ("cert", problem))?;
    let private = contents(key).and_then(|text| {
        PrivateKeyDer::from_pem_slice(&text)
            .map_err(|_| format!("names `{key}`, which holds no private key in PEM that is not encrypted"))
    });
    let private = private.map_err(|problem| ("key", problem))?;
    CertifiedKey::from_der(chain, private, &provider()).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            ("key", format!("names `{key}`, which is not the key of the certificate in `{cert}`"))
        }
        other => ("key", format!("names `{key}`, which can't be used: {other}")),
    })
}

/// Reads every certificate of a file, at least one.
fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = contents(path)?;
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let certificates =
        parsed.map_err(|error| format!("names `{path}`, which can't be read as PEM: {error}"))?;
    if certificates.is_empty() {
        Err(format!("names `{path}`, which holds no certificate in PEM"))
    } else {
        Ok(certificates)
    }
}

fn contents(path: &str) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path).and_then(|file| file.take(PEM_BYTES_MAX).read_to_end(&mut text));
    file.map(|_| text).map_err(|error| format!("names `{path}`, which can't be read: {error}"))
}

/// Most bytes of a file that are read. The certificates of all public authorities together are a fifth of it.
const PEM_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use ibid_testkit::tls::Authority;

    use crate::args::GatewayArgs;
    use crate::config::{Config, EnvVars};

    fn read(upstream: &str, table: &str) -> Result<Config, String> {
        let text = format!("upstream = \"{upstream}\"\n[tenant]\nfrom = \"none\"\n[upstream_tls]\n{table}");
        Config::read(&GatewayArgs::default(), &EnvVars::default(), "ibid.toml", &text).map_err(|failures| {
            failures.all().iter().map(|failure| format!("{}\n", failure.message)).collect()
        })
    }

    #[test]
    fn upstream_tls_is_read_and_checked_at_start() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let (mine, other) = (authority.certificate(&["gateway"]), authority.certificate(&["other"]));
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (ca, cert) = (file("ca.pem", &authority.pem()), file("cert.pem", &mine.certificate_pem));
        let (key, other_key) = (file("key.pem", &mine.key_pem), file("other.pem", &other.key_pem));
        let (empty, broken) = (file("empty.pem", "nothing\n"), file("broken.pem", BROKEN));

        let all = format!("ca = {ca:?}\ncert = {cert:?}\nkey = {key:?}\nserver_name = \"api.test\"\n");
        let config = read("https://127.0.0.1:3000", &all).unwrap();
        assert_eq!(config.upstream_tls.roots.as_ref().unwrap().len(), 1);
        assert!(config.upstream_tls.identity.is_some());
        assert_eq!(config.upstream_tls.server_name.as_ref().unwrap().to_str(), "api.test");
        assert!(read("https://api.test", "").unwrap().upstream_tls.roots.is_none(), "the system's");

        for (upstream, table, message) in [
            ("http://api.test", all.clone(), "ibid.toml:4: `[upstream_tls]` has no effect".to_owned()),
            (
                "https://api.test",
                "ca = \"/nowhere.pem\"".into(),
                "ibid.toml:5: `ca` names `/nowhere.pem`, which can't be read".into(),
            ),
            ("https://api.test", format!("ca = {empty:?}"), "holds no certificate in PEM".into()),
            ("https://api.test", format!("ca = {key:?}"), "holds no certificate in PEM".into()),
            ("https://api.test", format!("ca = {broken:?}"), "certificate 1 can't be used".into()),
            ("https://api.test", format!("cert = {cert:?}"), "ibid.toml:5: `cert` needs `key`".into()),
            ("https://api.test", format!("key = {key:?}"), "ibid.toml:5: `key` needs `cert`".into()),
            (
                "https://api.test",
                format!("cert = {cert:?}\nkey = {other_key:?}"),
                format!(
                    "ibid.toml:6: `key` names `{other_key}`, which is not the key of the certificate in `{cert}`"
                ),
            ),
            (
                "https://api.test",
                format!("cert = {cert:?}\nkey = {cert:?}"),
                "ibid.toml:6: `key` names".into(),
            ),
            (
                "https://api.test",
                "server_name = \"a b\"".into(),
                "ibid.toml:5: `server_name` must be a host name".into(),
            ),
            ("https://api.test", "ca = 1".into(), "ibid.toml:5: `ca` must be a string".into()),
            ("https://api.test", "cacert = \"x\"".into(), "`cacert`".into()),
        ] {
            let errors = read(upstream, &table).expect_err(&table);
            assert!(errors.contains(&message) && errors.lines().count() == 1, "{table}: {errors}");
        }
    }

    /// A PEM block that is not a valid certificate.
    const BROKEN: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
}
