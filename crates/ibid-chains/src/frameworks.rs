//! Applications that respond with an error while, or after, their handler works.

use std::path::{Path, PathBuf};

use ibid_testkit::client::TestRequest;
use ibid_testkit::program::{Launch, Program, tools};

use crate::Selection;
use crate::chain::{Gateway, ask, describe};
use crate::page::Table;

/// An application, and the failure of the first request.
struct Case {
    framework: &'static str,
    failure: &'static str,
    launch: fn(&Path, u16) -> Launch,
    /// Path of the request.
    path: &'static str,
}

const CASES: [Case; 5] = [
    Case {
        framework: "Express, connect-timeout",
        failure: "the handler outlasts the time-out",
        launch: |_, _| {
            Launch::new("node", [app("express_timeout.js")]).env("NODE_PATH", node("connect-timeout-1.9.1"))
        },
        path: "/payments",
    },
    Case {
        framework: "Sanic",
        failure: "the handler outlasts `RESPONSE_TIMEOUT`",
        launch: |_, _| python("sanic-25.12.1", [app("sanic_timeout.py")]),
        path: "/payments",
    },
    Case {
        framework: "FastAPI, uvicorn",
        failure: "the handler raises after its work",
        launch: |_, port| uvicorn(port, &[]),
        path: "/payments",
    },
    Case {
        framework: "FastAPI, uvicorn",
        failure: "`--limit-concurrency` refuses",
        launch: |_, port| uvicorn(port, &["--limit-concurrency", "1"]),
        path: "/full",
    },
    Case {
        framework: "Django, gunicorn",
        failure: "the handler outlasts the worker's `--timeout`",
        launch: |_, port| {
            let bind = format!("127.0.0.1:{port}");
            let words =
                ["-m", "gunicorn", "--bind", &bind, "--timeout", "1", "--chdir", &apps(), "django_app"];
            python("gunicorn-27.0.1", words)
        },
        path: "/payments",
    },
];

pub(crate) async fn run(asked: &Selection, problems: &mut Vec<String>) -> Table {
    let columns = &[
        "framework",
        "failure",
        "it answers",
        "executed",
        "ibid answers",
        "the key",
        "a retry gets",
        "executed in all",
    ];
    let mut table = Table::new("frameworks", columns);
    for case in CASES.iter().filter(|case| asked.wants(case.framework)) {
        let alone = case.start();
        let request = TestRequest::post(case.path).key("k").body("amount=1");
        let straight = ask(alone.addr(), &request).await;
        drop(alone);
        // A new process, so that nothing of the first request is left over.
        let app = case.start();
        let gateway = Gateway::start(&asked.ibid, app.addr(), "");
        let answer = gateway.call(&request).await;
        let state = gateway.state(case.path, "k").await;
        let executed = executions(&app);
        let retry = gateway.call(&request).await;
        let in_all = executions(&app);
        if (state.as_str(), retry.status, in_all) != ("unknown", 409, executed) || in_all > 1 {
            problems.push(format!("{}, {}: executed {in_all} times", case.framework, case.failure));
        }
        table.push(vec![
            case.framework.to_owned(),
            case.failure.to_owned(),
            describe(straight.as_ref()),
            executed.to_string(),
            describe(Some(&answer)),
            state,
            describe(Some(&retry)),
            in_all.to_string(),
        ]);
    }
    table
}

impl Case {
    fn start(&self) -> Program {
        Program::start(|folder, port| {
            let launch = (self.launch)(folder, port).env("PORT", port.to_string());
            launch.env("EXECUTED", folder.join("executed")).env("HOME", folder)
        })
    }
}

/// Counts how often the handler started.
fn executions(app: &Program) -> usize {
    std::fs::read(app.folder().join("executed")).map_or(0, |marks| marks.len())
}

fn uvicorn(port: u16, more: &[&str]) -> Launch {
    let port = port.to_string();
    let mut words = vec!["-m", "uvicorn", "--app-dir", "", "--port", &port, "fastapi_app:app"];
    let apps = apps();
    words[3] = &apps;
    words.extend(more);
    python("fastapi-0.162.7", words)
}

fn python<I>(packages: &str, words: I) -> Launch
where
    I: IntoIterator,
    I::Item: Into<std::ffi::OsString>,
{
    Launch::new("python3", words)
        .env("PYTHONPATH", tools().join(packages))
        .env("PYTHONDONTWRITEBYTECODE", "1")
}

fn node(packages: &str) -> PathBuf {
    tools().join(packages).join("node_modules")
}

fn app(name: &str) -> String {
    format!("{}/{name}", apps())
}

fn apps() -> String {
    format!("{}/apps", env!("CARGO_MANIFEST_DIR"))
}
