//! Bytes of a client's connection, plain or under TLS.

use std::io::{ErrorKind, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// Bytes of a client's connection.
pub(super) enum Stream {
    /// Without TLS.
    Plain(TcpStream),
    /// Under TLS, after the handshake.
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        match &mut *self {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Stream::Tls(stream) => match ready!(Pin::new(stream).poll_read(cx, buffer)) {
                // A client that hangs up without the end mark of TLS has hung up all the same; the length of a message
                // is in HTTP, so the HTTP parser notices a message that was cut off.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
                read => Poll::Ready(read),
            },
        }
    }
}

impl AsyncWrite for Stream {
    /// Takes bytes only after all bytes before them were given to the operating system. TLS would otherwise take 64 KiB
    /// more than the client reads, and hide for so long that the client does not read.
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        match &mut *self {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Tls(stream) => {
                ready!(Pin::new(&mut *stream).poll_flush(cx))?;
                Pin::new(stream).poll_write(cx, bytes)
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut *self {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut *self {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::crypto::ring::default_provider;
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, RootCertStore, ServerConfig};
    use std::future::poll_fn;
    use std::sync::Arc;
    use tiercel_device::Clock;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    const PIECE: usize = 1024;
    /// Time within which bytes come that the operating system has, us.
    const SOON_US: u64 = 20_000_000;

    /// Returns a TLS connection of a server, and the TCP connection of its client after the handshake.
    async fn connected() -> (Stream, TcpStream) {
        let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let certificate = certified.cert.der().clone();
        let key = PrivateKeyDer::Pkcs8(certified.signing_key.serialize_der().into());
        let provider = Arc::new(default_provider());
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to_server = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (of_server, _) = listener.accept().await.unwrap();
        let connector = TlsConnector::from(Arc::new(client));
        let name = ServerName::try_from("localhost").unwrap();
        let (accepted, connected) = futures_util::future::join(
            TlsAcceptor::from(Arc::new(server)).accept(of_server),
            connector.connect(name, to_server),
        )
        .await;
        (Stream::Tls(Box::new(accepted.unwrap())), connected.unwrap().into_inner().0)
    }

    #[test]
    fn tls_takes_no_more_than_the_client_can_read() {
        actix_rt::System::new().block_on(async {
            let (mut server, mut client) = connected().await;
            let mut taken = 0;
            // The client reads nothing until the server takes nothing more.
            loop {
                let piece = [b'x'; PIECE];
                let written =
                    poll_fn(|cx| Poll::Ready(Pin::new(&mut server).poll_write(cx, &piece)));
                match written.await {
                    Poll::Ready(written) => taken += written.unwrap(),
                    Poll::Pending => break,
                }
            }
            // All but the last piece was given to the operating system, which needs no more help of the server.
            let mut come = vec![0; taken - PIECE];
            let reading = Clock::wall().timeout_us(SOON_US, client.read_exact(&mut come)).await;
            assert!(reading.is_some(), "{taken} bytes were taken");
        });
    }
}
