//! A fast API that does nothing: it answers every request with 201 and the same body.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::{BenchError, UpstreamArgs, payment};

/// Serves until the process ends. Its first line of output is the address.
pub(crate) async fn run(args: &UpstreamArgs) -> Result<(), BenchError> {
    let listener = TcpListener::bind(args.listen).await?;
    println!("{}", listener.local_addr()?);
    let body = match args.bytes {
        Some(bytes) => {
            Bytes::from(format!("{{\"pad\":\"{}\"}}", "x".repeat(bytes.saturating_sub(PAD_FRAME))))
        }
        None => Bytes::from_static(payment::ANSWER.as_bytes()),
    };
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        // A benchmark ignores clients that hang up.
        let body = body.clone();
        let serve = service_fn(move |request| answer(request, body.clone()));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), serve));
    }
}

async fn answer(request: Request<Incoming>, body: Bytes) -> Result<Response<Full<Bytes>>, Infallible> {
    // Read to the end, so that the connection can be reused.
    let _ = request.into_body().collect().await;
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = StatusCode::CREATED;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(payment::JSON));
    Ok(response)
}

/// Bytes around the padding of a large body.
const PAD_FRAME: usize = 10;
