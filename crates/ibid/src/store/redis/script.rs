//! The scripts: one per verb, in `lua/`, each with the flags that it runs under.
//!
//! The first line `#!lua` makes a replica refuse the script instead of answering from old data. Without `allow-oom` a server
//! that is out of memory refuses it, too, before it starts: begins, new evidence, large settings and rows of a copy only.

use std::sync::LazyLock;

/// One script: its text, and the digest under which a server that has run it knows it.
pub(super) struct Script {
    pub(super) text: &'static str,
    pub(super) digest: LazyLock<String>,
    /// `true` if it begins attempts, and so must not run on a server that became too weak.
    pub(super) begins: bool,
}

macro_rules! script {
    (begins $name:ident, $($text:literal),+) => { script!(@ $name, true, $($text),+); };
    ($name:ident, $($text:literal),+) => { script!(@ $name, false, $($text),+); };
    (@ $name:ident, $begins:literal, $first_line:literal, $($file:literal),+) => {
        pub(super) static $name: Script = {
            const TEXT: &str = concat!(
                $first_line,
                "\n",
                include_str!("lua/record.lua"),
                $(include_str!(concat!("lua/", $file, ".lua"))),+
            );
            let digest: LazyLock<String> = LazyLock::new(|| redis::Script::new(TEXT).get_hash().to_owned());
            Script { text: TEXT, digest, begins: $begins }
        };
    };
}

script!(LOAD, "#!lua flags=allow-oom", "load");
script!(begins COMMIT_BEGIN, "#!lua", "draft", "commit");
script!(COMMIT, "#!lua flags=allow-oom", "draft", "commit");
script!(begins BEGIN, "#!lua", "draft", "begin");
script!(FINISH, "#!lua flags=allow-oom", "draft", "finish");
script!(RENEW, "#!lua flags=allow-oom", "renew");
script!(RANGE, "#!lua flags=allow-oom", "range");
script!(REAP, "#!lua flags=allow-oom", "reap");
script!(REAP_HISTORY, "#!lua flags=allow-oom", "reap_history");
script!(FIELD, "#!lua flags=allow-oom", "field");
script!(COMPARE_AND_SET, "#!lua", "compare_and_set");
script!(SET_SMALL, "#!lua flags=allow-oom", "compare_and_set");
script!(BODIES, "#!lua flags=allow-oom", "bodies");
script!(HISTORY, "#!lua flags=allow-oom", "history");
script!(COUNT, "#!lua flags=allow-oom", "count");
script!(VALUE, "#!lua flags=allow-oom", "value");
script!(EVIDENCE_POINT, "#!lua", "evidence_point");
script!(EVIDENCE_ADD, "#!lua", "evidence_add");
script!(EVIDENCE_DISMISS, "#!lua flags=allow-oom", "evidence_dismiss");
script!(EVIDENCE_PURGE, "#!lua flags=allow-oom", "evidence_purge");
script!(REMOVE, "#!lua flags=allow-oom", "remove");
script!(CLOCK, "#!lua flags=allow-oom", "clock");
script!(MEMBERS, "#!lua flags=allow-oom", "members");
script!(EXPORT_RECORD, "#!lua flags=allow-oom", "export_record");
script!(EXPORT_EVIDENCE, "#!lua flags=allow-oom", "export_evidence");
script!(IMPORT_RECORD, "#!lua", "fence", "import_record");
script!(IMPORT_HISTORY, "#!lua", "fence", "import_history");
script!(IMPORT_POINTER, "#!lua", "fence", "import_pointer");
script!(IMPORT_EVIDENCE, "#!lua", "fence", "import_evidence");
