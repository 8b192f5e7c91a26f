//! The server's certificate: read from PEM files at the start and again at SIGHUP.

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{Error, InconsistentKeys, ServerConfig};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use tiercel_config::{HttpSettings, utc_text};
use tiercel_device::Clock;
use tokio_rustls::TlsAcceptor;

/// Names of the settings that name the files.
const CERT: &str = "http.tls_cert_file";
const KEY: &str = "http.tls_key_file";
/// Largest file of a certificate or a key, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Certificate of the server, with its private key.
pub(crate) struct Certificate {
    cert_file: PathBuf,
    key_file: PathBuf,
    /// TLS settings of new connections. Readers copy the pointer and hold the lock no longer than that.
    in_force: RwLock<Arc<ServerConfig>>,
}

/// A file of the server's certificate that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: cannot use {}: {why}", path.display())]
pub struct TlsError {
    /// Setting that names the file.
    setting: &'static str,
    /// Path of the file.
    path: PathBuf,
    /// Reason for which the file cannot be used.
    why: String,
}

impl Certificate {
    /// Reads the files that the settings name; `None` for a server without TLS.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub(crate) fn new(settings: &HttpSettings) -> Result<Option<Certificate>, TlsError> {
        let (Some(cert_file), Some(key_file)) = (&settings.tls_cert_file, &settings.tls_key_file)
        else {
            return Ok(None);
        };
        let (cert_file, key_file) = (PathBuf::from(cert_file), PathBuf::from(key_file));
        let in_force = RwLock::new(Arc::new(read(&cert_file, &key_file)?));
        Ok(Some(Certificate { cert_file, key_file, in_force }))
    }

    /// Reads the files again; this blocks the thread. Open connections go on with the certificate that they began with.
    /// If a file cannot be used, the certificate stays as it was.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub(crate) fn reload(&self) -> Result<(), TlsError> {
        let read = Arc::new(read(&self.cert_file, &self.key_file)?);
        *self.in_force.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    /// Returns the acceptor that makes the TLS handshake of a new TCP connection.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.in_force.read().unwrap_or_else(PoisonError::into_inner).clone().into()
    }
}

/// Reads a certificate and its key from their files.
fn read(cert_file: &Path, key_file: &Path) -> Result<ServerConfig, TlsError> {
    let no_cert = |why: String| TlsError { setting: CERT, path: cert_file.to_owned(), why };
    let no_key = |why: String| TlsError { setting: KEY, path: key_file.to_owned(), why };
    let bytes = contents(cert_file).map_err(no_cert)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let chain = chain.map_err(|error| no_cert(fault(&error).into()))?;
    if chain.is_empty() {
        return Err(no_cert("it holds no certificate (-----BEGIN CERTIFICATE-----)".into()));
    }
    if let Some(fault) = fault_of_time(&chain[0], Clock::unix_s() as i64) {
        tracing::warn!("{CERT}: the certificate in {} {fault}", cert_file.display());
    }
    let bytes = contents(key_file).map_err(no_key)?;
    let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| {
        no_key(match error {
            pem::Error::NoItemsFound => {
                "it holds no private key (-----BEGIN PRIVATE KEY-----) without a password".into()
            }
            other => fault(&other).into(),
        })
    })?;
    let provider = Arc::new(default_provider());
    let key = provider.key_provider.load_private_key(key);
    let key = key.map_err(|error| no_key(error.to_string()))?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
        Err(Error::InconsistentKeys(_)) => {
            return Err(no_key(format!("the key is not that of the certificate in {CERT}")));
        }
        Err(error) => return Err(no_cert(error.to_string())),
    }
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| no_cert(error.to_string()))?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Describes the fault of a PEM file. Does not show its text, which may be a private key: a file without line breaks is
/// a single malformed line.
fn fault(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => {
            "it is not PEM: a section has no end line (-----END ...)"
        }
        pem::Error::IllegalSectionStart { .. } => {
            "it is not PEM: a line that begins with -----BEGIN is malformed"
        }
        pem::Error::Base64Decode(_) => "it is not PEM: the text of a section is not base64",
        _ => "it is not PEM",
    }
}

/// Returns the reason why clients refuse a certificate at the time `unix_s` (seconds since 1970). Returns `None` if the
/// certificate is valid at that time.
fn fault_of_time(certificate: &CertificateDer<'_>, unix_s: i64) -> Option<String> {
    // A certificate that cannot be parsed is refused later, together with its key.
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let validity = certificate.validity();
    let (first_s, last_s) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    let refused = "clients will refuse it; replace it and send SIGHUP";
    if unix_s > last_s {
        Some(format!("expired at {}; {refused}", utc_text(last_s)))
    } else if unix_s < first_s {
        Some(format!("is valid from {} on; until then {refused}", utc_text(first_s)))
    } else {
        None
    }
}

fn contents(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| error.to_string();
    // A pipe or a device could block or never end.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err("it is no regular file".into());
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("it has more than {MAX_FILE_BYTES} bytes"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_is_not_valid_now_is_told() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["localhost".into()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        let certificate = params.self_signed(&key).unwrap();
        let fault = |unix_s| fault_of_time(certificate.der(), unix_s);
        let (first_s, last_s) = (1_577_836_800, 1_609_459_200);
        assert_eq!([fault(first_s), fault(last_s)], [None, None]);
        let early = fault(first_s - 1).unwrap();
        assert!(early.starts_with("is valid from 2020-01-01T00:00:00Z on; until then"), "{early}");
        let late = fault(last_s + 1).unwrap();
        assert!(late.starts_with("expired at 2021-01-01T00:00:00Z; clients will refuse"), "{late}");
        assert_eq!(fault_of_time(&CertificateDer::from(vec![1, 2, 3]), last_s + 1), None);
    }

    #[test]
    fn no_error_shows_the_text_of_a_file() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["localhost".into()]).unwrap();
        let cert = file("cert.pem", &params.self_signed(&key).unwrap().pem());
        let (pem, secret) = (key.serialize_pem(), "SECRETSECRET");
        let in_bytes = format!("{:?}", secret.as_bytes());
        let in_bytes = in_bytes.trim_matches(['[', ']']);
        let one_line = format!("-----BEGIN PRIVATE KEY-----{secret}-----END PRIVATE KEY-----");
        let bad_base64 = pem.replace('\n', &format!("\n{secret}!\n"));
        for text in [&one_line, &one_line.replace("-----END", "\n-----END"), &bad_base64] {
            let key = file("key.pem", text);
            for (cert, key) in [(&cert, &key), (&key, &key)] {
                let error = read(cert, key).unwrap_err().to_string();
                assert!(!error.contains(secret) && !error.contains(in_bytes), "{error}");
                assert!(error.contains("PEM") || error.contains("it holds no"), "{error}");
            }
        }
    }
}
