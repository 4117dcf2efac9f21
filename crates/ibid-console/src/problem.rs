//! Problem responses (RFC 9457), and the mapping of operator errors to them.

use std::collections::BTreeMap;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use ibid::operator::OperatorError;
use ibid_core::change::{HistoryLine, StoredRecord};
use ibid_core::store::StoreError;
use serde::Serialize;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder, response};
use utoipa::{IntoResponses, ToSchema};

use crate::views::{EffectView, HistoryView, RecordView};

/// A refused request, with the reason.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemView {
    /// `urn:ibid:problem:` and a code that stays the same.
    #[serde(rename = "type")]
    kind: String,
    /// Short summary, the same for every problem of this type.
    title: &'static str,
    /// HTTP status of the response.
    status: u16,
    /// Details of the problem with this request.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// The record as it is now, if it prevents the action.
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<Box<RecordView>>,
    /// History line of what last settled the record.
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<HistoryView>,
    /// The matching records, if the id prefix is ambiguous.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    records: Vec<RecordView>,
    /// The effect as it is now, if it prevents the action.
    #[serde(skip_serializing_if = "Option::is_none")]
    effect: Option<Box<EffectView>>,
}

/// An error response with a [`ProblemView`] as its body.
#[derive(Debug)]
pub(crate) struct Problem(Box<ProblemView>);

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &str, title: &'static str) -> Problem {
        Problem(Box::new(ProblemView {
            kind: format!("urn:ibid:problem:{code}"),
            title,
            status: status.as_u16(),
            detail: None,
            record: None,
            last: None,
            records: Vec::new(),
            effect: None,
        }))
    }

    pub(crate) fn detail(mut self, detail: impl Into<String>) -> Problem {
        self.0.detail = Some(detail.into());
        self
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "invalid-input", "The input is not valid").detail(detail)
    }

    pub(crate) fn unacceptable(detail: impl Into<String>) -> Problem {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Problem::new(status, "answer-impossible", "The response cannot be stored").detail(detail)
    }

    pub(crate) fn unauthorized() -> Problem {
        Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "Token missing or wrong")
            .detail("send `Authorization: Bearer` and the value of `IBID_ADMIN_TOKEN`")
    }

    pub(crate) fn too_slow() -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-slow", "The request took too long")
            .detail("the action may have been written nevertheless: check before you retry")
    }

    /// Adds the record as it is now, and the history line of what last settled it.
    fn record(mut self, stored: &StoredRecord, last: Option<Box<HistoryLine>>) -> Problem {
        self.0.record = Some(Box::new(RecordView::of(stored)));
        self.0.last = last.map(|last| HistoryView::of(&last));
        self
    }

    /// Adds the effect as it is now.
    pub(crate) fn effect(mut self, effect: EffectView) -> Problem {
        self.0.effect = Some(Box::new(effect));
        self
    }

    fn store(error: &StoreError) -> Problem {
        tracing::warn!(error = error as &dyn std::error::Error, "store failed during an operator request");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", "The store failed")
            .detail("the action may have been written nevertheless: check before you retry")
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self.0)).into_response();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        Problem::store(&error)
    }
}

impl From<OperatorError> for Problem {
    fn from(error: OperatorError) -> Problem {
        let detail = error.to_string();
        let new = |status, code, title| Problem::new(status, code, title).detail(&detail);
        let conflict = |code, title| new(StatusCode::CONFLICT, code, title);
        match error {
            OperatorError::NoSuchRecord => new(StatusCode::NOT_FOUND, "no-such-record", "No such record")
                .detail("no record has an id with this prefix; expired records are removed"),
            OperatorError::Ambiguous(page) => {
                let mut problem = conflict("ambiguous-id", "Several records have this prefix")
                    .detail("give more digits of the id");
                problem.0.records = page.records.iter().map(RecordView::of).collect();
                problem
            }
            OperatorError::NotNow { stored, last } => {
                conflict("not-now", "The record does not allow it now").record(&stored, last)
            }
            OperatorError::Changed { stored, last } => {
                conflict("changed", "The record has changed").record(&stored, last)
            }
            OperatorError::TooLarge { .. } => Problem::unacceptable(detail),
            OperatorError::NoOutbox => conflict("no-outbox", "The store has no outbox"),
            OperatorError::NoSuchEffect(_) => new(StatusCode::NOT_FOUND, "no-such-effect", "No such effect"),
            OperatorError::Store(error) => Problem::store(&error),
            _ => conflict("not-now", "The effect does not allow it now"),
        }
    }
}

/// Every error response, for the OpenAPI document.
pub(crate) struct Refusals;

impl IntoResponses for Refusals {
    fn responses() -> BTreeMap<String, RefOr<response::Response>> {
        let one = |(status, description): (&str, &str)| {
            let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
            let response = ResponseBuilder::new()
                .description(description)
                .content("application/problem+json", content)
                .build();
            (status.to_owned(), RefOr::T(response))
        };
        REFUSALS.into_iter().map(one).collect()
    }
}

const REFUSALS: [(&str, &str); 8] = [
    ("400", "The request cannot be read"),
    ("401", "The token is missing or wrong"),
    ("404", "No such record or effect"),
    (
        "409",
        "The stored state does not allow the action, or another process has changed it: the response says how",
    ),
    ("413", "The body is too large"),
    ("415", "The body is not JSON"),
    ("422", "The given response cannot be stored"),
    ("503", "The store failed, or the request took too long"),
];
