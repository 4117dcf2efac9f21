//! Request types: filters, names and reasons, given responses. Each is checked here and converted into the engine's type.

use std::borrow::Cow;
use std::time::Duration;

use ibid::operator::{BulkAction, Observation, OperatorAction, PathPattern, RecordFilter, answer};
use ibid_core::machine::{AttemptResponse, EffectState};
use ibid_core::record::{Nonce, State, Version};
use ibid_core::scope::{IdPrefix, RecordId};
use ibid_core::store::Cursor;
use ibid_core::time::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{Object, ObjectBuilder, Schema, Type};
use utoipa::{IntoParams, PartialSchema, ToSchema};

use crate::problem::Problem;

/// Defines the JSON form of a state of `ibid_core`, which has the only list of its words.
macro_rules! state_word {
    ($word:ident, $state:ident, $description:literal) => {
        #[doc = $description]
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $word(pub(crate) $state);

        impl Serialize for $word {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.0.name())
            }
        }

        impl<'de> Deserialize<'de> for $word {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = String::deserialize(deserializer)?;
                $state::from_name(&word)
                    .map($word)
                    .ok_or_else(|| de::Error::unknown_variant(&word, &$state::NAMES))
            }
        }

        impl PartialSchema for $word {
            fn schema() -> RefOr<Schema> {
                let object = ObjectBuilder::new().schema_type(Type::String).description(Some($description));
                object.enum_values(Some($state::NAMES)).into()
            }
        }

        impl ToSchema for $word {
            fn name() -> Cow<'static, str> {
                stringify!($state).into()
            }
        }
    };
}

state_word!(StateWord, State, "The state of a record.");
state_word!(EffectWord, EffectState, "The state of an effect.");

