//! A transaction pooler in front of the server: each transaction gets whichever session is free. This pooler has a single
//! session for all clients and does not track prepared statements, as older poolers did not.

use ibid::store::checkup::Pooler;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

use super::checkup::checkup;
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_is_seen_and_so_is_that_it_mixes_statements() {
    let server = Postgres::start();
    let url = pooler_before(&server, Settings::Ignored).await;
    assert_eq!(checkup(&url).await.pooler, Some(Pooler::MixesStatements));
    let unprepared = format!("{url}?prepare=false");
    assert_eq!(checkup(&unprepared).await.pooler, Some(Pooler::Seen));
    assert_eq!(checkup(&server.url()).await.pooler, Some(Pooler::NotSeen));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_keeps_its_word_behind_a_pooler() {
    write_behind(Settings::Ignored, "?prepare=false").await;
}

/// The store sees that prepared statements are mixed up, and uses none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_prepares_nothing_behind_a_pooler_that_mixes() {
    write_behind(Settings::Ignored, "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_works_behind_a_pooler_that_refuses_settings() {
    write_behind(Settings::Refused, "?prepare=false").await;
}

/// Treatment of startup settings by a pooler.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Settings {
    Ignored,
    Refused,
}

async fn write_behind(settings: Settings, parameters: &str) {
    let server = Postgres::start();
    let url = format!("{}{parameters}", pooler_before(&server, settings).await);
    let store = Arc::new(PostgresStore::open(&url, options()).await.expect("the store opens"));
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = store.clone();
        writers.spawn(async move {
            for _ in 0..10 {
                let change = Arc::new(begin());
                assert!(matches!(commit_patiently(&store, &change).await, Commit::Done(_)));
                let stored = load(&*store, change.id).await.expect("what was begun is there");
                let finished = Arc::new(finish(&stored.record));
                assert!(matches!(commit_patiently(&store, &finished).await, Commit::Done(_)));
            }
        });
    }
    while let Some(writer) = writers.join_next().await {
        writer.expect("a writer ends");
    }
    assert_eq!(server.sql("postgres", "select count(*) from ibid_record where purge_at is not null"), "80");
}

/// Starts a pooler in front of the server and returns its URL. It ends with the test's runtime.
async fn pooler_before(server: &Postgres, settings: Settings) -> String {
    let (port, session) = (server.port(), session(server.port()).await);
    let session = Arc::new(Mutex::new(session));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = server
        .url()
        .replace(&format!(":{port}/"), &format!(":{}/", listener.local_addr().expect("a port").port()));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            // Messages are passed on one by one, and each would wait until the last is acknowledged.
            client.set_nodelay(true).expect("a TCP socket");
            // A client that disconnects ends its task with an error, which does not matter.
            tokio::spawn(serve(client, session.clone(), settings));
        }
    });
    url
}

/// Opens the one session with the server, ready for a query.
async fn session(port: u16) -> TcpStream {
    let mut server = TcpStream::connect(("127.0.0.1", port)).await.expect("the server listens");
    server.set_nodelay(true).expect("a TCP socket");
    let hello = b"\0\x03\0\0user\0postgres\0database\0postgres\0\0";
    server.write_all(&frame_message(None, hello)).await.expect("the server hears");
    while message(&mut server).await.expect("the server answers").0 != READY {}
    server
}

/// Admits a client, and gives it the session for the duration of each of its transactions.
async fn serve(
    mut client: TcpStream,
    session: Arc<Mutex<TcpStream>>,
    settings: Settings,
) -> std::io::Result<()> {
    let mut hello = vec![0; client.read_u32().await? as usize - 4];
    client.read_exact(&mut hello).await?;
    if settings == Settings::Refused && hello.windows(8).any(|part| part == b"options\0") {
        let refusal = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: options\0\0";
        return client.write_all(&frame_message(Some(b'E'), refusal)).await;
    }
    client.write_all(&frame_message(Some(b'R'), &0u32.to_be_bytes())).await?;
    client.write_all(&frame_message(Some(READY), b"I")).await?;
    loop {
        let mut first = Some(message(&mut client).await?);
        let mut server = session.lock().await;
        loop {
            let (kind, text) = match first.take() {
                Some(first) => first,
                None => message(&mut client).await?,
            };
            if kind == TERMINATE {
                return Ok(());
            }
            server.write_all(&frame_message(Some(kind), &text)).await?;
            // Only after these does the server report that it is ready.
            if !matches!(kind, QUERY | SYNC) {
                continue;
            }
            let state = loop {
                let (kind, text) = message(&mut server).await?;
                client.write_all(&frame_message(Some(kind), &text)).await?;
                if kind == READY {
                    break text;
                }
            };
            if state == b"I" {
                break;
            }
        }
    }
}

async fn message(stream: &mut TcpStream) -> std::io::Result<(u8, Vec<u8>)> {
    let kind = stream.read_u8().await?;
    let mut text = vec![0; stream.read_u32().await? as usize - 4];
    stream.read_exact(&mut text).await?;
    Ok((kind, text))
}

fn frame_message(kind: Option<u8>, text: &[u8]) -> Vec<u8> {
    let length = u32::try_from(text.len() + 4).expect("a short message").to_be_bytes();
    kind.into_iter().chain(length).chain(text.iter().copied()).collect()
}

const READY: u8 = b'Z';
const QUERY: u8 = b'Q';
const SYNC: u8 = b'S';
const TERMINATE: u8 = b'X';
