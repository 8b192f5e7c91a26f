//! TLS of the load client: which certificates it trusts.

use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::TlsConnector;

/// Makes the connector of TLS connections. The connector trusts the certificates (PEM) in `ca_file`, or those that
/// browsers trust.
///
/// # Errors
/// If the file cannot be used.
pub(crate) fn connector(ca_file: Option<&Path>) -> Result<TlsConnector, String> {
    let roots = match ca_file {
        None => RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() },
        Some(file) => {
            read(file).map_err(|why| format!("the certificates in {}: {why}", file.display()))?
        }
    };
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config).into())
}

fn read(file: &Path) -> Result<RootCertStore, String> {
    let pem = std::fs::read(file).map_err(|error| error.to_string())?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        // Do not show the error, which has the text of a malformed line.
        let certificate = certificate.map_err(|_| "they are not PEM".to_owned())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() {
        return Err("there is none (-----BEGIN CERTIFICATE-----)".into());
    }
    Ok(roots)
}