/// Filter for records. A record must match every given field.
#[derive(Debug, Default, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
#[schema(as = Filter)]
pub(crate) struct RecordQuery {
    /// Only records in this state.
    #[param(nullable = false, inline)]
    state: Option<StateWord>,
    /// Only records of this tenant.
    #[param(nullable = false, min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$")]
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*$")]
    tenant: Option<String>,
    /// Only records with this key, written without quotes.
    #[param(nullable = false, min_length = 1, max_length = 255, pattern = "^[ -~]*$")]
    #[schema(min_length = 1, max_length = 255, pattern = "^[ -~]*$")]
    key: Option<String>,
    /// Only records with this HTTP method, in upper case.
    #[param(nullable = false, pattern = "^[A-Z]{1,16}$")]
    #[schema(pattern = "^[A-Z]{1,16}$")]
    method: Option<String>,
    /// Only records with exactly this path.
    #[param(nullable = false, max_length = 2000, pattern = "^/[!-~]*$")]
    #[schema(max_length = 2000, pattern = "^/[!-~]*$")]
    path: Option<String>,
    /// Only records whose path matches this pattern, such as `/payments/{id}`; with a trailing slash: `/payments/{id}/`.
    #[param(nullable = false, max_length = 2000, pattern = "^/[!-~]*$")]
    #[schema(max_length = 2000, pattern = "^/[!-~]*$")]
    route: Option<String>,
    /// Only records that need an operator.
    #[param(nullable = false)]
    dead_letter: Option<bool>,
    /// Only records whose first request came at this instant or later.
    #[param(nullable = false, format = DateTime)]
    #[schema(format = DateTime)]
    created_from: Option<String>,
    /// Only records whose first request came before this instant.
    #[param(nullable = false, format = DateTime)]
    #[schema(format = DateTime)]
    created_before: Option<String>,
    /// Only records whose first request came longer ago than this, by the store's clock: `90s`, `15m`, `24h`, `7d`.
    #[param(nullable = false, pattern = "^[0-9]{1,6}[smhd]$")]
    #[schema(pattern = "^[0-9]{1,6}[smhd]$")]
    older_than: Option<String>,
    /// Only records behind this cursor: `next` of the previous page.
    #[param(nullable = false, pattern = "^([0-9a-f]{2}){1,512}$")]
    #[schema(pattern = "^([0-9a-f]{2}){1,512}$")]
    after: Option<String>,
    /// Most records per page; 100 by default.
    #[param(nullable = false, minimum = 1, maximum = 1000)]
    #[schema(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

impl RecordQuery {
    pub(crate) fn filter(self) -> Result<RecordFilter, Problem> {
        let path = match (self.path, self.route) {
            (Some(path), Some(route)) => {
                let (path, route) = (in_path("path", path)?, in_path("route", route)?);
                // Both must match. If they exclude each other, an empty path matches no record.
                let both = PathPattern::of_route(&route).fits(&path);
                Some(PathPattern::of_path(if both { &path } else { "" }))
            }
            (Some(path), None) => Some(PathPattern::of_path(&in_path("path", path)?)),
            (None, Some(route)) => Some(PathPattern::of_route(&in_path("route", route)?)),
            (None, None) => None,
        };
        let text = |name, text: Option<String>| match text {
            Some(text)
                if text.is_empty() || text.chars().count() > 255 || text.chars().any(char::is_control) =>
            {
                Err(Problem::invalid(format!("`{name}` has 1 to 255 characters and no control characters")))
            }
            text => Ok(text),
        };
        if self.key.as_ref().is_some_and(|key| !key.bytes().all(|byte| (b' '..=b'~').contains(&byte))) {
            return Err(Problem::invalid("`key` has printable ASCII only"));
        }
        let is_method =
            |text: &String| (1..=16).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_uppercase());
        if self.method.as_ref().is_some_and(|method| !is_method(method)) {
            return Err(Problem::invalid("`method` is an HTTP method in upper case"));
        }
        let mut filter = RecordFilter::default();
        filter.state = self.state.map(|word| word.0);
        filter.tenant = text("tenant", self.tenant)?;
        filter.key = text("key", self.key)?;
        filter.method = self.method;
        filter.path = path;
        filter.dead_letter = self.dead_letter.unwrap_or(false);
        filter.created_from = self.created_from.map(|text| instant("created_from", &text)).transpose()?;
        filter.created_before =
            self.created_before.map(|text| instant("created_before", &text)).transpose()?;
        filter.older_than = self.older_than.map(|text| age(&text)).transpose()?;
        filter.after = self.after.map(|text| cursor(&text)).transpose()?;
        filter.limit = limit(self.limit)?;
        Ok(filter)
    }
}

/// Returns the schema of the name of an operator.
pub(crate) fn who_schema() -> Object {
    line("Name of the operator, stored in the history.", 100)
}

/// Returns the schema of the reason for an action.
pub(crate) fn reason_schema() -> Object {
    line("Reason for the action, stored in the history.", 500)
}

/// Returns the schema of text without control characters that does not begin with a space, as [`OperatorAction::new`]
/// accepts it.
fn line(description: &str, length_max: usize) -> Object {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(description))
        .min_length(Some(1))
        .max_length(Some(length_max))
        .pattern(Some("^[^\\s\\x00-\\x1f\\x7f-\\x9f][^\\x00-\\x1f\\x7f-\\x9f]*$"))
        .build()
}

/// Checks the name of the operator and the reason, which are stored in the record's history.
pub(crate) fn operator_action(who: &str, reason: &str) -> Result<OperatorAction, Problem> {
    OperatorAction::new(who, reason).map_err(|error| Problem::invalid(error.to_string()))
}

/// An action without further parameters.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Act)]
pub(crate) struct ActBody {
    /// Name of the operator, stored in the history.
    #[schema(schema_with = who_schema)]
    who: String,
    /// Reason for the action, stored in the history.
    #[schema(schema_with = reason_schema)]
    reason: String,
    /// The `version` that the operator saw. If the record has changed since, the action is refused.
    #[serde(default)]
    #[schema(pattern = "^[0-9]{1,9}:[0-9a-f]{16}$")]
    version: Option<String>,
}

