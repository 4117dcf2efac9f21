//! TLS by URL: the certificate is checked, and so is the name in it.

use ibid::store::mysql::MysqlOpenError;
use ibid_testkit::tls::Authority;

use super::*;

/// Starts a server with a certificate for `name`. Returns it with a folder that has the authority's certificate.
fn server_named(name: &str) -> (MariaDb, tempfile::TempDir) {
    let authority = Authority::new();
    let identity = authority.certificate(&[name]);
    let folder = tempfile::tempdir().expect("a folder");
    let files = [
        ("ca.pem", authority.pem()),
        ("server.crt", identity.certificate_pem),
        ("server.key", identity.key_pem),
    ];
    let paths = files.map(|(name, text)| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    });
    let server = MariaDb::start_with(&[("ssl_cert", &paths[1]), ("ssl_key", &paths[2])]);
    (server, folder)
}

async fn try_open(server: &MariaDb, parameters: &str) -> Result<MysqlStore, MysqlOpenError> {
    MysqlStore::open(&format!("{}?{parameters}", server.url()), options()).await
}

fn trusting(folder: &tempfile::TempDir) -> String {
    format!("ssl-mode=required&ssl-ca={}", folder.path().join("ca.pem").display())
}

#[tokio::test]
async fn a_trusted_certificate_for_this_host_is_taken_and_no_other() {
    let (server, folder) = server_named("127.0.0.1");
    let store = Arc::new(try_open(&server, &trusting(&folder)).await.expect("the store opens"));
    // The server takes nothing else, so the records went through TLS.
    server.sql("", "set global require_secure_transport = on");
    begin_some(&store, 3, LONG).await;
    try_open(&server, &trusting(&folder)).await.expect("new connections are encrypted, too");
    let plain = try_open(&server, "").await.expect_err("the server refuses it");
    assert!(matches!(plain, MysqlOpenError::Refused { .. }), "{plain:?}");
    for parameters in ["ssl-mode=required", "ssl-mode=verify_identity"] {
        let untrusted = try_open(&server, parameters).await.expect_err("this authority is not trusted");
        assert!(matches!(untrusted, MysqlOpenError::Unreachable { .. }), "{untrusted:?}");
    }
    let missing = try_open(&server, "ssl-mode=required&ssl-ca=/nowhere.pem").await.expect_err("no such file");
    assert!(matches!(missing, MysqlOpenError::Tls { .. }), "{missing:?}");
    let (other, folder) = server_named("db.example");
    let misnamed = try_open(&other, &trusting(&folder)).await.expect_err("another name");
    assert!(matches!(misnamed, MysqlOpenError::Unreachable { .. }), "{misnamed:?}");
}

#[tokio::test]
async fn a_server_without_tls_is_refused_if_it_is_required() {
    let server = MariaDb::start();
    let refused = try_open(&server, "ssl-mode=required").await.expect_err("it would not be encrypted");
    assert!(!matches!(refused, MysqlOpenError::BadUrl), "{refused:?}");
}
