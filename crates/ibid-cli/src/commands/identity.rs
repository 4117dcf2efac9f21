//! `ibid identity`: shows and changes the settings that make up the ids of a store's records.

use std::io::Write;

use ibid::identity::change::{self, ChangeError, ForgetReport, RetireWait};
use ibid::identity::{IdentityError, IdentityPhase, IdentitySetting, PreviousIdentity, StoreIdentity};
use ibid_console::rfc3339;
use ibid_core::policy::IdentityRules;
use ibid_core::store::Store;
use serde_json::{Value, json};

use super::confirm::not_confirmed;
use crate::args::identity::{IdentityChangeArgs, IdentityShowArgs};
use crate::config::units::show_duration;
use crate::output::{Failure, print_fields, print_json, print_line};

/// Prints the stored identity.
pub(crate) async fn show(
    store: &dyn Store,
    args: &IdentityShowArgs,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let stored = change::load_setting(store).await.map_err(|error| unreadable(&error))?;
    let setting = stored.ok_or_else(|| change_failure(ChangeError::NotSet))?;
    match args.json {
        true => print_json(out, &setting_json(&setting)),
        false => print_setting(&setting, out),
    }
}

/// Retires the stored identity, or ends the lookup of previous ids.
pub(crate) async fn change(
    store: &dyn Store,
    args: &IdentityChangeArgs,
    out: &mut dyn Write,
    talk: &mut dyn Write,
) -> Result<(), Failure> {
    let stored = change::load_setting(store).await.map_err(|error| unreadable(&error))?;
    let setting = stored.ok_or_else(|| change_failure(ChangeError::NotSet))?;
    if args.forget_previous {
        return forget(store, &setting, args, out, talk).await;
    }
    let at_stake = match args.abandon {
        true => Some(change::live_records(store).await.map_err(|error| change_failure(error.into()))?),
        false => None,
    };
    if let Some(keys) = at_stake {
        print_line(talk, format_args!("{keys} keys could run again under another tenant source"))?;
    }
    if !args.yes {
        if !args.json {
            print_setting(&setting, out)?;
        }
        let wait = show_duration(setting.valid_for * 2);
        print_line(
            talk,
            format_args!("would be retired: running nodes would answer 503, and this would wait {wait}"),
        )?;
        return Err(not_confirmed());
    }
    let on_wait = |waiting: RetireWait| {
        let line = match waiting {
            RetireWait::ForReaders(wait) => {
                format!("waiting {} for running nodes to read it", show_duration(wait))
            }
            RetireWait::ForTransactions => "waiting for open transactions".to_owned(),
        };
        // A reader that closed the pipe needs no more output.
        let _ = writeln!(talk, "{line}");
    };
    let retired = change::retire(store, args.abandon, on_wait).await.map_err(change_failure)?;
    match args.json {
        true => {
            let mut value = setting_json(&retired);
            value["keys_that_could_run_again"] = json!(at_stake);
            print_json(out, &value)
        }
        false => print_line(out, "retired: the next start writes its own identity"),
    }
}

async fn forget(
    store: &dyn Store,
    setting: &IdentitySetting,
    args: &IdentityChangeArgs,
    out: &mut dyn Write,
    talk: &mut dyn Write,
) -> Result<(), Failure> {
    if !args.yes {
        let count = setting.previous.len();
        print_line(talk, format_args!("would no longer look up the ids of previous identities: {count}"))?;
        return Err(not_confirmed());
    }
    let remainder = change::forget_previous(store).await.map_err(change_failure)?;
    let ForgetReport { forgotten, kept, records, gone_by } = &remainder;
    if args.json {
        let value = json!({
            "forgotten": forgotten, "kept": kept, "records": records, "gone_by": gone_by.map(rfc3339),
        });
        print_json(out, &value)?;
    } else {
        print_line(out, format_args!("previous identities forgotten: {forgotten}, kept: {kept}"))?;
    }
    if *kept == 0 {
        return Ok(());
    }
    let hint = match gone_by {
        Some(at) => format!("if none of them is used again, the last one has gone by {}", rfc3339(*at)),
        None => "some of them stay until they are settled: `ibid keys list --state unknown`".to_owned(),
    };
    Err(Failure::no(format!("{records} records from before the change are left")).hint(hint))
}

