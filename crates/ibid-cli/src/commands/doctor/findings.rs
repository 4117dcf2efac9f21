//! Interprets the facts about a store for its operator. Pure: facts in, findings out.

use ibid::store::checkup::{
    Checkup, ClockGap, OpenCases, Pooler, Role, SERVER_CLOCKS, Schema, Setting, Standby, Standbys,
};
use ibid::upkeep::CLOCK_AHEAD_MAX;

use crate::output::Failure;

/// One line of the doctor's report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) grade: Grade,
    pub(super) found: String,
    pub(super) meaning: String,
}

/// Grade of one check, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grade {
    /// The check found no problem.
    Ok,
    /// The check can't see the fact from here, so it says nothing.
    Unseen,
    /// ibid works but promises less than it could, or an operator is needed.
    Warning,
    /// ibid refuses to start on it, or can't continue.
    Bad,
}

impl Grade {
    pub(super) fn name(self) -> &'static str {
        match self {
            Grade::Ok => "ok",
            Grade::Unseen => "unseen",
            Grade::Warning => "warning",
            Grade::Bad => "bad",
        }
    }

    /// Returns whether this grade makes the command fail.
    pub(super) fn is_amiss(self) -> bool {
        matches!(self, Grade::Warning | Grade::Bad)
    }
}

/// Returns all findings, in the order in which an operator would check.
pub(super) fn of(checkup: &Checkup, secrets: usize) -> Vec<Finding> {
    let mut findings = vec![
        software(checkup),
        schema(checkup.schema),
        clock(checkup.clock),
        durability(&checkup.durability, checkup.weak_accepted),
        role(checkup),
    ];
    findings.extend(server_clocks(&checkup.durability));
    findings.extend(
        checkup
            .refusals
            .iter()
            .map(|reason| line("refusal", Grade::Bad, reason, "ibid refuses to start with it")),
    );
    match (&checkup.standbys, checkup.role) {
        (Some(standbys), _) => findings.push(replication(standbys)),
        (None, Role::Standby) => {
            findings.push(line("replication", Grade::Unseen, "asked a standby", "ask the primary"));
        }
        // A server without standbys says so by its durability.
        (None, _) if checkup.clock.is_some() => {}
        (None, _) => findings.push(line(
            "replication",
            Grade::Ok,
            "one file",
            "if its disk is lost, so are its records: keep backups",
        )),
    }
    findings.extend(checkup.pooler.map(pooler));
    findings.push(secret(secrets, checkup.has_secret));
    findings.push(super::identity::of(checkup.identity.as_deref()));
    findings.push(super::lease::of(checkup.runs.as_deref()));
    findings.extend(checkup.tuning.iter().flat_map(super::tuning::of));
    findings.push(open_cases(checkup.open_cases));
    findings
}

/// Returns the only finding about a store that can't be reached.
pub(super) fn unreachable(failure: &Failure) -> Finding {
    let cause = failure.cause.clone().unwrap_or_default();
    line("store", Grade::Bad, cause, "nothing is executed without the store: clients get 503")
}

pub(super) fn line(
    check: &'static str,
    grade: Grade,
    found: impl Into<String>,
    meaning: impl Into<String>,
) -> Finding {
    Finding { check, grade, found: found.into(), meaning: meaning.into() }
}

fn software(checkup: &Checkup) -> Finding {
    match &checkup.needs {
        None if checkup.is_untested => {
            line("store", Grade::Ok, &checkup.software, "it answers; ibid was built for it, not tested on it")
        }
        None => line("store", Grade::Ok, &checkup.software, "it answers"),
        Some(needed) => {
            line("store", Grade::Bad, &checkup.software, format!("ibid needs version {needed} or later"))
        }
    }
}

fn schema(schema: Schema) -> Finding {
    let (grade, found, meaning) = match schema {
        Schema::Absent => {
            (Grade::Warning, "no tables of ibid".to_owned(), "run `ibid migrate`, or start the gateway once")
        }
        Schema::Step { found, known } if found < known => (
            Grade::Warning,
            format!("step {found} of {known}"),
            "old: run `ibid migrate`, or start the gateway once",
        ),
        Schema::Step { found, known } if found > known => (
            Grade::Ok,
            format!("step {found}, and this ibid knows {known}"),
            "newer, and it only added something: this ibid can use it",
        ),
        Schema::TooNew { found, known } => (
            Grade::Bad,
            format!("step {found}, and this ibid knows {known}"),
            "from the future: use the ibid that upgraded it, or a newer one",
        ),
        Schema::Step { found, .. } => (Grade::Ok, format!("step {found}"), "current"),
        Schema::Altered { number } => (
            Grade::Bad,
            format!("step {number} is not the one that this ibid knows"),
            "another build of ibid made these tables: use that one, or an empty database",
        ),
    };
    line("schema", grade, found, meaning)
}

