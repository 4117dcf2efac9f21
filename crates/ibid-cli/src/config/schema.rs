//! Every key of the configuration, with its type and what it does.
//!
//! The reference page is generated from these lists, and hints quote them. Tests compare them with the reader: a key
//! that is read and not listed fails, and so does one that is listed and not read. Defaults are not repeated here; they
//! come from the code that uses them ([`defaults`](super::defaults)).

mod gateway;
mod hooks;
mod rules;
mod server;

/// A key of the configuration.
pub(crate) struct ConfigKey {
    /// Table that holds it; empty for the top level.
    pub(crate) section: &'static str,
    pub(crate) key: &'static str,
    /// Type of its value, or the words that it may be.
    #[cfg_attr(not(test), allow(dead_code, reason = "for the reference page, which a test writes"))]
    pub(crate) kind: &'static str,
    /// Description of the key, and the reason for its default.
    #[cfg_attr(not(test), allow(dead_code, reason = "for the reference page, which a test writes"))]
    pub(crate) why: &'static str,
}

/// Returns every key, in the order of the reference page.
pub(crate) fn all() -> impl Iterator<Item = &'static ConfigKey> {
    [gateway::KEYS, rules::KEYS, hooks::KEYS, server::KEYS].into_iter().flatten()
}

/// Returns the key, if `section` has it. A route has every key of `[defaults]`, too.
pub(crate) fn find(section: &str, key: &str) -> Option<&'static ConfigKey> {
    let holds =
        |known: &&ConfigKey| known.section == section || (section == "route" && known.section == "defaults");
    all().filter(holds).find(|known| known.key == key)
}

/// Returns whether the section may hold the key, tables included.
pub(crate) fn is_known(section: &str, key: &str) -> bool {
    let is_table = match section {
        "" => TABLES.contains(&key),
        "route" => key == "reconcile",
        "not_executed_when" => ["status", "header", "in"].contains(&key),
        _ => false,
    };
    is_table || find(section, key).is_some()
}

/// Returns the name of a section for messages and headings.
pub(crate) fn title(section: &str) -> String {
    match section {
        "" => "the top level".to_owned(),
        "route" => "`[[route]]`".to_owned(),
        "hook" => "`[[hook]]`".to_owned(),
        name => format!("`[{name}]`"),
    }
}

const fn key(section: &'static str, key: &'static str, kind: &'static str, why: &'static str) -> ConfigKey {
    ConfigKey { section, key, kind, why }
}

/// Names of the tables at the top level.
const TABLES: [&str; 12] = [
    "upstream_tls",
    "store",
    "front",
    "tenant",
    "defaults",
    "route",
    "fingerprint",
    "hook",
    "upkeep",
    "server",
    "limits",
    "cors",
];
