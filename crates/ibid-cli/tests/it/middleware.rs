//! The middleware of `docs/guides/tell-ibid.md`, as the page shows it, in real applications behind the gateway.

use std::path::{Path, PathBuf};

use ibid_testkit::client::{Client, TestRequest};
use ibid_testkit::program::{Launch, Program, tools};

use crate::harness::{Setup, assert_problem};

/// Writes the code that the page shows under this file name into the folder.
fn write_from_page(folder: &Path, file: &str) {
    let blocks = PAGE.split("```").skip(1).step_by(2);
    let code = blocks.filter_map(|block| block.split_once('\n').map(|(_, code)| code));
    let named = |line: &str| line.trim_start_matches(['#', '/', ' ']) == file;
    let matching = code.filter(|code| code.lines().next().is_some_and(named)).collect::<Vec<_>>();
    assert_eq!(matching.len(), 1, "the page shows `{file}` once");
    std::fs::write(folder.join(file), matching[0]).expect("a file in the program's own folder");
}

/// Copies an application from `tests/data/apps` into the folder.
fn write_app(folder: &Path, file: &str) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/apps").join(file);
    let to = folder.join(file);
    std::fs::copy(from, &to).expect("the application is there");
    to
}

fn python(words: &[&str], packages: &str) -> Launch {
    Launch::new("python3", words)
        .env("PYTHONPATH", tools().join(packages))
        .env("PYTHONDONTWRITEBYTECODE", "1")
}

/// Asserts that a request which the application refuses before its work runs on the retry, and that one which fails after
/// its work does not.
async fn assert_executions_are_reported(app: &Program) {
    let gateway = Setup::before(&app.url()).start();
    let executed =
        async || Client::connect(app.addr()).await.call(&TestRequest::get("/executed")).await.text();

    let limited = TestRequest::post("/limited").key("limited").body("amount=1");
    let refused = gateway.call(&limited).await;
    assert_eq!((refused.status, refused.text().as_str()), (503, "too busy"));
    assert_eq!(refused.header("ibid-outcome"), None, "the field is for ibid alone");
    assert_eq!(executed().await, "0");
    assert_eq!(gateway.call(&limited).await.status, 201, "the key was free");
    assert_eq!(gateway.call(&limited).await.status, 201, "a replay");
    assert_eq!(executed().await, "1");

    let fails = TestRequest::post("/fails").key("fails").body("amount=1");
    assert_eq!(gateway.call(&fails).await.status, 503);
    assert_problem(&gateway.call(&fails).await, 409, "outcome-unknown");
    assert_eq!(executed().await, "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn express_middleware_releases_a_refused_request() {
    let app = Program::start(|folder, port| {
        write_from_page(folder, "ibid-outcome.js");
        let app = write_app(folder, "express_app.js");
        let packages = tools().join("express-5.3.0/node_modules");
        Launch::new("node", [app]).env("NODE_PATH", packages).env("PORT", port.to_string())
    });
    assert_executions_are_reported(&app).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fastapi_middleware_releases_a_refused_request() {
    let app = Program::start(|folder, port| {
        write_from_page(folder, "ibid_outcome.py");
        write_app(folder, "fastapi_app.py");
        python(&["-m", "uvicorn", "--port", &port.to_string(), "fastapi_app:app"], "fastapi-0.162.7")
    });
    assert_executions_are_reported(&app).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn django_middleware_releases_a_refused_request() {
    let app = Program::start(|folder, port| {
        write_from_page(folder, "ibid_outcome_django.py");
        write_app(folder, "django_app.py");
        python(&["django_app.py"], "django-5.2.19").env("PORT", port.to_string())
    });
    assert_executions_are_reported(&app).await;
}

const PAGE: &str = include_str!("../../../../docs/guides/tell-ibid.md");
