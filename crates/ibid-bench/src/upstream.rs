//! A fast API that does nothing: it answers every request with 201 and the same payment.

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

use crate::{Failed, UpstreamArgs, payment};

/// Serves until the process ends. Its first line of output is the address.
pub(crate) async fn run(args: &UpstreamArgs) -> Result<(), Failed> {
    let listener = TcpListener::bind(args.listen).await?;
    println!("{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        // A benchmark ignores clients that hang up.
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)));
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    // Read to the end, so that the connection can be reused.
    let _ = request.into_body().collect().await;
    let mut response = Response::new(Full::new(Bytes::from_static(payment::ANSWER.as_bytes())));
    *response.status_mut() = StatusCode::CREATED;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(payment::JSON));
    Ok(response)
}
