//! The way of a new connection into the server: a seat, and the TLS handshake.

use crate::http::connections::{Connections, Seat};
use crate::http::socket::{Patience, Socket, envelope};
use crate::http::stream::Stream;
use crate::http::tls::Certificate;
use actix_http::error::DispatchError;
use actix_server::GracefulShutdownSignal;
use std::future::poll_fn;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use tiercel_device::Clock;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

/// First byte of a connection that begins with a TLS handshake.
const HANDSHAKE: u8 = 0x16;
/// Most bytes of a plain HTTP request that are read before it is refused.
const PLAIN_BYTES: usize = 16 * 1024;

/// Entrance of a listener.
#[derive(Clone)]
pub(super) struct Entrance {
    pub(super) connections: Arc<Connections>,
    /// Certificate of the server; `None` without TLS.
    pub(super) certificate: Option<Arc<Certificate>>,
    pub(super) clock: Clock,
    pub(super) patience: Patience,
    /// Resolves when the HTTP server stops.
    pub(super) draining: GracefulShutdownSignal,
}

impl Entrance {
    /// Lets in a new connection, or closes it.
    ///
    /// # Errors
    /// If the connection was closed: its address has too many connections, its handshake failed or took too long, it
    /// gave way to another, or the server stops.
    pub(super) async fn enter(
        self,
        stream: TcpStream,
    ) -> std::result::Result<(Socket, Option<SocketAddr>), DispatchError> {
        tokio::select! {
            entered = self.admit(stream) => entered.map_err(DispatchError::Io),
            () = self.draining.notified() => {
                Err(DispatchError::Io(Error::from(ErrorKind::ConnectionAborted)))
            }
        }
    }

    async fn admit(&self, stream: TcpStream) -> Result<(Socket, Option<SocketAddr>)> {
        let peer = stream.peer_addr()?;
        let seat = self.connections.arrive(peer.ip()).await;
        let mut seat = seat.ok_or_else(|| Error::from(ErrorKind::ConnectionRefused))?;
        // Turn off Nagle's algorithm: a token must not wait for the acknowledgement of the token before it. If this
        // fails, the socket is broken, and reading from it will report that.
        let _ = stream.set_nodelay(true);
        let begun = self.clock.now();
        let stream = match &self.certificate {
            None => Stream::Plain(stream),
            Some(certificate) => self.secure(stream, &certificate.acceptor(), &mut seat).await?,
        };
        let head_us = self.patience.head_us.saturating_sub(self.clock.now().0 - begun.0);
        let socket = Socket::new(stream, seat, self.clock.clone(), (self.patience, head_us));
        Ok((socket, Some(peer)))
    }

    /// Makes the TLS handshake, for which the client has as long as for a request head. Meanwhile the connection is
    /// idle: it may be evicted.
    async fn secure(
        &self,
        stream: TcpStream,
        acceptor: &TlsAcceptor,
        seat: &mut Seat,
    ) -> Result<Stream> {
        let mut handshake = pin!(handshake(stream, acceptor));
        let done = poll_fn(|cx| {
            if let Poll::Ready(done) = handshake.as_mut().poll(cx) {
                return Poll::Ready(done);
            }
            seat.set_idle();
            let aborted = || Err(Error::from(ErrorKind::ConnectionAborted));
            seat.poll_evicted(cx).map(|()| aborted())
        });
        let done = self.clock.timeout_us(self.patience.head_us, done).await;
        let done = done.unwrap_or_else(|| Err(Error::from(ErrorKind::TimedOut)));
        done.inspect_err(|error| {
            if error.kind() != ErrorKind::ConnectionAborted {
                self.connections.count_handshake();
            }
        })
    }
}

async fn handshake(mut stream: TcpStream, acceptor: &TlsAcceptor) -> Result<Stream> {
    let mut first = [HANDSHAKE];
    if stream.peek(&mut first).await? == 0 {
        // The client left without a word, as probes of a port do.
        return Err(Error::from(ErrorKind::ConnectionAborted));
    }
    if first[0] != HANDSHAKE {
        refuse_plain(&mut stream).await?;
        return Err(Error::from(ErrorKind::InvalidData));
    }
    Ok(Stream::Tls(Box::new(acceptor.accept(stream).await?)))
}

/// Answers a client that does not speak TLS with an error without TLS.
async fn refuse_plain(stream: &mut TcpStream) -> Result<()> {
    // Read what has come: the operating system would drop the answer if bytes were left unread.
    let _ = stream.try_read(&mut [0; PLAIN_BYTES]);
    let message = "this port speaks HTTPS; send the request to https:// instead of http://";
    let answer = envelope("HTTP/1.1 400 Bad Request", message, "https_needed");
    stream.write_all(&answer).await?;
    stream.shutdown().await
}
