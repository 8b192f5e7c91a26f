//! A fake inference server whose responses each test states byte for byte.

use serde_json::Value;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Response of the fake server to one request, as a test states it.
pub(crate) struct Reply {
    /// Byte pieces of the response, written one after the other, each flushed on its own.
    pub(crate) pieces: Vec<Vec<u8>>,
    pub(crate) then: Then,
}

/// What the fake server does with the connection after the last piece of a response.
pub(crate) enum Then {
    /// Closes the connection in the regular way.
    Close,
    /// Resets the connection (TCP RST).
    Reset,
    /// Keeps the connection open and sends nothing until the client closes it.
    Hang,
}

type Answering = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// Bodies of the completion requests that a fake server has received, in order of arrival.
pub(crate) type Seen = Arc<Mutex<Vec<Value>>>;

/// A running fake server, which stops when the test's async runtime ends.
pub(crate) struct Fake {
    pub(crate) url: String,
    pub(crate) seen: Seen,
}

/// Starts a fake server. `answer` makes the response to each completion request; `tokenizes` says whether the server
/// offers `/tokenize`.
pub(crate) async fn start<F, A>(tokenizes: bool, answer: F) -> Fake
where
    F: Fn(usize, Value) -> A + Send + Sync + 'static,
    A: Future<Output = Reply> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Seen::default();
    let server = Arc::new(Server {
        tokenizes,
        seen: seen.clone(),
        answer: Box::new(move |number, body| Box::pin(answer(number, body))),
    });
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(server.clone().serve(stream));
        }
    });
    Fake { url, seen }
}

struct Server {
    tokenizes: bool,
    seen: Seen,
    answer: Box<dyn Fn(usize, Value) -> Answering + Send + Sync>,
}

impl Server {
    async fn serve(self: Arc<Self>, mut stream: TcpStream) {
        stream.set_nodelay(true).unwrap();
        let (path, body) = read_request(&mut stream).await;
        let reply = match path.as_str() {
            "/v1/models" => whole(200, "Server: fake/1\r\n", r#"{"data":[{"id":"fake-model"}]}"#),
            "/tokenize" if self.tokenizes => {
                let ids: Vec<u32> = (1000..1100).collect();
                whole(200, "", &format!("{{\"tokens\":{ids:?}}}"))
            }
            "/v1/completions" => {
                let body: Value = serde_json::from_slice(&body).unwrap();
                let number = {
                    let mut seen = self.seen.lock().unwrap();
                    seen.push(body.clone());
                    seen.len() - 1
                };
                (self.answer)(number, body).await
            }
            _ => whole(404, "", "{}"),
        };
        for piece in &reply.pieces {
            if stream.write_all(piece).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
        match reply.then {
            Then::Close => {}
            Then::Reset => stream.set_zero_linger().unwrap(),
            Then::Hang => {
                let _ = stream.read_to_end(&mut Vec::new()).await;
            }
        }
    }
}

async fn read_request(stream: &mut TcpStream) -> (String, Vec<u8>) {
    let mut bytes = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece).await.unwrap();
        bytes.extend_from_slice(&piece[..count]);
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_ascii_lowercase();
        let length: usize = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"))
            .map_or(0, |value| value.trim().parse().unwrap());
        while bytes.len() < end + 4 + length {
            let count = stream.read(&mut piece).await.unwrap();
            bytes.extend_from_slice(&piece[..count]);
        }
        let path = head.split(' ').nth(1).unwrap().to_owned();
        return (path, bytes[end + 4..].to_vec());
    }
}

/// Returns a complete HTTP response with a `Content-Length`.
pub(crate) fn whole(status: u16, headers: &str, body: &str) -> Reply {
    let head = format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    Reply { pieces: vec![head.into_bytes(), body.into()], then: Then::Close }
}

/// Returns the server-sent events of a completion: one text event for each of `texts`, then finish reason, usage and
/// `[DONE]`.
pub(crate) fn completion(texts: &[&str], usage: (u32, u32)) -> String {
    let mut stream = String::from(": waiting\n\n");
    for text in texts {
        stream += &format!(
            "data: {{\"choices\":[{{\"text\":{text:?},\"finish_reason\":null}}],\"x\":1}}\n\n"
        );
    }
    stream += "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n";
    stream += &format!(
        "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{},\"completion_tokens\":{}}}}}\n\n",
        usage.0, usage.1
    );
    stream + "data: [DONE]\n\n"
}

/// Returns an event-stream response in HTTP chunked encoding: HTTP chunks of `chunk` bytes, written to the socket
/// `piece` bytes at a time.
pub(crate) fn streamed(events: &str, chunk: usize, piece: usize) -> Reply {
    let mut bytes = stream_head();
    for part in events.as_bytes().chunks(chunk) {
        bytes.extend(format!("{:x}\r\n", part.len()).bytes());
        bytes.extend_from_slice(part);
        bytes.extend(b"\r\n");
    }
    bytes.extend(b"0\r\n\r\n");
    Reply { pieces: bytes.chunks(piece).map(<[u8]>::to_vec).collect(), then: Then::Close }
}

/// Returns an event-stream response that breaks off: the response head and one HTTP chunk with `events`, without the
/// final chunk.
pub(crate) fn begun(events: &str, then: Then) -> Reply {
    let mut bytes = stream_head();
    if !events.is_empty() {
        bytes.extend(format!("{:x}\r\n{events}\r\n", events.len()).bytes());
    }
    Reply { pieces: vec![bytes], then }
}

fn stream_head() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        .to_vec()
}
