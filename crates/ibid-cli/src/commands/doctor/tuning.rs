//! Compares a server's settings with the size of the store. Pure: facts in, findings out.

use std::time::Duration;

use ibid::store::checkup::ServerTuning;

use super::findings::{Finding, Grade, line};
use crate::config::units::show_duration;

/// Checks checkpoints, autovacuum and memory. A small store runs well with the settings of a new server.
pub(super) fn of(tuning: &ServerTuning) -> [Finding; 3] {
    [checkpoints(tuning), autovacuum(tuning), memory(tuning)]
}

fn checkpoints(tuning: &ServerTuning) -> Finding {
    let check = "checkpoints";
    let values = format!(
        "checkpoint_timeout = {}, max_wal_size = {}",
        show_duration(tuning.checkpoint_timeout),
        size(tuning.max_wal_bytes)
    );
    let is_frequent =
        tuning.checkpoint_timeout < CHECKPOINT_TIMEOUT_MIN || tuning.max_wal_bytes < MAX_WAL_MIN;
    match (is_large(tuning), is_frequent) {
        (true, true) => line(
            check,
            Grade::Warning,
            values,
            format!(
                "after each checkpoint the first change of every index page logs the whole page, and ids are random: set \
                 `checkpoint_timeout` to {} or more and `max_wal_size` to {} or more",
                show_duration(CHECKPOINT_TIMEOUT_MIN),
                size(MAX_WAL_MIN)
            ),
        ),
        (false, true) => line(check, Grade::Ok, values, "enough for a small store"),
        (_, false) => line(check, Grade::Ok, values, "few whole pages in the log"),
    }
}

fn autovacuum(tuning: &ServerTuning) -> Finding {
    let check = "autovacuum";
    if !tuning.has_autovacuum {
        return line(
            check,
            Grade::Warning,
            "off for `ibid_record`",
            "rows that the reaper deletes are never reused, and the table only grows: turn it on",
        );
    }
    let pass = vacuum_pass(tuning);
    let values = format!(
        "autovacuum_vacuum_cost_delay = {}ms, cost limit {}",
        tuning.vacuum_cost_delay_ms, tuning.vacuum_cost_limit
    );
    match pass > VACUUM_PASS_MAX {
        true => line(
            check,
            Grade::Warning,
            values,
            format!(
                "one pass over the indexes takes {} or more, and dead rows gather faster: `alter table ibid_record set \
                 (autovacuum_vacuum_cost_delay = 0)`",
                show_duration(Duration::from_secs(pass.as_secs()))
            ),
        ),
        false => line(check, Grade::Ok, values, "a pass over the indexes is short"),
    }
}

fn memory(tuning: &ServerTuning) -> Finding {
    let (check, index) = ("index memory", size(tuning.index_bytes));
    let values = format!("shared_buffers = {}, indexes of records {index}", size(tuning.shared_buffer_bytes));
    match is_large(tuning) && tuning.shared_buffer_bytes < tuning.index_bytes {
        true => line(
            check,
            Grade::Warning,
            values,
            "each begin looks at a random page of an index: what is not in memory is a read from disk. Give \
             `shared_buffers` at least the size of the indexes",
        ),
        false => line(check, Grade::Ok, values, "the indexes fit, or are small"),
    }
}

/// Returns how long autovacuum takes at least for the indexes, because of its pauses: most pages of a random index are
/// changed by a pass.
fn vacuum_pass(tuning: &ServerTuning) -> Duration {
    let pages = tuning.index_bytes as f64 / PAGE_BYTES;
    let pauses = pages * PAGE_DIRTY_COST / tuning.vacuum_cost_limit.max(1) as f64;
    Duration::from_secs_f64(pauses * tuning.vacuum_cost_delay_ms.max(0.0) / 1e3)
}

fn is_large(tuning: &ServerTuning) -> bool {
    tuning.records >= LARGE_FROM
}

