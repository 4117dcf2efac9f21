//! The URL of a DynamoDB store: `dynamodb://TABLE?region=…&endpoint=…&skew_max=…&shards=…`.

use std::time::Duration;

use crate::open::{DynamoOptions, SKEW_MAX_LEAST, SKEW_MAX_MOST};
use crate::order::Shards;

impl DynamoOptions {
    /// Parses the URL of a store.
    ///
    /// # Errors
    ///
    /// Fails if it has another form, names no table, or has a parameter that is unknown or out of range.
    pub fn from_url(url: &str) -> Result<DynamoOptions, DynamoUrlError> {
        let rest = url.strip_prefix("dynamodb://").ok_or(DynamoUrlError::Form)?;
        let (table, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let is_name = |char: char| char.is_ascii_alphanumeric() || matches!(char, '_' | '-' | '.');
        if !(3..=255).contains(&table.len()) || !table.chars().all(is_name) {
            return Err(DynamoUrlError::Table);
        }
        let mut options = DynamoOptions::new(table);
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match name {
                "region" if !value.is_empty() => options.region = Some(value.to_owned()),
                "endpoint" if value.starts_with("http") => options.endpoint = Some(value.to_owned()),
                "skew_max" => {
                    let range = SKEW_MAX_LEAST..=SKEW_MAX_MOST;
                    let length = parse_length(value).filter(|length| range.contains(length));
                    options.skew_max = length.ok_or(DynamoUrlError::SkewMax)?;
                }
                "shards" => {
                    let shards = value.parse().ok().and_then(Shards::new);
                    options.shards = Some(shards.ok_or(DynamoUrlError::Shards)?);
                }
                _ => return Err(DynamoUrlError::Parameter(name.to_owned())),
            }
        }
        Ok(options)
    }
}

fn parse_length(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|char: char| !char.is_ascii_digit())?);
    let number: u32 = number.parse().ok()?;
    match unit {
        "ms" => Some(Duration::from_millis(number.into())),
        "s" => Some(Duration::from_secs(number.into())),
        "m" => Some(Duration::from_secs(60 * u64::from(number))),
        _ => None,
    }
}

/// The text is not the URL of a DynamoDB store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DynamoUrlError {
    /// It has another form.
    #[error("write `dynamodb://TABLE?region=REGION`")]
    Form,
    /// It names no table that DynamoDB could have.
    #[error("a table has 3 to 255 letters, digits, `_`, `-` and `.`")]
    Table,
    /// The largest difference of clocks is not a length, or out of range.
    #[error("`skew_max` must be `5s` to `10m`, such as `10s`")]
    SkewMax,
    /// The number of shards is out of range.
    #[error("`shards` must be a number from 1 to 256")]
    Shards,
    /// A parameter is unknown, or its value is not one that it can have.
    #[error(
        "the parameter `{0}` is unknown, or its value is wrong; there are `region`, `endpoint`, `skew_max` and `shards`"
    )]
    Parameter(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_table_and_its_options() {
        let options = DynamoOptions::from_url("dynamodb://pay.keys?region=eu-west-1&skew_max=5s&shards=16");
        let options = options.expect("a good URL");
        assert_eq!((options.table.as_str(), options.region.as_deref()), ("pay.keys", Some("eu-west-1")));
        assert_eq!((options.skew_max, options.shards), (SKEW_MAX_LEAST, Shards::new(16)));
        let options = DynamoOptions::from_url("dynamodb://ibid?endpoint=http://localhost:8000");
        assert_eq!(options.expect("a good URL").endpoint.as_deref(), Some("http://localhost:8000"));
    }

    #[test]
    fn what_is_not_such_a_url_is_refused_with_a_reason() {
        let refusal = |url: &str| DynamoOptions::from_url(url).expect_err("a bad URL");
        assert_eq!(refusal("dynamo://ibid"), DynamoUrlError::Form);
        assert_eq!(refusal("dynamodb://"), DynamoUrlError::Table);
        assert_eq!(refusal("dynamodb://a/b"), DynamoUrlError::Table);
        for skew in ["4999ms", "11m", "5", "x", "", "99999999999s"] {
            assert_eq!(
                refusal(&format!("dynamodb://ibid?skew_max={skew}")),
                DynamoUrlError::SkewMax,
                "{skew}"
            );
        }
        for shards in ["0", "257", "many"] {
            assert_eq!(
                refusal(&format!("dynamodb://ibid?shards={shards}")),
                DynamoUrlError::Shards,
                "{shards}"
            );
        }
        assert_eq!(refusal("dynamodb://ibid?regio=x"), DynamoUrlError::Parameter("regio".to_owned()));
    }
}
