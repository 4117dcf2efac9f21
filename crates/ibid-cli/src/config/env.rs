//! Variables without a flag, and suggestions for misspelt variable names.

use super::units::near_miss;
use crate::output::Failure;

/// Environment variables without a flag.
#[derive(Clone, Debug, Default)]
pub(crate) struct EnvVars {
    /// Value of `IBID_SECRETS`, comma-separated.
    pub(crate) secrets: Option<String>,
    /// Value of `IBID_FRONT`, unchecked.
    pub(crate) front: Option<String>,
    /// Value of `IBID_ADMIN_TOKEN`, unchecked.
    pub(crate) admin_token: Option<String>,
    /// Names that begin with `IBID_`.
    pub(crate) names: Vec<String>,
}

/// Filter and format of the log: `IBID_LOG` and `IBID_LOG_FORMAT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogSettings {
    /// Directives in the syntax of `tracing_subscriber::EnvFilter`.
    pub(crate) filter: String,
    /// Logs one JSON object per line.
    pub(crate) json: bool,
}

impl LogSettings {
    /// Reads the variables of the process.
    pub(crate) fn of_process() -> Result<LogSettings, Failure> {
        let of = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        LogSettings::parse(of("IBID_LOG"), of("IBID_LOG_FORMAT"))
    }

    fn parse(filter: Option<String>, format: Option<String>) -> Result<LogSettings, Failure> {
        let json = match format.as_deref() {
            None | Some("text") => false,
            Some("json") => true,
            Some(other) => {
                let failure = Failure::usage(format!("`IBID_LOG_FORMAT` is `{other}`"));
                return Err(failure.hint("use `text` or `json`"));
            }
        };
        let filter = filter.unwrap_or_else(|| "info".to_owned());
        match tracing_subscriber::EnvFilter::try_new(&filter) {
            Ok(_) => Ok(LogSettings { filter, json }),
            Err(error) => Err(Failure::usage(format!("`IBID_LOG` is `{filter}`, which is no filter"))
                .because(error)
                .hint("write for example `info` or `ibid=debug,warn`")),
        }
    }
}

impl EnvVars {
    /// Reads the variables of the process.
    pub(crate) fn of_process() -> Result<EnvVars, Failure> {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let secrets = match std::env::var("IBID_SECRETS") {
            Ok(secrets) => Some(secrets),
            Err(std::env::VarError::NotPresent) => None,
            // Ignoring them would silently key fingerprints with another secret.
            Err(std::env::VarError::NotUnicode(_)) => {
                let failure = Failure::usage("`IBID_SECRETS` is not UTF-8");
                return Err(failure.hint("write secrets in hex or base64"));
            }
        };
        // A value that is not UTF-8 is invalid too, and refused later.
        let of = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let (front, admin_token) = (of("IBID_FRONT"), of("IBID_ADMIN_TOKEN"));
        Ok(EnvVars {
            secrets,
            front,
            admin_token,
            names: names.filter(|name| name.starts_with("IBID_")).collect(),
        })
    }
}

/// Warns about variables that are near misses of known ones. Others are ignored: an orchestrator may set
/// `IBID_SERVICE_HOST` and the like.
pub(super) fn misspelt(names: &[String]) -> Vec<String> {
    let unknown = names.iter().filter(|name| !KNOWN.contains(&name.as_str()));
    let misspelt = unknown.filter_map(|name| {
        let near = near_miss(name, KNOWN)?;
        Some(format!("`{name}` is not a variable of ibid: did you mean `{near}`?"))
    });
    misspelt.collect()
}

const KNOWN: [&str; 13] = [
    "IBID_UPSTREAM",
    "IBID_KEY",
    "IBID_TENANT",
    "IBID_LISTEN",
    "IBID_ADMIN_LISTEN",
    "IBID_STORE",
    "IBID_FRONT",
    "IBID_CONFIG",
    "IBID_UPSTREAM_HTTP2",
    "IBID_SECRETS",
    "IBID_ADMIN_TOKEN",
    "IBID_LOG",
    "IBID_LOG_FORMAT",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_variable_is_a_warning_and_a_foreign_one_is_not() {
        let names = ["IBID_UPSTRAEM", "IBID_SERVICE_HOST", "IBID_PORT", "IBID_LOG"].map(str::to_owned);
        assert_eq!(
            misspelt(&names),
            ["`IBID_UPSTRAEM` is not a variable of ibid: did you mean `IBID_UPSTREAM`?"]
        );
    }

    #[test]
    fn logs_are_text_at_info_until_told_otherwise() {
        let parse = |filter: &str, format: &str| {
            let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            LogSettings::parse(some(filter), some(format))
        };
        assert_eq!(parse("", ""), Ok(LogSettings { filter: "info".into(), json: false }));
        assert_eq!(
            parse("ibid=debug,warn", "json"),
            Ok(LogSettings { filter: "ibid=debug,warn".into(), json: true })
        );
        assert_eq!(parse("", "xml").unwrap_err().hint.unwrap(), "use `text` or `json`");
        assert!(parse("ibid=loud", "").is_err());
    }
}
