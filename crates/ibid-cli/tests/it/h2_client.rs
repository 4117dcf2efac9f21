//! An HTTP/2 client with prior knowledge: one connection with many streams.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use http::{Request, StatusCode};
use ibid_testkit::client::{Fields, TestResponse};
use tokio::net::TcpStream;

/// One HTTP/2 connection with prior knowledge.
pub(crate) struct H2Client {
    sender: SendRequest<Bytes>,
    addr: SocketAddr,
}

impl H2Client {
    pub(crate) async fn connect(addr: SocketAddr) -> H2Client {
        H2Client::connect_with_window(addr, WINDOW).await
    }

    /// Opens a connection that gives each stream this window and never enlarges it.
    pub(crate) async fn connect_with_window(addr: SocketAddr, window: u32) -> H2Client {
        let stream = TcpStream::connect(addr).await.expect("the gateway accepts");
        stream.set_nodelay(true).expect("nodelay on a fresh socket");
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(window);
        let (sender, connection) = builder.handshake(stream).await.expect("the gateway speaks HTTP/2");
        tokio::spawn(connection);
        H2Client { sender, addr }
    }

    /// Opens a stream with a request whose body does not end.
    pub(crate) async fn open(
        &self,
        method: &str,
        path: &str,
        lines: &[(&str, &str)],
    ) -> (ResponseFuture, SendStream<Bytes>) {
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.addr));
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("a request as the test wrote it");
        let mut sender = self.sender.clone().ready().await.expect("the connection lives");
        sender.send_request(request, false).expect("the request is sent")
    }

    /// Sends a POST on a new stream and returns a future of the response.
    pub(crate) async fn post(
        &self,
        path: &str,
        lines: &[(&str, &str)],
        body: &str,
    ) -> impl Future<Output = TestResponse> + Send + use<> {
        self.send("POST", path, lines, body).await
    }

    /// Sends a request with any method on a new stream and returns a future of the response.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        lines: &[(&str, &str)],
        body: &str,
    ) -> impl Future<Output = TestResponse> + Send + use<> {
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.addr));
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("a request as the test wrote it");
        let mut sender = self.sender.clone().ready().await.expect("the connection lives");
        let (answer, mut stream) = sender.send_request(request, false).expect("the request is sent");
        stream.send_data(Bytes::copy_from_slice(body.as_bytes()), true).expect("the body is sent");
        async move {
            let (head, mut stream) = answer.await.expect("an answer").into_parts();
            let mut body = Vec::new();
            while let Some(data) = stream.data().await {
                let data = data.expect("the body comes whole");
                body.extend_from_slice(&data);
                let _ = stream.flow_control().release_capacity(data.len());
            }
            let trailers = stream.trailers().await.expect("the stream ends well").unwrap_or_default();
            TestResponse {
                status: StatusCode::as_u16(&head.status),
                headers: fields(&head.headers),
                body,
                trailers: fields(&trailers),
                cut: false,
                interim: Vec::new(),
            }
        }
    }
}

fn fields(headers: &http::HeaderMap) -> Fields {
    headers.iter().map(|(n, v)| (n.as_str().as_bytes().to_vec(), v.as_bytes().to_vec())).collect()
}

/// Default window of a stream in HTTP/2.
const WINDOW: u32 = 65_535;