fn clock(gap: Option<ClockGap>) -> Finding {
    let Some(ClockGap { ahead_us, within }) = gap else {
        return line("clock", Grade::Ok, "this node's own", "the store keeps no other time");
    };
    let apart_us = ahead_us.unsigned_abs();
    let millis = |us: u64| format!("{}.{} ms", us / 1000, us % 1000 / 100);
    let side = if ahead_us < 0 { "behind" } else { "ahead of" };
    // A gap no larger than the round trip may be no gap at all.
    let within_us = u64::try_from(within.as_micros()).unwrap_or(u64::MAX);
    let facts =
        format!("the store is {} {side} this node, give or take {}", millis(apart_us), millis(within_us));
    let is_reaper_waiting = u128::try_from(ahead_us).is_ok_and(|ahead| ahead > CLOCK_AHEAD_MAX.as_micros());
    match apart_us.saturating_sub(within_us) > CLOCK_APART_US_MAX {
        true if is_reaper_waiting => line(
            "clock",
            Grade::Warning,
            facts,
            "nothing is reaped while the store is so far ahead: set the clock that is wrong",
        ),
        true => line(
            "clock",
            Grade::Warning,
            facts,
            "the node's time never decides, but logs won't line up: run a time service on both",
        ),
        false => line("clock", Grade::Ok, facts, "the store's time decides, the node's never does"),
    }
}

fn durability(settings: &[Setting], accepted: bool) -> Finding {
    let words = |settings: &mut dyn Iterator<Item = &Setting>| {
        settings.map(|setting| format!("{} = {}", setting.name, setting.value)).collect::<Vec<_>>().join(", ")
    };
    let facts = words(&mut settings.iter().filter(|setting| setting.name != SERVER_CLOCKS));
    let refused = |setting: &&Setting| setting.is_weak && setting.name != "full_page_writes";
    let weak = words(&mut settings.iter().filter(|setting| setting.is_weak));
    match (settings.iter().any(|setting| refused(&setting)), accepted) {
        _ if weak.is_empty() => {
            line("durability", Grade::Ok, facts, "every response that was sent is on disk")
        }
        (true, false) => line(
            "durability",
            Grade::Bad,
            facts,
            format!(
                "weak: a crash or a failover may lose responses that were sent (`{weak}`), and ibid refuses to start: change it, or \
                 accept the loss with `?durability=weak` in the URL"
            ),
        ),
        _ => line(
            "durability",
            Grade::Warning,
            facts,
            format!(
                "weak: a crash or a failover may lose responses that were sent (`{weak}`): what ran once may run again"
            ),
        ),
    }
}

/// Returns a warning about a cluster whose servers tell different times: each is the clock of the records that it stores.
fn server_clocks(settings: &[Setting]) -> Option<Finding> {
    let clocks = settings.iter().find(|setting| setting.name == SERVER_CLOCKS)?;
    Some(line(
        "clocks",
        Grade::Warning,
        clocks.value.clone(),
        "the servers tell different times: from a second on no lapsed key is taken over; run a time service on each of them",
    ))
}

fn role(checkup: &Checkup) -> Finding {
    match checkup.role {
        Role::Primary => line("role", Grade::Ok, "takes writes", "ibid writes before every request"),
        // Only PostgreSQL's driver finds the primary among several hosts.
        Role::Standby if checkup.software.starts_with("PostgreSQL") => line(
            "role",
            Grade::Bad,
            "a standby",
            "ibid has to write: name the primary, or all hosts: `postgres://USER@A,B/DATABASE`",
        ),
        Role::Standby => line("role", Grade::Bad, "a standby", "ibid has to write: name the primary"),
        Role::ReadOnly => line("role", Grade::Bad, "read-only", "ibid has to write before every request"),
    }
}

