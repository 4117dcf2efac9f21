//! The processor's HTTP pages, and how each fault looks to the client.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use super::charge_book::{ChargeBook, ChargeEntry, ChargeOrder, ChargeStatus, RecordedCharge};
use super::faults::{ChargeFault, FaultDice};
use super::webhook::Webhooks;

type Answer = Response<Full<Bytes>>;

/// State of the processor. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Pages(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    book: Mutex<ChargeBook>,
    dice: Mutex<FaultDice>,
    webhooks: Option<Webhooks>,
    busy: AtomicU64,
}

impl Pages {
    pub(super) fn new(book: ChargeBook, dice: FaultDice, webhooks: Option<Webhooks>) -> Pages {
        let busy = AtomicU64::new(0);
        Pages(Arc::new(Inner { book: Mutex::new(book), dice: Mutex::new(dice), webhooks, busy }))
    }

    /// Serves for as long as it is polled. When it is dropped, every connection is closed.
    pub(super) async fn serve(self, listener: TcpListener) {
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut connections = JoinSet::new();
        loop {
            // The semaphore is never closed.
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            let accepted = listener.accept().await;
            while connections.try_join_next().is_some() {}
            let Ok((stream, _)) = accepted else {
                // Most likely out of file descriptors: the next connection to end makes room.
                connections.join_next().await;
                continue;
            };
            let pages = self.clone();
            connections.spawn(async move {
                pages.serve_connection(stream).await;
                drop(slot);
            });
        }
    }