impl ActBody {
    pub(crate) fn read(&self) -> Result<(OperatorAction, Option<Version>), Problem> {
        Ok((operator_action(&self.who, &self.reason)?, self.version.as_deref().map(version).transpose()?))
    }
}

/// Outcome with which an unknown record is settled.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Resolve)]
pub(crate) struct ResolveBody {
    /// Name of the operator, stored in the history.
    #[schema(schema_with = who_schema)]
    who: String,
    /// Reason for the action, stored in the history.
    #[schema(schema_with = reason_schema)]
    reason: String,
    /// The `version` that the operator saw. If the record has changed since, the action is refused.
    #[serde(default)]
    #[schema(pattern = "^[0-9]{1,9}:[0-9a-f]{16}$")]
    version: Option<String>,
    /// Outcome that the operator found.
    found: FoundBody,
}

impl ResolveBody {
    /// Returns the action, the expected version, and the observation. `None` for the observation means that the operator only
    /// acknowledges the record.
    pub(crate) fn read(self) -> Result<(OperatorAction, Option<Version>, Option<Observation>), Problem> {
        let act = operator_action(&self.who, &self.reason)?;
        let observation = match self.found {
            FoundBody::Completed(answer) => Some(Observation::Executed(answer.read()?)),
            FoundBody::NotExecuted => Some(Observation::NotExecuted),
            FoundBody::Seen => None,
        };
        Ok((act, self.version.as_deref().map(version).transpose()?, observation))
    }
}

/// Outcome that an operator found.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Found)]
pub(crate) enum FoundBody {
    /// The request was executed, and every retry gets this response. A decline is a response too.
    Completed(GivenAnswer),
    /// The request was not executed: the next retry runs.
    NotExecuted,
    /// The outcome of this dead letter is known, and an operator has handled it. The record stays as it is and is no longer a
    /// dead letter.
    Seen,
}

/// Action that is applied to each of many records.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Deed)]
pub(crate) enum DeedBody {
    /// Resolves each record as executed, with this response.
    Completed(GivenAnswer),
    /// Resolves each record as not executed.
    NotExecuted,
    /// Acknowledges each dead letter: it stays as it is and is no longer a dead letter.
    Seen,
    /// Forgets the response of each record.
    Forgotten,
}

impl DeedBody {
    pub(crate) fn read(self) -> Result<BulkAction, Problem> {
        Ok(match self {
            DeedBody::Completed(answer) => BulkAction::Resolve(Observation::Executed(answer.read()?)),
            DeedBody::NotExecuted => BulkAction::Resolve(Observation::NotExecuted),
            DeedBody::Seen => BulkAction::Acknowledge,
            DeedBody::Forgotten => BulkAction::Forget,
        })
    }
}

/// A response that an operator gives.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GivenAnswer {
    /// HTTP status. With 204, 205 and 304 there is no body.
    #[schema(minimum = 200, maximum = 599)]
    status: u16,
    /// Media type of the body; `application/json` by default.
    #[serde(default = "json")]
    #[schema(max_length = 200, pattern = "^[!-~]([ -~]*[!-~])?$")]
    content_type: String,
    /// Body of the response; empty by default.
    #[serde(default)]
    #[schema(max_length = 1000000)]
    body: String,
}

impl GivenAnswer {
    fn read(self) -> Result<AttemptResponse, Problem> {
        if !(200..=599).contains(&self.status) {
            return Err(Problem::invalid("`status` is from 200 to 599"));
        }
        let kind = self.content_type.as_bytes();
        let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_graphic);
        let inner = kind.iter().all(|byte| (b' '..=b'~').contains(byte));
        if kind.len() > 200 || !ends(kind.first()) || !ends(kind.last()) || !inner {
            return Err(Problem::invalid("`content_type` is a media type such as `application/json`"));
        }
        if self.body.chars().count() > ANSWER_CHARS_MAX {
            return Err(Problem::invalid(format!("`body` has at most {ANSWER_CHARS_MAX} characters")));
        }
        Ok(answer(self.status, &self.content_type, self.body))
    }
}

