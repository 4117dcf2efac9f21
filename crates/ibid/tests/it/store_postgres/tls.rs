//! TLS by URL: the certificate is checked, and so is the name in it.

use ibid::store::postgres::PostgresOpenError;
use ibid_testkit::tls::Authority;

use super::*;

/// Starts a server with a certificate for `name`, and writes the authority's certificate to a file.
fn server_named(name: &str) -> (Postgres, tempfile::TempDir) {
    let authority = Authority::new();
    let identity = authority.certificate(&[name]);
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("ca.pem"), authority.pem()).expect("a file");
    let files = [("server.crt", &*identity.certificate_pem), ("server.key", &*identity.key_pem)];
    (Postgres::start_with_files(&[("ssl", "on")], &files), folder)
}

async fn try_open(server: &Postgres, parameters: &str) -> Result<PostgresStore, PostgresOpenError> {
    PostgresStore::open(&format!("{}?{parameters}", server.url()), options()).await
}

#[tokio::test]
async fn a_trusted_certificate_for_this_host_is_taken_and_no_other() {
    let (server, folder) = server_named("127.0.0.1");
    let roots = format!("sslrootcert={}", folder.path().join("ca.pem").display());
    for mode in ["require", "verify-ca", "verify-full"] {
        let store = try_open(&server, &format!("sslmode={mode}&{roots}")).await.expect("the store opens");
        let encrypted = "select bool_and(ssl) from pg_stat_ssl join pg_stat_activity using (pid)
                         where application_name = 'ibid'";
        assert!(store.load(TestRecord::fresh().id).await.is_ok());
        assert_eq!(server.sql("postgres", encrypted), "t", "{mode}");
    }
    let unknown = try_open(&server, "sslmode=require").await;
    assert!(
        matches!(unknown, Err(PostgresOpenError::Unreachable { .. } | PostgresOpenError::Tls { .. })),
        "{unknown:?}"
    );
    let missing = try_open(&server, "sslmode=verify-full&sslrootcert=/nowhere.pem").await;
    assert!(matches!(missing, Err(PostgresOpenError::Tls { .. })), "{missing:?}");
    let (elsewhere, folder) = server_named("db.example");
    let roots = format!("sslrootcert={}", folder.path().join("ca.pem").display());
    let other = try_open(&elsewhere, &format!("sslmode=require&{roots}")).await;
    assert!(matches!(other, Err(PostgresOpenError::Unreachable { .. })), "another name: {other:?}");
    let plain = Postgres::start();
    let refused = try_open(&plain, &format!("sslmode=require&{roots}")).await;
    assert!(
        matches!(refused, Err(PostgresOpenError::Unreachable { .. })),
        "a server without TLS: {refused:?}"
    );
}
