//! Reports the server of the front: one that is away or refuses entries costs every request time and answers none.

use super::findings::{Finding, Grade, line};
use crate::config::FrontConfig;
use crate::front::{FrontFacts, look_at_front};

/// Asks the server of the front, and reports whether it takes entries.
pub(super) async fn look_at(config: &FrontConfig) -> Finding {
    match look_at_front(config).await {
        Ok(facts) => judge(&facts),
        Err(failure) => line(
            "front",
            Grade::Warning,
            format!("no answer at `{}`", config.url),
            format!(
                "requests ask the store instead: {}",
                failure.cause.as_deref().unwrap_or("it can't be reached")
            ),
        ),
    }
}

fn judge(front: &FrontFacts) -> Finding {
    let FrontFacts { version, is_replica, eviction, memory_max } = front;
    let eviction = eviction.as_deref();
    let bound = memory_max.map_or("without a bound".to_owned(), |bytes| format!("{} MB", bytes / 1_000_000));
    let facts =
        format!("Redis {version}, `{}`, {bound}", eviction.unwrap_or("maxmemory-policy not readable"));
    let warning = |meaning: &str| line("front", Grade::Warning, facts.clone(), meaning);
    match (is_replica, eviction, memory_max) {
        (true, ..) => warning("a replica takes no entries: name the primary"),
        (_, Some("noeviction"), Some(_)) => {
            warning("a full server takes no entries: set `maxmemory-policy allkeys-lru`")
        }
        (_, _, None) => {
            warning("it grows until the system ends it: set `maxmemory` and `maxmemory-policy allkeys-lru`")
        }
        _ => line("front", Grade::Ok, facts, "it forgets what is not used, and decides nothing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_that_takes_no_entries_is_a_warning() {
        let good = FrontFacts {
            version: "7.0.15".to_owned(),
            is_replica: false,
            eviction: Some("allkeys-lru".to_owned()),
            memory_max: Some(1_000_000_000),
        };
        let grade = |change: fn(&mut FrontFacts)| {
            let mut facts = good.clone();
            change(&mut facts);
            judge(&facts).grade
        };
        assert_eq!(grade(|_| {}), Grade::Ok);
        assert_eq!(grade(|facts| facts.eviction = Some("volatile-ttl".to_owned())), Grade::Ok);
        assert_eq!(grade(|facts| facts.eviction = None), Grade::Ok, "a managed service may hide it");
        assert_eq!(grade(|facts| facts.eviction = Some("noeviction".to_owned())), Grade::Warning);
        assert_eq!(grade(|facts| facts.memory_max = None), Grade::Warning);
        assert_eq!(grade(|facts| facts.is_replica = true), Grade::Warning);
    }
}
