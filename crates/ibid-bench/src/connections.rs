//! Many clients that each send one request and stay connected, to measure the cost of idle connections.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{BenchError, ConnectionsArgs, payment, rows};

pub(crate) async fn run(args: &ConnectionsArgs) -> Result<(), BenchError> {
    let run = rows::now()?;
    let mut streams = Vec::new();
    for number in 0..args.count {
        let mut stream = TcpStream::connect(args.to).await?;
        let status = pay(&mut stream, &format!("{run:x}-{number}")).await?;
        if status != "201" {
            return Err(format!("connection {number} was answered {status}").into());
        }
        streams.push(stream);
    }
    println!("{}", json!({ "what": "connections", "held": streams.len() }));
    if args.hold {
        std::future::pending::<()>().await;
    }
    Ok(())
}

/// Sends one payment and reads its response to the end. Returns the status.
pub(crate) async fn pay(stream: &mut TcpStream, key: &str) -> Result<String, BenchError> {
    let request = format!(
        "{} {} HTTP/1.1\r\nhost: bench\r\nidempotency-key: \"{key}\"\r\ncontent-type: {}\r\ncontent-length: {}\r\n\r\n{}",
        payment::METHOD,
        payment::PATH,
        payment::JSON,
        payment::BODY.len(),
        payment::BODY
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    // The upstream's response and a refusal both end like this, and neither contains it earlier.
    while !answer.ends_with(b"}") {
        if answer.len() > ANSWER_BYTES_MAX || stream.read_buf(&mut answer).await? == 0 {
            return Err("an answer has no end".into());
        }
    }
    let head = String::from_utf8_lossy(&answer);
    Ok(head.split(' ').nth(1).unwrap_or_default().to_owned())
}

/// Largest response that is read: that of an upstream with `--bytes`.
const ANSWER_BYTES_MAX: usize = 16 << 20;
