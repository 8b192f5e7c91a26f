//! An HTTP/1.1 client over one blocking socket that sends any bytes a test wants to send, valid or not.

use crate::wire::Wire;
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Time after which the test client fails if the server sends nothing or accepts nothing.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A test client's connection to a server.
pub struct Connection {
    socket: Wire,
    /// Bytes that the client has read from the socket but not yet returned to the test.
    buffer: Vec<u8>,
}

/// An HTTP response that a test client has read.
#[derive(Debug, Clone)]
pub struct Response {
    /// HTTP status code of the response.
    pub status: u16,
    /// Headers of the HTTP response; their names are in lower case.
    pub headers: Vec<(String, String)>,
    /// Body of the HTTP response, empty if only its head was read; the chunks of a chunked body are joined.
    pub body: Vec<u8>,
}

impl Response {
    /// Returns the value of the first response header with the given name, which must be in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns the body of the response as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body of the response as JSON.
    ///
    /// # Panics
    /// If the body is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// Returns the error object in the body of the response.
    ///
    /// # Panics
    /// If the body is not an OpenAI error with all four fields.
    pub fn error(&self) -> Value {
        let error = self.json()["error"].clone();
        let object = error.as_object().unwrap_or_else(|| panic!("no envelope: {}", self.text()));
        for field in ["message", "type", "param", "code"] {
            assert!(object.contains_key(field), "no {field}: {error}");
        }
        assert!(!error["message"].as_str().unwrap().is_empty(), "{error}");
        error
    }
}

impl Connection {
    /// Opens a connection to a server.
    pub fn open(address: SocketAddr) -> Connection {
        Connection { socket: Wire::plain(address, TIMEOUT), buffer: Vec::new() }
    }

    /// Opens a TLS connection to a server with a certificate for `localhost`. The handshake is made when the test first
    /// sends or reads.
    pub fn open_tls(address: SocketAddr, config: Arc<rustls::ClientConfig>) -> Connection {
        Connection { socket: Wire::tls(address, TIMEOUT, config), buffer: Vec::new() }
    }

    /// Returns the socket below, for its TLS state and its TCP connection.
    pub fn wire(&mut self) -> &mut Wire {
        &mut self.socket
    }

    /// Sends raw bytes to the server. It is no error if the server has already closed the connection.
    pub fn send(&mut self, bytes: &[u8]) {
        match self.socket.write_all(bytes) {
            Err(error) if is_hangup(error.kind()) => {}
            done => done.unwrap(),
        }
    }

    /// Sends a complete and correct HTTP request.
    pub fn send_request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            head += &format!("content-length: {}\r\n", body.len());
        }
        self.send(format!("{head}\r\n").as_bytes());
        self.send(body);
    }

    /// Sends an HTTP request and reads the whole response.
    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Response {
        self.send_request(method, path, headers, body);
        self.response().expect("a response")
    }

    /// Sends a POST request with a JSON body and reads the whole response.
    pub fn post(&mut self, path: &str, body: &Value) -> Response {
        let headers = [("content-type", "application/json")];
        self.request("POST", path, &headers, body.to_string().as_bytes())
    }

    /// Sends a POST request with a JSON body and reads only the status and headers of the response, so that the test
    /// can read the response stream piece by piece.
    pub fn open_stream(&mut self, path: &str, body: &Value) -> Response {
        let headers = [("content-type", "application/json")];
        self.send_request("POST", path, &headers, body.to_string().as_bytes());
        self.head().expect("a response head")
    }

    /// Reads a whole HTTP response; `None` if the server closes the connection before the end of the head or of a body
    /// with a `Content-Length`. A chunked body that is cut off is returned as far as whole chunks came.
    pub fn response(&mut self) -> Option<Response> {
        let mut response = self.head()?;
        let chunked = response.header("transfer-encoding") == Some("chunked");
        let length = response.header("content-length").map(|length| length.parse().unwrap());
        match length {
            Some(length) => response.body = self.exactly(length)?,
            None if chunked => {
                while let Some(chunk) = self.chunk().filter(|chunk| !chunk.is_empty()) {
                    response.body.extend(chunk);
                }
            }
            None => {}
        }
        Some(response)
    }

    /// Reads the status and headers of an HTTP response; `None` if the server closes the connection before their end.
    pub fn head(&mut self) -> Option<Response> {
        let end = self.until(b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&end).into_owned();
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers = lines.filter_map(|line| line.split_once(':'));
        let headers = headers.map(|(k, v)| (k.to_ascii_lowercase(), v.trim().to_owned())).collect();
        Some(Response { status, headers, body: Vec::new() })
    }

    /// Reads the next chunk of a chunked response body. Empty for the last chunk; `None` if the server closes the
    /// connection before the end of the chunk.
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        let size = self.until(b"\r\n")?;
        let size = usize::from_str_radix(String::from_utf8_lossy(&size).trim(), 16).unwrap();
        let chunk = self.exactly(size)?;
        self.exactly(2)?;
        Some(chunk)
    }

    /// Reads all bytes that still come until the server closes the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        while self.fill() {}
        std::mem::take(&mut self.buffer)
    }

    /// Closes only the client's sending side of the connection (TCP half-close).
    pub fn finish_sending(&self) {
        // The half-close fails if the server has already closed the connection; for a test that is no error.
        let _ = self.socket.tcp().shutdown(Shutdown::Write);
    }

    fn until(&mut self, mark: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = self.buffer.windows(mark.len()).position(|window| window == mark) {
                return Some(self.buffer.drain(..at + mark.len()).collect());
            }
            if !self.fill() {
                return None;
            }
        }
    }

    fn exactly(&mut self, bytes: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < bytes {
            if !self.fill() {
                return None;
            }
        }
        Some(self.buffer.drain(..bytes).collect())
    }

    /// Reads the bytes that have come on the socket into the buffer, waiting for some; returns false if the server has
    /// closed the connection.
    fn fill(&mut self) -> bool {
        let mut piece = [0; 65_536];
        match self.socket.read(&mut piece) {
            Ok(bytes) => {
                self.buffer.extend_from_slice(&piece[..bytes]);
                bytes > 0
            }
            Err(error) if is_hangup(error.kind()) => false,
            Err(error) => panic!("the server said nothing for {TIMEOUT:?}: {error}"),
        }
    }
}

fn is_hangup(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe
            | ErrorKind::ConnectionAborted
            // A TLS connection that is closed without its end mark.
            | ErrorKind::UnexpectedEof
    )
}

/// Returns the `data:` payloads of a body of server-sent events, without comment lines.
pub fn events(body: &[u8]) -> Vec<String> {
    let text = std::str::from_utf8(body).expect("an event stream is UTF-8");
    text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).map(str::to_owned).collect()
}
