//! Socket of a test client, plain or under TLS.

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io::{Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Socket of a test client.
pub enum Wire {
    /// Without TLS.
    Plain(TcpStream),
    /// Under TLS.
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Wire {
    pub(crate) fn plain(address: SocketAddr, timeout: Duration) -> Wire {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(timeout)).unwrap();
        socket.set_write_timeout(Some(timeout)).unwrap();
        Wire::Plain(socket)
    }

    pub(crate) fn tls(address: SocketAddr, timeout: Duration, config: Arc<ClientConfig>) -> Wire {
        let Wire::Plain(socket) = Wire::plain(address, timeout) else { unreachable!() };
        let name = ServerName::try_from("localhost").unwrap();
        let session = ClientConnection::new(config, name).unwrap();
        Wire::Tls(Box::new(StreamOwned::new(session, socket)))
    }

    /// Returns the TCP connection.
    pub fn tcp(&self) -> &TcpStream {
        match self {
            Wire::Plain(socket) => socket,
            Wire::Tls(stream) => &stream.sock,
        }
    }

    /// Makes the TLS handshake and returns the server's certificate (DER) and the protocol that was agreed on.
    ///
    /// # Errors
    /// If the handshake fails.
    ///
    /// # Panics
    /// Without TLS.
    pub fn handshake(&mut self) -> Result<(Vec<u8>, Vec<u8>)> {
        let Wire::Tls(stream) = self else { panic!("a plain connection") };
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        let certificate = stream.conn.peer_certificates().unwrap()[0].to_vec();
        Ok((certificate, stream.conn.alpn_protocol().unwrap_or_default().to_vec()))
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        match self {
            Wire::Plain(socket) => socket.read(buffer),
            Wire::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        match self {
            Wire::Plain(socket) => socket.write(bytes),
            Wire::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> Result<()> {
        match self {
            Wire::Plain(socket) => socket.flush(),
            Wire::Tls(stream) => stream.flush(),
        }
    }
}