/// Returns a number of bytes in the server's own units.
fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 10 << 30 => format!("{}GB", bytes >> 30),
        bytes if bytes >= 1 << 20 => format!("{}MB", bytes >> 20),
        bytes => format!("{}kB", bytes >> 10),
    }
}

/// Number of records from which the settings of a new server cost more than they should: the index of ids has some ten
/// thousand pages, and a checkpoint every five minutes logs nearly all of them.
const LARGE_FROM: u64 = 1_000_000;

/// Shortest `checkpoint_timeout` of a large store: page images are then a fraction of the log.
const CHECKPOINT_TIMEOUT_MIN: Duration = Duration::from_secs(15 * 60);

/// Smallest `max_wal_size` of a large store. At a megabyte of log per thousand keys and less, the timeout then comes first up to
/// some thousand keys a second.
const MAX_WAL_MIN: u64 = 4 << 30;

/// Longest time that autovacuum may pause during one pass over the indexes. At two per cent of dead rows, a busy store asks
/// for the next pass in minutes.
const VACUUM_PASS_MAX: Duration = Duration::from_secs(120);

const PAGE_BYTES: f64 = 8192.0;

/// The default of `vacuum_cost_page_dirty`.
const PAGE_DIRTY_COST: f64 = 20.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn amiss(change: impl FnOnce(&mut ServerTuning)) -> Vec<&'static str> {
        let findings = of(&ServerTuning::default().with(change));
        findings
            .into_iter()
            .filter(|finding| finding.grade != Grade::Ok)
            .map(|finding| finding.check)
            .collect()
    }

    #[test]
    fn a_small_store_runs_with_the_settings_of_a_new_server() {
        assert_eq!(amiss(|_| {}), [""; 0]);
        assert_eq!(amiss(|tuning| tuning.records = LARGE_FROM - 1), [""; 0]);
    }

    #[test]
    fn frequent_checkpoints_of_a_large_store_are_a_warning() {
        assert_eq!(amiss(|tuning| tuning.records = LARGE_FROM), ["checkpoints"]);
        let rare = |tuning: &mut ServerTuning| {
            (tuning.records, tuning.checkpoint_timeout) = (LARGE_FROM, CHECKPOINT_TIMEOUT_MIN);
            tuning.max_wal_bytes = MAX_WAL_MIN;
        };
        assert_eq!(amiss(rare), [""; 0]);
        let small_log = |tuning: &mut ServerTuning| {
            rare(tuning);
            tuning.max_wal_bytes = 1 << 30;
        };
        assert_eq!(amiss(small_log), ["checkpoints"]);
    }

    #[test]
    fn a_table_without_autovacuum_is_a_warning_at_any_size() {
        assert_eq!(amiss(|tuning| tuning.has_autovacuum = false), ["autovacuum"]);
    }

    #[test]
    fn a_vacuum_that_pauses_for_minutes_is_a_warning() {
        let large = |tuning: &mut ServerTuning| {
            (tuning.index_bytes, tuning.shared_buffer_bytes) = (8 << 30, 16 << 30);
        };
        assert_eq!(amiss(large), ["autovacuum"]);
        let finding = autovacuum(&ServerTuning::default().with(large));
        assert!(finding.meaning.contains("takes 209s or more"), "{finding:?}");
        let unlimited = |tuning: &mut ServerTuning| {
            large(tuning);
            tuning.vacuum_cost_delay_ms = 0.0;
        };
        assert_eq!(amiss(unlimited), [""; 0]);
    }

    #[test]
    fn indexes_larger_than_the_servers_memory_are_a_warning() {
        let large = |tuning: &mut ServerTuning| {
            (tuning.records, tuning.index_bytes) = (LARGE_FROM, 200 << 20);
            (tuning.checkpoint_timeout, tuning.max_wal_bytes) = (CHECKPOINT_TIMEOUT_MIN, MAX_WAL_MIN);
        };
        assert_eq!(amiss(large), ["index memory"]);
    }
}
