//! The SDK's client: one try per request, a `Date` to compare with, and throttling as bounded backoff.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_dynamodb::config::interceptors::{
    BeforeDeserializationInterceptorContextMut, BeforeTransmitInterceptorContextRef,
};
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::{BoxError, DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use aws_smithy_types::config_bag::{Storable, StoreReplace};
use futures_util::{StreamExt, TryStreamExt, stream};
use ibid_core::store::{BoxFuture, StoreError};

use crate::NAME;
use crate::clock::{ClockState, ClockWatch};

/// Loads region and credentials as every AWS program does: from the environment, profiles, the container or the instance.
pub(crate) async fn load_config(region: Option<String>, endpoint: Option<String>) -> SdkConfig {
    let provider = Provider::Rustls(CryptoMode::AwsLc);
    let http = aws_smithy_http_client::Builder::new().tls_provider(provider).build_https();
    let mut loader = aws_config::defaults(BehaviorVersion::latest()).http_client(http);
    if let Some(region) = region {
        loader = loader.region(Region::new(region));
    }
    if let Some(endpoint) = endpoint {
        loader = loader.endpoint_url(endpoint);
    }
    loader.load().await
}

/// Makes the client of a store. The SDK never repeats a request by itself: it would report a write that succeeded as a
/// failed condition.
pub(crate) fn connect(config: &SdkConfig, watch: Arc<ClockWatch>) -> aws_sdk_dynamodb::Client {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .operation_attempt_timeout(REPLY_TIMEOUT)
        .build();
    let config = aws_sdk_dynamodb::config::Builder::from(config)
        .retry_config(RetryConfig::disabled())
        // The service refuses a signature whose time is five minutes off. With the `Date` of that reply the SDK signs the next one
        // right, so that a node whose clock went off can still store the results of what it runs.
        .disable_clock_skew_correction(false)
        .timeout_config(timeouts)
        .interceptor(DateReader(watch))
        .build();
    aws_sdk_dynamodb::Client::from_conf(config)
}

/// Shows the `Date` of every reply to the clock watch.
#[derive(Debug)]
struct DateReader(Arc<ClockWatch>);

#[derive(Debug)]
struct SentAt(Instant);

impl Storable for SentAt {
    type Storer = StoreReplace<SentAt>;
}

impl Intercept for DateReader {
    fn name(&self) -> &'static str {
        "ibid date reader"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        state: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        state.interceptor_state().store_put(SentAt(Instant::now()));
        Ok(())
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        state: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let date =
            context.response().headers().get("date").and_then(|date| httpdate::parse_http_date(date).ok());
        if let (Some(date), Some(SentAt(sent_at))) = (date, state.load::<SentAt>()) {
            self.0.observe(sent_at.elapsed(), date);
            if matches!(self.0.state(), ClockState::Off(_)) {
                context.response_mut().add_extension(ClockOff);
            }
        }
        Ok(())
    }
}

/// Marks a reply by which this node's clock is too far off.
#[derive(Clone, Debug)]
struct ClockOff;

/// Returns whether the service refused the signature of a request because of this node's clock. The next one is signed with the
/// service's time.
pub(crate) fn is_signed_off_time<E: ProvideErrorMetadata>(error: &SdkError<E>) -> bool {
    let SdkError::ServiceError(service) = error else { return false };
    service.err().code().is_some_and(|code| SIGNATURE_REFUSED.contains(&code))
        && service.raw().extension::<ClockOff>().is_some()
}

/// Returns whether a request was certainly not sent: there was no connection, or nothing to sign it with.
fn is_unsent(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| {
        let client = cause.downcast_ref::<hyper_util::client::legacy::Error>();
        client.is_some_and(hyper_util::client::legacy::Error::is_connect) || cause.is::<CredentialsError>()
    })
}

/// A request that did not succeed.
pub(crate) enum Failure<E> {
    /// It was never executed, or what happened to it needs no closer look.
    Store(StoreError),
    /// The service's own error.
    Sdk(Box<SdkError<E>>),
}

impl<E: std::error::Error + ProvideErrorMetadata + Send + Sync + 'static> Failure<E> {
    /// Returns whether the condition of the request was not met.
    pub(crate) fn is_refused(&self) -> bool {
        let Failure::Sdk(error) = self else { return false };
        error.as_service_error().and_then(E::code) == Some("ConditionalCheckFailedException")
    }

    /// Turns it into the error of the verb `op`.
    pub(crate) fn into_store_error(self, op: &'static str) -> StoreError {
        let error = match self {
            Failure::Store(error) => return error,
            Failure::Sdk(error) => *error,
        };
        let cause = DisplayErrorContext(&error).to_string();
        let SdkError::ServiceError(service) = &error else {
            return match error {
                error if is_unsent(&error) => StoreError::transient(NAME, op, cause).unwritten(),
                SdkError::ConstructionFailure(_) => StoreError::lasting(NAME, op, cause).unwritten(),
                // It may have been sent, and the reply was lost.
                _ => StoreError::transient(NAME, op, cause),
            };
        };
        let is_server_fault = service.raw().status().is_server_error();
        let is_stale_login = service.err().code().is_some_and(|code| STALE_LOGIN.contains(&code));
        match is_server_fault {
            true => StoreError::transient(NAME, op, cause),
            false if is_stale_login || is_signed_off_time(&error) => {
                StoreError::transient(NAME, op, cause).unwritten()
            }
            false => StoreError::lasting(NAME, op, cause).unwritten(),
        }
    }
}