fn replication(standbys: &Standbys) -> Finding {
    let Standbys { awaited, connected, missing } = standbys;
    let named = |pick: &dyn Fn(&Standby) -> bool| {
        let names = connected.iter().filter(|standby| pick(standby));
        let names = names.map(|standby| format!("`{}`", standby.name.as_deref().unwrap_or("?")));
        names.collect::<Vec<_>>().join(", ")
    };
    let check = "replication";
    let synchronous = named(&|standby| standby.is_synchronous == Some(true));
    let others = named(&|standby| standby.is_synchronous != Some(true));
    if !synchronous.is_empty() {
        let also = if others.is_empty() { String::new() } else { format!(", besides {others}") };
        let meaning = "a failover to a synchronous standby, and to no other, loses no response that was sent";
        return line(check, Grade::Ok, format!("synchronous: {synchronous}{also}"), meaning);
    }
    if !missing.is_empty() && connected.is_empty() {
        let missing: Vec<String> = missing.iter().map(|privilege| format!("`{privilege}`")).collect();
        return line(
            check,
            Grade::Unseen,
            "standbys, or whether this is one",
            format!("this user may not see them: grant it {} on `*.*`", missing.join(" and ")),
        );
    }
    let unseen = connected.iter().any(|standby| standby.is_synchronous.is_none());
    match (connected.len(), awaited.is_empty()) {
        (0, true) => line(
            check,
            Grade::Ok,
            "no standby",
            "if the disk of the only server is lost, so are its records: keep backups, or add a synchronous standby",
        ),
        // No standby can be synchronous without being named in the setting.
        (_, true) => line(
            check,
            Grade::Warning,
            format!("asynchronous only: {others}"),
            "a failover may lose acknowledged commits: a request whose response was replayed may run again; make them \
             synchronous (`synchronous_standby_names` on PostgreSQL, semi-synchronous replication on MySQL)",
        ),
        (count, false) if unseen => line(
            check,
            Grade::Unseen,
            format!("{count} connected, `synchronous_standby_names = {awaited}`"),
            "this user may not see which are synchronous: grant it `pg_read_all_stats`",
        ),
        (_, false) => line(
            check,
            Grade::Bad,
            format!("`synchronous_standby_names = {awaited}`, and none of them is connected"),
            "every commit waits for one until it comes: start it, or change the setting",
        ),
    }
}

fn pooler(pooler: Pooler) -> Finding {
    let check = "pooler";
    match pooler {
        Pooler::NotSeen => {
            line(check, Grade::Ok, "none seen", "each connection keeps its session, as far as it can be seen")
        }
        Pooler::Seen => {
            line(check, Grade::Ok, "transactions share sessions", "ibid keeps nothing in a session")
        }
        Pooler::MixesStatements => line(
            check,
            Grade::Warning,
            "transactions share sessions, and so do prepared statements",
            "statements will fail now and then: put `?prepare=false` into the URL, or let the pooler follow prepared \
             statements",
        ),
        Pooler::Undecided => {
            line(check, Grade::Unseen, "no second connection to compare with", "allow this user some more")
        }
    }
}

pub(super) fn secret(configured: usize, kept: bool) -> Finding {
    let check = "fingerprint secret";
    match (configured, kept) {
        (0, false) => line(
            check,
            Grade::Ok,
            "none configured, none made yet",
            "the first start makes one, in the store",
        ),
        (0, true) => line(
            check,
            Grade::Ok,
            "made by the store itself",
            "a reader of the store can test guesses of bodies: configure `fingerprint.secrets` if that matters",
        ),
        (count, false) => line(check, Grade::Ok, format!("configured: {count}"), "not kept in the store"),
        (count, true) => line(
            check,
            Grade::Ok,
            format!("configured: {count}; one that the store made itself is still there"),
            "a gateway refuses to start while records name a secret that it is not given",
        ),
    }
}

fn open_cases(cases: Option<OpenCases>) -> Finding {
    let check = "open cases";
    let Some(OpenCases { unknown, dead_letters, effects_unknown, effects_dead }) = cases else {
        return line(
            check,
            Grade::Unseen,
            "not counted",
            "the tables are not as they should be, or too large",
        );
    };
    let facts = format!(
        "records: {unknown} unknown, {dead_letters} dead letters; effects: {effects_unknown} unknown, {effects_dead} dead"
    );
    match dead_letters + effects_unknown + effects_dead {
        0 if unknown == 0 => line(check, Grade::Ok, facts, "nothing waits for an operator"),
        0 => line(
            check,
            Grade::Ok,
            facts,
            "unknown records are not dead letters yet: `ibid keys list --state unknown`",
        ),
        _ => line(check, Grade::Warning, facts, "an operator must look: nothing retries these automatically"),
    }
}

/// Largest acceptable gap of the clocks. Above it, log lines of the two can't be matched by eye, and a clock is wrong.
const CLOCK_APART_US_MAX: u64 = 1_000_000;

#[cfg(test)]
mod tests;
