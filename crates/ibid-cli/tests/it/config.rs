//! `ibid config check` and the start of `ibid gateway`, run as a shell runs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A temporary directory with an `ibid.toml`, deleted when dropped.
struct TestFolder(tempfile::TempDir);

impl TestFolder {
    fn empty() -> TestFolder {
        TestFolder(tempfile::tempdir().expect("a directory can be made"))
    }

    fn with(text: &str) -> TestFolder {
        let folder = TestFolder::empty();
        std::fs::write(folder.path().join("ibid.toml"), text).expect("the file can be written");
        folder
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn ibid(&self, words: &[&str]) -> CommandOutput {
        self.ibid_with(words, &[])
    }

    fn ibid_with(&self, words: &[&str], variables: &[(&str, &str)]) -> CommandOutput {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ibid"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("IBID_") {
                command.env_remove(name);
            }
        }
        command.args(words).envs(variables.iter().copied()).current_dir(self.path());
        CommandOutput::new(command.output().expect("the binary starts"))
    }
}

/// Output and exit code of a command.
#[derive(Debug)]
struct CommandOutput {
    code: i32,
    out: String,
    err: String,
}

impl CommandOutput {
    fn new(output: Output) -> CommandOutput {
        let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
        CommandOutput {
            code: output.status.code().unwrap_or(-1),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }
}

const GOOD: &str = r#"upstream = "http://127.0.0.1:3000"
[tenant]
from = "header:x-tenant-id"
[defaults]
wait = "2s"
[[route]]
match = "POST /payments"
preset = "payments"
[[route]]
match = "POST /webhooks/{*rest}"
guard = "off"
"#;

#[test]
fn config_check_refuses_what_the_store_lacks() {
    let hook = r#"
[[hook]]
name = "calls"
scheme = "standard"
secrets = ["env:PSP_SECRET"]
downstream_key = "/data/key"
outcome = "/type"
executed = ["charge.succeeded"]
"#;
    let secret = [("PSP_SECRET", "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3")];
    let check = |store: &str| {
        let folder = TestFolder::with(&format!("{GOOD}{hook}[store]\nurl = \"{store}\"\n"));
        folder.ibid_with(&["config", "check"], &secret)
    };
    let output = check("memory:");
    assert_eq!(output.code, 2, "{output:?}");
    assert!(output.err.contains("the store has no outbox"), "{}", output.err);
    assert_eq!(check("sqlite:ibid.db").code, 0);
}

#[test]
fn config_check_prints_routes_to_stdout_and_warnings_to_stderr() {
    let output = TestFolder::with(GOOD).ibid(&["config", "check"]);
    assert_eq!(output.code, 0, "{output:?}");
    let payments =
        output.out.lines().find(|line| line.starts_with("POST /payments")).expect("the route is listed");
    for word in ["ietf", "30d", "wait=2s", "tombstone=360d", "after_expiry=refuse"] {
        assert!(payments.contains(word), "{word}: {payments}");
    }
    assert!(output.out.contains("every other guarded request"), "{}", output.out);
    let passes = "not guarded:\n  POST /webhooks/{*rest} (line 10)\n  GET, HEAD, OPTIONS, TRACE and QUERY";
    assert!(output.out.contains(passes), "{}", output.out);
    assert!(!output.out.contains("warning"), "{}", output.out);
    assert!(output.err.lines().all(|line| line.starts_with("warning: ")), "{}", output.err);
    assert!(
        output.err.contains("warning: ibid.toml:10: `POST /webhooks/{*rest}` is not guarded"),
        "{}",
        output.err
    );
}

#[test]
fn json_is_one_object_on_stdout() {
    let output = TestFolder::with(GOOD).ibid(&["config", "check", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&output.out).expect("stdout is JSON");
    assert_eq!(value["routes"][0]["policy"]["retention"], "30d");
    assert_eq!(value["routes"][1]["guard"], "off");
    assert_eq!(value["defaults"]["wait"], "2s");
    assert_eq!(value["tenant"]["trusted"][0], "127.0.0.0/8");
    assert_eq!(value["store"]["url"], "sqlite:ibid.db");
    assert!(value["warnings"].as_array().is_some_and(|warnings| !warnings.is_empty()));
}

#[test]
fn an_error_names_file_line_and_key_and_exits_with_2() {
    let output = TestFolder::with(&GOOD.replace("wait = ", "wiat = ")).ibid(&["config", "check"]);
    assert_eq!(output.code, 2);
    assert_eq!(output.out, "");
    assert_eq!(
        output.err,
        "error: ibid.toml:5: `wiat` is not a key of `[defaults]`\n  cause: a key that is accepted and ignored would be \
         a rule without effect\n\nhint: did you mean `wait`?\n"
    );
}

#[test]
fn each_error_has_its_line_and_several_come_together() {
    for (from, to, expected) in [
        ("\"2s\"", "2", "error: ibid.toml:5: `wait` must be a duration"),
        ("wait = \"2s\"", "lease = \"0s\"", "error: ibid.toml:5: `lease` must be longer than zero"),
        (
            "wait = \"2s\"",
            "retention = \"1s\"",
            "error: ibid.toml:5: `retention` must not be shorter than the lease",
        ),
        ("POST /payments", "GET /payments", "error: ibid.toml:7: `match` names `GET`"),
        ("\"payments\"", "\"paymnets\"", "error: ibid.toml:8: `preset` is \"paymnets\""),
        (
            "POST /webhooks/{*rest}",
            "POST /payments",
            "error: ibid.toml:10: `POST /payments` takes the same POST requests as `POST /payments` on line 7",
        ),
        ("\"off\"", "\"of\"", "error: ibid.toml:11: `guard` must be \"on\" or \"off\", not \"of\""),
        (
            "http://",
            "ftp://",
            "error: ibid.toml:1: `upstream` must be an absolute `http://` or `https://` URL",
        ),
        (
            "header:x-tenant-id",
            "jwt",
            "error: ibid.toml:3: `from` can't be used: `jwt` is not in this release",
        ),
        ("[defaults]", "[defaults", "error: ibid.toml:4: "),
    ] {
        let output = TestFolder::with(&GOOD.replacen(from, to, 1)).ibid(&["config", "check"]);
        assert_eq!(output.code, 2, "{output:?}");
        assert!(output.err.starts_with(expected), "{expected}\n{}", output.err);
    }
    let two = GOOD.replace("\"2s\"", "\"soon\"").replace("\"off\"", "\"aus\"");
    let output = TestFolder::with(&two).ibid(&["config", "check"]);
    let errors: Vec<&str> = output.err.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 2, "{}", output.err);
}

#[test]
fn an_error_names_the_type_of_a_wrong_value() {
    let output = TestFolder::with(&GOOD.replace("\"2s\"", "2")).ibid(&["config", "check"]);
    assert!(
        output.err.contains("\n  cause: it is an integer\n\nhint: the default is \"5s\"\n"),
        "{}",
        output.err
    );
}

#[test]
fn a_file_that_is_named_must_be_there() {
    let folder = TestFolder::empty();
    let output = folder.ibid(&["config", "check", "--config", "other.toml"]);
    assert_eq!(output.code, 2);
    assert!(
        output.err.starts_with("error: cannot read the configuration `other.toml`\n  cause: "),
        "{}",
        output.err
    );
    std::fs::write(folder.path().join("other.toml"), GOOD).unwrap();
    assert_eq!(folder.ibid(&["config", "check", "--config", "other.toml"]).code, 0);
    assert_eq!(folder.ibid_with(&["config", "check"], &[("IBID_CONFIG", "other.toml")]).code, 0);
}

#[test]
fn flags_win_over_variables_and_variables_over_the_file() {
    let folder = TestFolder::with(GOOD);
    let upstream = |words: &[&str], variables: &[(&str, &str)]| {
        let words = [&["config", "check", "--json"], words].concat();
        let value: serde_json::Value =
            serde_json::from_str(&folder.ibid_with(&words, variables).out).unwrap();
        value["upstream"].as_str().unwrap().to_owned()
    };
    let variable = [("IBID_UPSTREAM", "http://127.0.0.1:4000")];
    assert_eq!(upstream(&[], &[]), "http://127.0.0.1:3000/");
    assert_eq!(upstream(&[], &variable), "http://127.0.0.1:4000/");
    assert_eq!(upstream(&["--upstream", "http://127.0.0.1:5000"], &variable), "http://127.0.0.1:5000/");
}

#[test]
fn a_gateway_without_upstream_and_tenant_says_why_it_needs_them() {
    let output = TestFolder::empty().ibid(&["gateway"]);
    assert_eq!(output.code, 2);
    assert!(output.err.contains("error: the gateway needs an upstream"), "{}", output.err);
    let tenant = "error: the gateway needs to know whose keys they are: no tenant is configured\n  cause: two clients \
                  may choose the same key, and without a tenant one would get the other's response\n\nhint: give `--tenant ";
    assert!(output.err.contains(tenant), "{}", output.err);
    let output =
        TestFolder::empty().ibid(&["gateway", "--upstream", "http://127.0.0.1:3000", "--tenant", "someone"]);
    assert_eq!(output.code, 2);
    assert!(output.err.starts_with("error: `--tenant` (or `IBID_TENANT`) can't be used"), "{}", output.err);
}

#[test]
fn the_command_line_itself_is_refused_in_the_same_form() {
    let folder = TestFolder::empty();
    let output = folder.ibid(&["gateway", "--upstraem", "x"]);
    assert_eq!(output.code, 2);
    assert_eq!(
        output.err,
        "error: unexpected argument '--upstraem' found\n\nhint: a similar argument exists: '--upstream'\n"
    );
    assert_eq!(folder.ibid(&["audit"]).code, 2, "later");
    for nothing in [&[][..], &["keys"], &["config"]] {
        let output = folder.ibid(nothing);
        assert_eq!((output.code, output.out.as_str()), (2, ""), "{nothing:?}");
        assert!(output.err.contains("Usage: ibid"), "{}", output.err);
    }
    let help = folder.ibid(&["--help"]);
    assert_eq!((help.code, help.err.as_str()), (0, ""));
    assert!(help.out.contains("gateway") && help.out.contains("Exit codes"), "{}", help.out);
}

#[test]
fn keys_opens_the_store_of_the_configuration_file() {
    let folder = TestFolder::with("[store]\nurl = \"postgres://ibid:hunter2@db:x/pay\"\n");
    let output = folder.ibid(&["keys", "list"]);
    assert_eq!(output.code, 2);
    assert!(
        output.err.starts_with("error: ibid.toml:2: `url` is not the URL of a PostgreSQL database"),
        "{}",
        output.err
    );
    assert!(!output.err.contains("hunter2"));
    let output = folder.ibid(&["keys", "list", "--store", "oracle://x"]);
    assert!(
        output.err.starts_with("error: `--store` (or `IBID_STORE`) is not the URL of a store"),
        "{}",
        output.err
    );
    // The database of another program, named by mistake, gets no tables.
    let theirs = folder.path().join("theirs.db");
    rusqlite::Connection::open(&theirs)
        .and_then(|theirs| theirs.execute_batch("create table t (a)"))
        .expect("a database can be made");
    let before = std::fs::read(&theirs).expect("it can be read");
    let output = folder.ibid(&["keys", "list", "--store", &format!("sqlite:{}", theirs.display())]);
    assert_eq!(output.code, 3);
    assert!(
        output.err.contains("theirs.db` has no tables of ibid\n\nhint: name the database"),
        "{}",
        output.err
    );
    assert_eq!(std::fs::read(&theirs).expect("it can be read"), before);
}

#[test]
fn messages_name_the_path_of_the_file() {
    let folder = TestFolder::empty();
    let path: PathBuf = folder.path().join("sub.toml");
    std::fs::write(&path, "nonsense = 1\n").unwrap();
    let output = folder.ibid(&["config", "check", "--config", path.to_str().unwrap()]);
    assert!(output.err.contains(&format!("{}:1: `nonsense`", path.display())), "{}", output.err);
}
