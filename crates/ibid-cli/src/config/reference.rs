//! Generates the reference pages from the keys, their defaults and the help texts, and fails when a page is stale.
//!
//! `IBID_BLESS=1 cargo nextest run -p ibid-cli reference` writes them.

use std::fmt::Write;
use std::path::Path;

use clap::CommandFactory;

use super::defaults::default_of;
use super::schema::{self, title};
use super::*;
use crate::args::Cli;

#[test]
fn the_configuration_page_is_up_to_date() {
    compare("configuration.md", &configuration_page());
}

#[test]
#[cfg_attr(not(feature = "demo"), ignore = "the page has every command, and this build has no demo")]
fn the_command_line_page_is_up_to_date() {
    compare("cli.md", &cli_page());
}

/// Returns a file that sets every key with a default to that default.
fn defaults_as_file() -> String {
    let mut text = BASE.to_owned();
    for section in ["", "store", "fingerprint", "defaults", "upkeep", "cors", "server", "tenant"] {
        if section == "tenant" {
            text.push_str("[tenant]\nfrom = \"header:x-tenant-id\"\n");
        } else if !section.is_empty() {
            writeln!(text, "[{section}]").unwrap();
        }
        for key in schema::all().filter(|key| key.section == section) {
            if let Some(default) = default_of(section, key.key) {
                writeln!(text, "{} = {default}", key.key).unwrap();
            }
        }
    }
    text
}

#[test]
fn the_documented_defaults_are_the_defaults() {
    let read = |text: &str| Config::read(&GatewayArgs::default(), &EnvVars::default(), "ibid.toml", text);
    let spelt_out = read(&defaults_as_file()).unwrap_or_else(|failures| panic!("{failures}"));
    let silent = read(&format!("{BASE}[tenant]\nfrom = \"header:x-tenant-id\"\n")).unwrap();
    let comparable = |config: &Config| format!("{:#?}", Config { warnings: Vec::new(), ..config.clone() });
    assert_eq!(comparable(&spelt_out), comparable(&silent));
}

#[test]
fn every_listed_key_is_read() {
    // A key that is listed and not read would be refused as unknown.
    let mut text = "upstream = \"http://127.0.0.1:3000\"\nlisten = \"127.0.0.1:1\"\n".to_owned();
    text.push_str("admin_listen = \"127.0.0.1:2\"\nupstream_http2 = true\n");
    for section in [
        "store",
        "front",
        "tenant",
        "fingerprint",
        "defaults",
        "[route]",
        "route.reconcile",
        "[hook]",
        "[hook]",
        "upkeep",
        "cors",
        "server",
    ] {
        if section == "front" && !cfg!(feature = "redis") {
            continue;
        }
        writeln!(text, "[{section}]").unwrap();
        let name = section.trim_matches(['[', ']']);
        // A hook is for records or for effects: there is one of each, with different names.
        let (skipped, again): (&[&str], _) = match (name, text.contains("\"psp\"")) {
            ("hook", false) => (&["downstream_key", "kind"], false),
            ("hook", true) => (&["name", "match", "tenant", "key"], true),
            _ => (&[], false),
        };
        if again {
            writeln!(text, "name = \"calls\"").unwrap();
        }
        for key in schema::all().filter(|key| key.section == name && !skipped.contains(&key.key)) {
            writeln!(text, "{} = {}", key.key, example(name, key.key, default_of(name, key.key))).unwrap();
        }
    }
    let config = Config::read(&GatewayArgs::default(), &EnvVars::default(), "ibid.toml", &text);
    config.unwrap_or_else(|failures| panic!("{failures}\n{text}"));
}

fn example(section: &str, key: &str, default: Option<String>) -> String {
    let value = match (section, key) {
        ("front", "url") => "\"redis://127.0.0.1/\"",
        ("tenant", "from") => "\"header:x-tenant-id\"",
        ("fingerprint", "secrets") => "[\"0123456789abcdef\"]",
        ("defaults", "max_request_age" | "retry_horizon") => "\"24h\"",
        ("defaults", "pass_timeout") => "\"60s\"",
        ("defaults", "behind") => "\"envoy\"",
        ("route", "match") => "\"POST /payments/{id}\"",
        ("route", "preset") => "\"payments\"",
        ("route.reconcile", "request") => "\"GET /payments/{id}?key={key}&for={tenant}\"",
        ("route.reconcile", "status") => "201",
        ("hook", "name") => "\"psp\"",
        ("hook", "match") => "\"POST /payments\"",
        ("hook", "scheme") => "\"hmac\"",
        ("hook", "secrets") => "[\"0123456789abcdef\"]",
        ("hook", "header") => "\"x-signature\"",
        ("hook", "timestamp") => "\"x-timestamp\"",
        ("hook", "executed") => "[\"paid\"]",
        ("hook", "kind") => "\"charge\"",
        ("hook", "tenant" | "key" | "outcome" | "event" | "event_time") => "\"/a\"",
        ("hook", "downstream_key" | "provider_id") => "\"/b\"",
        _ => return default.unwrap_or_else(|| panic!("`{key}` of `{section}` needs an example")),
    };
    value.to_owned()
}