    async fn serve_connection(self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let reset = Arc::new(Notify::new());
        let on_reset = reset.clone();
        let service = service_fn(move |request| {
            let (pages, reset) = (self.clone(), reset.clone());
            async move { Ok::<_, Infallible>(pages.answer(request, &reset).await) }
        });
        let mut connection =
            http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service);
        tokio::select! {
            _ = &mut connection => {}
            () = on_reset.notified() => {
                // Closing without linger sends a TCP reset.
                let _ = connection.into_parts().io.into_inner().set_zero_linger();
            }
        }
    }

    async fn answer(&self, request: Request<Incoming>, reset: &Notify) -> Answer {
        match (request.method(), request.uri().path()) {
            (&Method::POST, "/charges") => self.charge(request, reset).await,
            (&Method::GET, "/charges") => self.look_up(request.uri().query().unwrap_or_default()),
            (&Method::GET, "/health") => Response::new(Full::from("ok\n")),
            _ => refuse(StatusCode::NOT_FOUND, "there is only /charges and /health"),
        }
    }

    async fn charge(&self, request: Request<Incoming>, reset: &Notify) -> Answer {
        let (head, body) = request.into_parts();
        let Some(key) = idempotency_key(&head.headers) else {
            return refuse(StatusCode::BAD_REQUEST, "one `Idempotency-Key` of 1 to 255 visible characters");
        };
        let Ok(body) = Limited::new(body, BODY_BYTES_MAX).collect().await else {
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large or broke off");
        };
        let order: ChargeOrder = match serde_json::from_slice(&body.to_bytes()) {
            Ok(order) => order,
            Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        let traceparent = head.headers.get("traceparent").and_then(|line| line.to_str().ok());
        let order = ChargeOrder { traceparent: traceparent.map(str::to_owned), ..order };
        if order.amount_cents <= 0 {
            return refuse(StatusCode::BAD_REQUEST, "`amountCents` must be positive");
        }
        let fault = self.0.dice.lock().expect("no roll panics").roll(&key);
        match fault {
            Some(ChargeFault::Refuse) => return refuse(StatusCode::INTERNAL_SERVER_ERROR, "something broke"),
            Some(ChargeFault::Busy(after)) => return self.busy(after),
            _ => {}
        }
        let charge = match self.record(key, order).await {
            Ok(ChargeEntry::New(charge) | ChargeEntry::Repeated(charge)) => charge,
            Ok(ChargeEntry::KeyReused) => {
                return refuse(StatusCode::UNPROCESSABLE_ENTITY, "the key stands for another charge");
            }
            Err(error) => return refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        };
        match fault {
            // The client hangs up, and this future is dropped with its connection.
            Some(ChargeFault::Timeout) => pending().await,
            Some(ChargeFault::Reset) => {
                reset.notify_one();
                pending().await
            }
            // The same words as for `refuse`: a client cannot tell the two apart.
            Some(ChargeFault::Error) => return refuse(StatusCode::INTERNAL_SERVER_ERROR, "something broke"),
            Some(ChargeFault::Late(length)) => tokio::time::sleep(length).await,
            Some(ChargeFault::Refuse | ChargeFault::Busy(_)) | None => {}
        }
        let status = match charge.status {
            ChargeStatus::Succeeded => StatusCode::CREATED,
            ChargeStatus::Declined => StatusCode::PAYMENT_REQUIRED,
        };
        to_answer(status, &json!(charge))
    }

    /// Makes the charge even if the client leaves meanwhile, like a real processor.
    async fn record(&self, key: String, order: ChargeOrder) -> io::Result<ChargeEntry> {
        let this = self.clone();
        let recorded = tokio::task::spawn_blocking(move || {
            let entry = this.0.book.lock().expect("no charge panics").charge(&key, order)?;
            if let (ChargeEntry::New(charge), Some(webhooks)) = (&entry, &this.0.webhooks) {
                webhooks.send(charge.clone());
            }
            Ok(entry)
        });
        recorded.await.map_err(io::Error::other)?
    }

    /// Returns one charge by its key, or a page of the list: all of them unless there is a limit.
    fn look_up(&self, query: &str) -> Answer {
        let param = |name: &str| {
            query.split('&').filter_map(|pair| pair.split_once('=')).find(|(known, _)| *known == name)
        };
        let number = |name: &str| param(name).and_then(|(_, value)| value.parse::<usize>().ok());
        let book = self.0.book.lock().expect("no charge panics");
        match param("idempotency_key") {
            Some((_, key)) => match book.find(key) {
                Some(charge) => to_answer(StatusCode::OK, &json!(charge)),
                None => refuse(StatusCode::NOT_FOUND, "no charge under this key"),
            },
            None => {
                let (after, limit) = (number("after").unwrap_or(0), number("limit").unwrap_or(usize::MAX));
                let page: Vec<&RecordedCharge> = book.all().iter().skip(after).take(limit).collect();
                let requests = self.0.dice.lock().expect("no roll panics").requests();
                let list = json!({ "requests": requests, "count": book.all().len(), "charges": page });
                to_answer(StatusCode::OK, &list)
            }
        }
    }

    fn busy(&self, after: Duration) -> Answer {
        let turn = self.0.busy.fetch_add(1, Ordering::Relaxed);
        let status = match turn.is_multiple_of(2) {
            true => StatusCode::SERVICE_UNAVAILABLE,
            false => StatusCode::TOO_MANY_REQUESTS,
        };
        let mut answer = refuse(status, "try again later");
        // The header has whole seconds: round up.
        let seconds = u64::try_from(after.as_millis().div_ceil(1000).max(1)).unwrap_or(u64::MAX);
        answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        answer
    }
}

fn to_answer(status: StatusCode, body: &Value) -> Answer {
    let mut answer = Response::new(Full::from(body.to_string()));
    *answer.status_mut() = status;
    let json = header::HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, json);
    answer
}

fn refuse(status: StatusCode, why: &str) -> Answer {
    to_answer(status, &json!({ "error": why }))
}

/// Returns the key, bare or in quotes.
fn idempotency_key(headers: &HeaderMap) -> Option<String> {
    let mut lines = headers.get_all("idempotency-key").iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return None };
    let text = line.to_str().ok()?.trim();
    let bare = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let is_valid =
        (1..=KEY_CHARS_MAX).contains(&bare.len()) && bare.bytes().all(|byte| byte.is_ascii_graphic());
    is_valid.then(|| bare.to_owned())
}

/// The usual limit of keys.
const KEY_CHARS_MAX: usize = 255;

/// A charge has four fields.
const BODY_BYTES_MAX: usize = 16 << 10;

/// Enough for the clients of any test, and below the usual limit of 1024 open files.
const CONNECTIONS_MAX: usize = 900;