/// Refuses a body with a status that has none in HTTP.
pub(crate) fn check_body_allowed(observation: &Observation) -> Result<(), Problem> {
    let Observation::Executed(AttemptResponse {
        status: status @ (204 | 205 | 304), kept: Some(kept), ..
    }) = observation
    else {
        return Ok(());
    };
    match kept.body.is_empty() {
        true => Ok(()),
        false => Err(Problem::unacceptable(format!("a response with status {status} has no body"))),
    }
}

fn json() -> String {
    "application/json".to_owned()
}

fn in_path(name: &str, text: String) -> Result<String, Problem> {
    let is_valid =
        text.starts_with('/') && text.len() <= 2000 && text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_valid {
        Ok(text)
    } else {
        Err(Problem::invalid(format!("`{name}` begins with `/` and has visible ASCII only")))
    }
}

fn instant(name: &str, text: &str) -> Result<Timestamp, Problem> {
    let parsed: Result<jiff::Timestamp, _> = text.parse();
    match parsed {
        Ok(instant) => Ok(Timestamp::from_micros(instant.as_microsecond())),
        Err(_) => Err(Problem::invalid(format!("`{name}` is an instant such as `2026-11-16T09:30:00Z`"))),
    }
}

fn age(text: &str) -> Result<Duration, Problem> {
    let wrong = || Problem::invalid("`older_than` is a number and `s`, `m`, `h` or `d`, such as `15m`");
    let seconds = match text.as_bytes().last() {
        Some(b's') => 1,
        Some(b'm') => 60,
        Some(b'h') => 3600,
        Some(b'd') => 86_400,
        _ => return Err(wrong()),
    };
    let digits = &text[..text.len() - 1];
    if digits.is_empty() || digits.len() > 6 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    Ok(Duration::from_secs(number * seconds))
}

/// Parses a cursor, as in `next`.
pub(crate) fn cursor(text: &str) -> Result<Cursor, Problem> {
    let is_lower_case = !text.is_empty() && !text.bytes().any(|byte| byte.is_ascii_uppercase());
    let cursor = text.parse().ok().filter(|_| is_lower_case);
    cursor.ok_or_else(|| Problem::invalid("`after` is `next` of the previous page: hex digits"))
}

/// Parses a full id.
pub(crate) fn record_id(text: &str) -> Result<RecordId, Problem> {
    text.parse().map_err(|_| Problem::invalid("the id of a record is 32 hex digits in full"))
}

pub(crate) fn prefix(text: &str) -> Result<IdPrefix, Problem> {
    text.parse().map_err(|error| Problem::invalid(format!("the path: {error}")))
}

pub(crate) fn limit(limit: Option<u32>) -> Result<u32, Problem> {
    match limit.unwrap_or(LIMIT) {
        limit @ 1..=LIMIT_MAX => Ok(limit),
        _ => Err(Problem::invalid(format!("`limit` is from 1 to {LIMIT_MAX}"))),
    }
}

/// Parses a version as records show it: the number of writes, and the nonce of the last one.
pub(crate) fn version(text: &str) -> Result<Version, Problem> {
    let wrong = || Problem::invalid("`version` is as the record shows it, such as `3:00000000000000ff`");
    let (count, nonce) = text.split_once(':').ok_or_else(wrong)?;
    let digits = count.len() <= 10 && count.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || nonce.len() != 16 || !nonce.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(wrong());
    }
    let count = count.parse().map_err(|_| wrong())?;
    let nonce = u64::from_str_radix(nonce, 16).map_err(|_| wrong())?;
    Ok(Version { count, nonce: Nonce(nonce) })
}

/// Default page size: a screenful or two. The cursor gets the rest.
const LIMIT: u32 = 100;

/// Largest page that is still answered at once.
const LIMIT_MAX: u32 = 1000;

/// Most characters of a given response. A route stores a mebibyte by default, and an operator writes far less.
const ANSWER_CHARS_MAX: usize = 1_000_000;
