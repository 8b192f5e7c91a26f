//! HTTP/1.1 client, plain or under TLS: one request and its response per connection.

use crate::tls::connector;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::path::Path;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Maximum size of an HTTP response body that the load client reads whole (any but an event stream), bytes.
const MAX_ANSWER_BYTES: usize = 4 << 20;

/// Address of a server, and the `Authorization` header that requests to the server carry.
#[derive(Clone)]
pub(crate) struct Endpoint {
    host: String,
    port: u16,
    base: String,
    authorization: Option<String>,
    /// For https: what opens TLS connections, and the name that the server's certificate must have.
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// Reason why an HTTP request got no usable response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error("cannot connect: {0}")]
    Connect(std::io::Error),
    #[error("the exchange broke off: {0}")]
    Exchange(#[from] hyper::Error),
    #[error("the answer can't be read: {0}")]
    Answer(String),
    #[error("the request can't be made: {0}")]
    Request(#[from] hyper::http::Error),
}

impl Endpoint {
    /// Parses a server's URL of the form `http[s]://HOST[:PORT][/PATH]`; a final `/v1` is optional. For https,
    /// `ca_file` holds the certificates to trust instead of those that browsers trust.
    pub(crate) fn parse(
        url: &str,
        api_key: Option<&str>,
        ca_file: Option<&Path>,
    ) -> Result<Endpoint, String> {
        let uri: Uri = url.parse().map_err(|error| format!("{error}"))?;
        let host = uri.host().filter(|host| !host.is_empty()).ok_or("has no host")?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let (tls, port) = match uri.scheme_str() {
            Some("http") => (None, 80),
            Some("https") => {
                let name = ServerName::try_from(host.clone()).map_err(|error| error.to_string())?;
                (Some((connector(ca_file)?, name)), 443)
            }
            _ => return Err("must start with http:// or https://".into()),
        };
        let path = uri.path().trim_end_matches('/');
        Ok(Endpoint {
            host,
            port: uri.port_u16().unwrap_or(port),
            base: path.strip_suffix("/v1").unwrap_or(path).to_owned(),
            authorization: api_key.map(|key| format!("Bearer {key}")),
            tls,
        })
    }

    /// Opens a connection to the server.
    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, HttpError> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
        let stream = stream.map_err(HttpError::Connect)?;
        stream.set_nodelay(true).map_err(HttpError::Connect)?;
        match &self.tls {
            None => begin(stream).await,
            Some((connector, name)) => {
                let secured = connector.connect(name.clone(), stream).await;
                begin(secured.map_err(HttpError::Connect)?).await
            }
        }
    }

    /// Sends an HTTP request: POST with a JSON body, or GET without a body. Returns as soon as the response's status
    /// and headers have come; the caller reads the body. Dropping the body closes the connection.
    pub(crate) async fn send(
        &self,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Response<Incoming>, HttpError> {
        let mut sender = self.connect().await?;
        let method = if body.is_some() { "POST" } else { "GET" };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(header::HOST, self.authority())
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(Full::new(Bytes::from(body.unwrap_or_default())))?;
        Ok(sender.send_request(request).await?)
    }

    fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Sends an HTTP request and reads the whole response. Returns the status, the `Server` header and the body.
    pub(crate) async fn exchange(
        &self,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<(StatusCode, Option<String>, Bytes), HttpError> {
        let answer = self.send(path, body).await?;
        let status = answer.status();
        let server = header_text(&answer, header::SERVER);
        Ok((status, server, read_all(answer).await?))
    }
}

/// Begins HTTP on a new connection.
async fn begin(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Full<Bytes>>, HttpError> {
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    // The spawned task that drives the connection ends when `sender` and the response body are dropped. A connection
    // error reaches the caller through `sender` or the body.
    tokio::spawn(connection);
    Ok(sender)
}

/// Reads a response body to its end; fails if the body exceeds `MAX_ANSWER_BYTES`.
pub(crate) async fn read_all(answer: Response<Incoming>) -> Result<Bytes, HttpError> {
    let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
    Ok(body.map_err(|error| HttpError::Answer(error.to_string()))?.to_bytes())
}

/// Returns a response header as text, or `None` if the header is missing or is not text.
pub(crate) fn header_text(answer: &Response<Incoming>, name: header::HeaderName) -> Option<String> {
    answer.headers().get(name)?.to_str().ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_with_or_without_port_and_path() {
        let parsed = |url| {
            let endpoint = Endpoint::parse(url, None, None).unwrap();
            (endpoint.authority(), endpoint.base)
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(parsed("http://localhost:8080"), pair("localhost:8080", ""));
        assert_eq!(parsed("http://localhost/v1/"), pair("localhost:80", ""));
        assert_eq!(parsed("http://[::1]:81/gate/v1"), pair("[::1]:81", "/gate"));
        assert_eq!(parsed("https://llm.example.com/v1"), pair("llm.example.com:443", ""));
        for bad in ["localhost:8080", "ftp://localhost", "http://", "", "/v1"] {
            assert!(Endpoint::parse(bad, None, None).is_err(), "{bad:?}");
        }
        let missing = Some(Path::new("/nonexistent.pem"));
        let error = Endpoint::parse("https://localhost", None, missing).err().unwrap();
        assert!(error.contains("/nonexistent.pem"), "{error}");
    }
}
