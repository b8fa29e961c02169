//! A proxy before a table service, which knows requests: for each it decides whether the server
//! sees it, and what the client sees.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// What happens to a request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// The server answers it.
    Forward,
    /// The server answers it, once there is a permit.
    ForwardAfter(Arc<Semaphore>),
    /// The server answers it, but the connection ends before the answer arrives.
    LoseAnswer,
    /// The server answers it, but the client is answered with this.
    ForwardAndAnswer(String),
    /// The connection ends before the server sees it.
    LoseRequest,
    /// The client is answered with this; the server does not see it.
    Answer(String),
    /// Nothing happens.
    Silence,
}

/// An answer of Azure's to a request that failed.
pub(crate) fn failure(status: &str, code: &str, headers: &str) -> String {
    let body = format!(r#"{{"odata.error":{{"code":"{code}","message":{{"value":"x"}}}}}}"#);
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

/// Ends with its value.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    seen: Arc<Mutex<Vec<(Instant, String)>>>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    pub(crate) async fn start(
        server: u16,
        decide: impl FnMut(&str) -> Act + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen: Arc<Mutex<Vec<(Instant, String)>>> = Arc::default();
        let decide = Arc::new(Mutex::new(decide));
        let shared = Arc::clone(&seen);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (seen, decide) = (Arc::clone(&shared), Arc::clone(&decide));
                connections.spawn(async move {
                    let _ended = serve(client, server, |request: &str| {
                        let request = request.to_owned();
                        let act = (decide.lock().unwrap())(&request);
                        seen.lock().unwrap().push((Instant::now(), request));
                        act
                    })
                    .await;
                });
            }
        });
        Proxy { port, seen, _tasks: tasks }
    }

    /// The requests so far, and when they came.
    pub(crate) fn seen(&self) -> Vec<(Instant, String)> {
        self.seen.lock().unwrap().clone()
    }

    /// How many requests so far change rows of tests.
    pub(crate) fn writes(&self) -> usize {
        self.seen().iter().filter(|(_, request)| is_write(request)).count()
    }
}

/// Whether a request changes rows, other than those of the table itself.
pub(crate) fn is_write(request: &str) -> bool {
    let line = request.lines().next().unwrap_or_default();
    let is_own = line.contains("/Tables ")
        || line.contains("(PartitionKey='quell'")
        || request.contains(r#""PartitionKey":"quell""#);
    !line.starts_with("GET ") && !is_own
}

/// One request; the connection ends after it.
async fn serve(
    mut client: TcpStream,
    server: u16,
    decide: impl FnOnce(&str) -> Act,
) -> std::io::Result<()> {
    let request = read_request(&mut client).await?;
    let text = String::from_utf8_lossy(&request).into_owned();
    let answer = match decide(&text) {
        Act::Forward => forward(server, &request).await?,
        Act::ForwardAfter(permits) => {
            let _permit = permits.acquire().await.unwrap();
            forward(server, &request).await?
        }
        Act::LoseAnswer => {
            forward(server, &request).await?;
            return Ok(());
        }
        Act::ForwardAndAnswer(answer) => {
            forward(server, &request).await?;
            answer.into_bytes()
        }
        Act::LoseRequest => return Ok(()),
        Act::Answer(answer) => answer.into_bytes(),
        Act::Silence => std::future::pending().await,
    };
    client.write_all(&answer).await?;
    client.shutdown().await
}

async fn read_request(client: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut request = Vec::new();
    loop {
        if client.read_buf(&mut request).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let Some(end) = request.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
        if request.len() >= end + 4 + length {
            return Ok(request);
        }
    }
}

async fn forward(server: u16, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(("127.0.0.1", server)).await?;
    let line = request.windows(2).position(|two| two == b"\r\n").unwrap() + 2;
    stream.write_all(&request[..line]).await?;
    stream.write_all(b"connection: close\r\n").await?;
    stream.write_all(&request[line..]).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer)
}
