//! Binds the socket of the control API.

use crate::boot::BootError;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// Binds the address of the setting `http.control_listen`. `auto` stands for the port after that of the public address,
/// on this machine alone; if that port is taken, the server goes on without a control API, because another server may
/// listen there. Returns `None` for a server without a control API.
///
/// # Errors
/// [`BootError::ListenControl`] if an address that the settings state cannot be bound.
pub(super) fn bind(setting: &str, public: SocketAddr) -> Result<Option<TcpListener>, BootError> {
    match setting {
        "off" => Ok(None),
        "auto" => {
            let next = public.port().checked_add(1).unwrap_or(0);
            let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, next));
            if let Err(error) = &bound {
                tracing::warn!(
                    "no control API: port {next} cannot be bound ({error}); choose an address with \
                     --control-listen"
                );
            }
            Ok(bound.ok())
        }
        stated => match TcpListener::bind(stated) {
            Ok(listener) => Ok(Some(listener)),
            Err(source) => Err(BootError::ListenControl { address: stated.to_owned(), source }),
        },
    }
}
