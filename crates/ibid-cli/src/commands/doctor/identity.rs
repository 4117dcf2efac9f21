//! Explains the identity of a store's records to its operator.

use ibid::identity::{IdentityPhase, IdentitySetting};

use super::findings::{Finding, Grade, line};

/// Returns the finding about the stored identity.
pub(super) fn of(text: Option<&[u8]>) -> Finding {
    let check = "identity";
    let setting = match text.map(IdentitySetting::parse) {
        None => return line(check, Grade::Ok, "none yet", "the first start writes it"),
        Some(Err(error)) => {
            let meaning = "no node of this version starts on it: use the ibid that wrote it, or a newer one";
            return line(check, Grade::Bad, error.to_string(), meaning);
        }
        Some(Ok(setting)) => setting,
    };
    if let Err(closed) = setting.check_open() {
        let meaning = "no node starts or acts on it: end a copy that was stopped with `ibid copy`, or cancel it with `--cancel`";
        return line(check, Grade::Warning, closed.to_string(), meaning);
    }
    let tenant = format!("{}, tenant `{}`", setting.phase.name(), setting.current.tenant());
    match (setting.phase, setting.previous.len()) {
        (IdentityPhase::Active, 0) => {
            line(check, Grade::Ok, tenant, "a node with other settings refuses to start")
        }
        (IdentityPhase::Active, count) => line(
            check,
            Grade::Ok,
            format!("{tenant}, previous: {count}"),
            "each begin looks up the ids of before, too: end that with `ibid identity change --forget-previous`",
        ),
        (IdentityPhase::Retiring, _) => line(
            check,
            Grade::Warning,
            tenant,
            "nodes answer 503 and none starts: run `ibid identity change --yes` to its end",
        ),
        (IdentityPhase::Retired, _) => {
            line(check, Grade::Warning, tenant, "nodes answer 503: start them with the new configuration")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_of_the_identity_says_what_to_do() {
        let text = |phase: &str, previous: &str| {
            format!(
                r#"{{"format":1,"generation":1,"phase":"{phase}","valid_for_ms":15000,"abandoned":false,"retired_at_us":null,
                    "current":{CURRENT},"previous":[{previous}]}}"#
            )
        };
        const CURRENT: &str = r#"{"tenant":"none","tenant_secret":null,"defaults":{},"routes":{}}"#;
        let previous = format!(r#"{{"until_us":1,{}"#, &CURRENT[1..]);
        let grade = |text: &str| of(Some(text.as_bytes())).grade;
        assert_eq!(of(None).grade, Grade::Ok);
        assert_eq!(grade(&text("active", "")), Grade::Ok);
        assert_eq!(grade(&text("retiring", "")), Grade::Warning);
        assert_eq!(grade(&text("retired", "")), Grade::Warning);
        assert_eq!(grade("from the future"), Grade::Bad);
        let mark =
            r#"[],"copy":{"id":"1","role":"source","to":"sqlite:b.db","moved":false,"before":"active"}"#;
        let closed = of(Some(text("retired", "").replace("[]", mark).as_bytes()));
        assert_eq!(
            (closed.grade, &*closed.found),
            (Grade::Warning, "this store is being copied to `sqlite:b.db`")
        );
        let looked_up = of(Some(text("active", &previous).as_bytes()));
        assert!(looked_up.meaning.contains("--forget-previous"), "{looked_up:?}");
    }
}
