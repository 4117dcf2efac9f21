//! Checks that the committed OpenAPI document is current (`IBID_BLESS=1` rewrites it), and checks tokens.

use std::path::Path;

use super::*;

#[test]
fn the_committed_openapi_document_is_up_to_date() {
    let mut document = serde_json::to_string_pretty(&openapi()).expect("a document is JSON");
    document.push('\n');
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/openapi.json");
    if std::env::var_os("IBID_BLESS").is_some() {
        std::fs::write(&path, &document).expect("the document can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == document, "docs/reference/openapi.json is stale: run with IBID_BLESS=1");
}

#[test]
fn every_openapi_operation_needs_the_token() {
    let document = serde_json::to_value(openapi()).expect("a document is JSON");
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.1")));
    assert_eq!(document["security"][0]["token"], serde_json::json!([]));
    let paths = document["paths"].as_object().expect("paths");
    assert_eq!(paths.len(), 13);
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().expect("operations") {
            assert!(operation.get("security").is_none(), "{method} {path} has a separate security rule");
            assert!(operation["responses"].get("401").is_some(), "{method} {path}");
        }
    }
}

#[test]
fn a_token_is_long_visible_and_never_printed() {
    assert!(Token::new("0123456789abcdef").is_ok());
    for bad in ["", "short", "0123456789abcde", "0123456789 abcdef", "0123456789abcdéf"] {
        assert!(Token::new(bad).is_err(), "{bad:?}");
    }
    assert_eq!(format!("{:?}", Token::new("0123456789abcdef")), "Ok(Token(…))");
}