fn configuration_page() -> String {
    let mut page = CONFIGURATION_HEAD.to_owned();
    let mut section = None;
    for key in schema::all() {
        if section != Some(key.section) {
            section = Some(key.section);
            let heading = match key.section {
                "" => "Top level".to_owned(),
                "defaults" => "`[defaults]` and `[[route]]`".to_owned(),
                "route" => "`[[route]]` alone".to_owned(),
                name => title(name),
            };
            write!(page, "\n## {heading}\n\n{}| key | type | default | what and why |\n", intro(key.section))
                .unwrap();
            page.push_str("| --- | --- | --- | --- |\n");
        }
        let default = default_of(key.section, key.key);
        let default = default.map_or_else(|| "none".to_owned(), |default| format!("`{default}`"));
        writeln!(page, "| `{}` | {} | {default} | {} |", key.key, key.kind, key.why).unwrap();
    }
    page.push_str(CONFIGURATION_TAIL);
    page
}

fn intro(section: &str) -> &'static str {
    match section {
        "defaults" => {
            "Rules for every guarded request, and, under `[[route]]`, for the requests of one route, which takes every \
             key but `pass_timeout`. Weakest first: the built-in default, the profile's defaults, `[defaults]`, the \
             route's preset, the route's own keys.\n\n"
        }
        "hook" => {
            "A source of signed webhooks that settle unknown records or effects; see the guide *Settle unknown outcomes by webhook*. \
             Keys marked `hmac` are for that scheme only.\n\n"
        }
        "route.reconcile" => {
            "Settles unknown records of the route by a lookup at the upstream. The rule is stored with the record, so \
             a later configuration applies only to later records. Without a rule, an unknown record is a dead letter at \
             once.\n\n"
        }
        _ => "",
    }
}

fn cli_page() -> String {
    let mut page = CLI_HEAD.to_owned();
    let mut cli = Cli::command().term_width(100);
    cli.build();
    write_help(&mut page, &mut cli, "ibid");
    page
}

fn write_help(page: &mut String, command: &mut clap::Command, path: &str) {
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    write!(page, "\n## `{path}`\n\n```text\n{}\n```\n", lines.join("\n").trim_end()).unwrap();
    for sub in command.get_subcommands_mut().filter(|sub| sub.get_name() != "help") {
        let path = format!("{path} {}", sub.get_name());
        write_help(page, sub, &path);
    }
}

fn compare(name: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(name);
    if std::env::var_os("IBID_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, page).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(stored == page, "docs/reference/{name} is stale: run `IBID_BLESS=1 cargo test -p ibid-cli`");
}

const BASE: &str = "upstream = \"http://127.0.0.1:3000\"\n";

const CONFIGURATION_HEAD: &str = "\
<!-- Written by a test of ibid-cli: change crates/ibid-cli/src/config/schema/ or the default in the code, and run it with IBID_BLESS=1. -->

# Configuration

`ibid gateway` reads `ibid.toml` in the working directory if it exists, or the file that `--config` names. Flags win over
`IBID_…` variables, variables over the file. `ibid config check` prints the result.

Durations are a whole number and a unit: `250ms`, `5s`, `15m`, `24h`, `30d`. Sizes are bytes or have a binary unit: `512KiB`,
`1MiB`. Unknown keys, wrong types, durations of zero (unless the type says that zero is allowed) and rules that contradict
each other are errors, with the line.

Every method is guarded except GET, HEAD, OPTIONS, TRACE and QUERY, which never are, and PUT and DELETE, which are guarded
where a route says so. Only `guard = \"off\"` exempts. [What is guarded](../concepts/guarded.md) has the rules for methods, paths and fields.
";

const CONFIGURATION_TAIL: &str = "
## Not in this release

`[limits]`, `on_lapse = \"resume\"` (the library has it), the tenant sources `jwt` and `forward-auth:`, and profiles other than `ietf`,
`stripe` and `repeatability`. Each is refused with a message, never silently ignored. So is a store that the binary was built
without: the message names the feature to build it with.
";

const CLI_HEAD: &str = "\
<!-- Written by a test of ibid-cli: change crates/ibid-cli/src/args.rs and run it with IBID_BLESS=1. -->

# Command line

Data goes to stdout, messages to stderr. Exit codes: 0 done, 1 the result is negative, 2 usage or configuration error, 3 runtime failure
(store, network, disk). A failure reads

```text
error: what failed, in one line
  cause: the underlying error

hint: what to do about it
```
";