fn print_setting(setting: &IdentitySetting, out: &mut dyn Write) -> Result<(), Failure> {
    let mut lines = vec![
        ("state".to_owned(), meaning(setting)),
        ("generation".to_owned(), setting.generation.to_string()),
        ("a node trusts its last look for".to_owned(), show_duration(setting.valid_for)),
    ];
    lines.extend(identity_lines("", &setting.current));
    for (at, previous) in setting.previous.iter().enumerate() {
        let name = format!("previous {}: ", at + 1);
        lines.extend(identity_lines(&name, &previous.identity));
        lines.extend(previous.until.map(|until| (format!("{name}until"), rfc3339(until))));
    }
    let fields: Vec<(&str, String)> =
        lines.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    print_fields(out, &fields)
}

/// Describes the state in one sentence.
pub(crate) fn meaning(setting: &IdentitySetting) -> String {
    if let Err(closed) = setting.check_open() {
        return format!("closed: {closed}");
    }
    let phase = match (setting.phase, setting.is_abandoned) {
        (IdentityPhase::Active, _) => "active",
        (IdentityPhase::Retiring, _) => "retiring: run `ibid identity change --yes` to its end",
        (IdentityPhase::Retired, false) => "retired: the next start writes its own",
        (IdentityPhase::Retired, true) => {
            "retired and abandoned: the next start writes its own, with any tenant source"
        }
    };
    phase.to_owned()
}

fn identity_lines(prefix: &str, identity: &StoreIdentity) -> Vec<(String, String)> {
    let mut lines = vec![(format!("{prefix}tenant"), identity.tenant().to_owned())];
    lines.extend(identity.tenant_secret().map(|id| (format!("{prefix}tenant secret"), id.to_owned())));
    lines.push((format!("{prefix}defaults"), describe_rules(identity.defaults())));
    lines.extend(identity.routes().map(|(route, rules)| (format!("{prefix}{route}"), describe_rules(rules))));
    lines
}

fn describe_rules(rules: &IdentityRules) -> String {
    let fields = rules.fields();
    fields.iter().map(|(field, value)| format!("{field} = {value}")).collect::<Vec<_>>().join(", ")
}

fn setting_json(setting: &IdentitySetting) -> Value {
    let previous = |previous: &PreviousIdentity| {
        let mut value = identity_json(&previous.identity);
        value["until"] = json!(previous.until.map(rfc3339));
        value
    };
    json!({
        "state": setting.phase.name(),
        "closed": setting.check_open().err().map(|closed| closed.to_string()),
        "abandoned": setting.is_abandoned,
        "generation": setting.generation,
        "valid_for": show_duration(setting.valid_for),
        "retired_at": setting.retired_at.map(rfc3339),
        "current": identity_json(&setting.current),
        "previous": setting.previous.iter().map(previous).collect::<Vec<_>>(),
    })
}

fn identity_json(identity: &StoreIdentity) -> Value {
    let rules = |rules: &IdentityRules| {
        Value::Object(
            rules.fields().into_iter().map(|(field, value)| (field.to_owned(), json!(value))).collect(),
        )
    };
    let routes = identity.routes().map(|(route, of_route)| (route.to_owned(), rules(of_route)));
    json!({
        "tenant": identity.tenant(),
        "tenant_secret": identity.tenant_secret(),
        "defaults": rules(identity.defaults()),
        "routes": Value::Object(routes.collect()),
    })
}

fn unreadable(error: &IdentityError) -> Failure {
    match error {
        IdentityError::Store(error) => Failure::world("cannot read the identity").because_of(error),
        IdentityError::Closed(mark) => super::copy::explain_closed(mark),
        other => Failure::world("cannot read the identity")
            .because(other)
            .hint("use the ibid that wrote it, or a newer one"),
    }
}

fn change_failure(error: ChangeError) -> Failure {
    match error {
        ChangeError::NotSet => Failure::no(error.to_string()).hint("start the gateway once"),
        ChangeError::TooManyPrevious => Failure::no(error.to_string())
            .hint("end that first: `ibid identity change --forget-previous`, once their records have gone"),
        ChangeError::NotActive(_) => {
            Failure::no(error.to_string()).hint("`ibid identity show` says how it stands")
        }
        ChangeError::Identity(error) => unreadable(&error),
        ChangeError::Store(error) => Failure::world("the store failed")
            .because_of(&error)
            .hint("run it again: until it has ended, no node starts on this store"),
        other => Failure::no(other.to_string()),
    }
}