/// Sends a request, and again after a pause while the service throttles it: a throttled request was not executed.
///
/// `request` gives the same request at every call.
///
/// # Errors
///
/// After the last try the error is transient and unwritten. A request that is not sent by `send_by` is dropped.
pub(crate) async fn send<T, E, Sent>(
    op: &'static str,
    send_by: Option<Instant>,
    is_throttled: fn(&SdkError<E>) -> bool,
    mut request: impl FnMut() -> Sent,
) -> Result<T, Failure<E>>
where
    Sent: Future<Output = Result<T, SdkError<E>>>,
    E: std::error::Error + Send + Sync + 'static,
{
    let mut pause = PAUSE_MIN;
    for tries in 1.. {
        if send_by.is_some_and(|send_by| Instant::now() >= send_by) {
            return Err(Failure::Store(StoreError::transient(NAME, op, "not sent in time").unwritten()));
        }
        let error = match request().await {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        if !is_throttled(&error) {
            return Err(Failure::Sdk(Box::new(error)));
        }
        if tries == TRIES_MAX {
            let cause = DisplayErrorContext(&error).to_string();
            return Err(Failure::Store(StoreError::transient(NAME, op, cause).unwritten()));
        }
        tokio::time::sleep(jitter(pause)).await;
        pause = PAUSE_MAX.min(pause * 2);
    }
    unreachable!("the last try returns")
}

/// Sends a request that is no transaction.
pub(crate) async fn send_one<T, E, Sent>(
    op: &'static str,
    send_by: Option<Instant>,
    request: impl FnMut() -> Sent,
) -> Result<T, Failure<E>>
where
    Sent: Future<Output = Result<T, SdkError<E>>>,
    E: std::error::Error + ProvideErrorMetadata + Send + Sync + 'static,
{
    send(op, send_by, |error| error.as_service_error().and_then(E::code).is_some_and(is_throttling), request)
        .await
}

/// Sends a request that is no transaction and has a condition. Returns `None` if the condition was not met.
pub(crate) async fn send_if<T, E, Sent>(
    op: &'static str,
    request: impl FnMut() -> Sent,
) -> Result<Option<T>, StoreError>
where
    Sent: Future<Output = Result<T, SdkError<E>>>,
    E: std::error::Error + ProvideErrorMetadata + Send + Sync + 'static,
{
    match send_one(op, None, request).await {
        Ok(reply) => Ok(Some(reply)),
        Err(failure) if failure.is_refused() => Ok(None),
        Err(failure) => Err(failure.into_store_error(op)),
    }
}

/// Returns whether a transaction was cancelled for no other reason than throttling or a concurrent transaction.
pub(crate) fn is_transaction_throttled(error: &SdkError<TransactWriteItemsError>) -> bool {
    match error.as_service_error() {
        Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
            let mut codes = cancelled.cancellation_reasons().iter().filter_map(|reason| reason.code());
            let mut reasons = codes.by_ref().filter(|code| *code != "None").peekable();
            reasons.peek().is_some() && reasons.all(is_throttling)
        }
        Some(error) => error.code().is_some_and(is_throttling),
        None => false,
    }
}

fn is_throttling(code: &str) -> bool {
    THROTTLING.contains(&code)
}

/// Runs these requests, `at_once` of them at a time, and returns the results in their order. The first failure ends it.
pub(crate) async fn run_all<T>(
    requests: Vec<BoxFuture<'_, Result<T, StoreError>>>,
    at_once: usize,
) -> Result<Vec<T>, StoreError> {
    stream::iter(requests).buffered(at_once).try_collect().await
}

/// Returns a pause between half of `pause` and all of it, so that many nodes do not come back at once.
pub(crate) fn jitter(pause: Duration) -> Duration {
    // Without random bytes the pause is only less spread.
    pause / 2 + (pause / 2).mul_f64(f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX))
}

impl<E: fmt::Debug> fmt::Debug for Failure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Store(error) => error.fmt(f),
            Failure::Sdk(error) => error.fmt(f),
        }
    }
}

/// Codes of requests that the service refused for now, without executing them. The last three are reasons of a cancelled
/// transaction.
const THROTTLING: [&str; 8] = [
    "ProvisionedThroughputExceededException",
    "ThrottlingException",
    "RequestLimitExceeded",
    "TransactionConflictException",
    "TransactionInProgressException",
    "TransactionConflict",
    "ThrottlingError",
    "ProvisionedThroughputExceeded",
];

/// Codes of requests whose credentials have run out; the next request fetches others.
const STALE_LOGIN: [&str; 2] = ["ExpiredTokenException", "UnrecognizedClientException"];

/// Codes of requests whose signature the service refused. With a clock that is right, the secret key is wrong.
const SIGNATURE_REFUSED: [&str; 2] = ["InvalidSignatureException", "RequestTimeTooSkewed"];

/// Tries of one throttled request. With pauses from 25 to 400 ms they take about a second, less than a begin may take; a
/// table that throttles for longer needs more units, and its clients get 503.
const TRIES_MAX: u32 = 6;

/// First pause after a throttled request: about the time of some requests.
const PAUSE_MIN: Duration = Duration::from_millis(25);

/// Longest pause after a throttled request.
pub(crate) const PAUSE_MAX: Duration = Duration::from_millis(400);

/// Longest time to connect, with TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Longest time to wait for a reply. DynamoDB answers within tens of milliseconds; the engine's own time-outs are shorter
/// where a client waits.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
