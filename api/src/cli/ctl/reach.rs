//! How `tiercel ctl` reaches a server: by which address, and which certificates it trusts.

use crate::cli::failure::Failure;
use clap::Args;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use ureq::config::{Config, ConfigBuilder};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::typestate::AgentScope;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, http};

/// Most addresses of a name that are tried; ureq has room for 16.
const MAX_ADDRESSES: usize = 16;

/// Flags that say how to reach the server.
#[derive(Debug, Args)]
pub(super) struct Reach {
    /// Certificates (PEM) of the authorities to trust for https; by default those that browsers trust
    #[arg(long, value_name = "FILE", env = "TIERCEL_CA_FILE", global = true)]
    ca: Option<PathBuf>,
    /// Address of the server, if it is not that of the name in the URL
    #[arg(long, value_name = "HOST:PORT", env = "TIERCEL_CONNECT", global = true)]
    connect: Option<String>,
}

impl Reach {
    /// Makes an HTTP client.
    ///
    /// # Errors
    /// If the file of certificates or the address cannot be used.
    pub(super) fn agent(self, config: ConfigBuilder<AgentScope>) -> Result<Agent, Failure> {
        let config = match &self.ca {
            None => config,
            Some(file) => {
                let roots = read(file).map_err(|why| {
                    Failure::usage(format!("--ca: cannot use {}: {why}", file.display()))
                })?;
                config.tls_config(TlsConfig::builder().root_certs(roots).build())
            }
        };
        let config = config.build();
        let Some(connect) = self.connect else { return Ok(Agent::new_with_config(config)) };
        let found = connect.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        let addresses = found.map_err(|error| {
            Failure::usage(format!("--connect {connect}: {error}; write HOST:PORT"))
        })?;
        Ok(Agent::with_parts(config, DefaultConnector::default(), Fixed(addresses)))
    }
}

fn read(file: &Path) -> Result<RootCerts, String> {
    let pem = std::fs::read(file).map_err(|error| error.to_string())?;
    let mut certificates: Vec<Certificate<'static>> = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| error.to_string())? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() {
        return Err("it holds no certificate (-----BEGIN CERTIFICATE-----)".into());
    }
    Ok(RootCerts::Specific(Arc::new(certificates)))
}

/// Finds the same addresses for every name.
#[derive(Debug)]
struct Fixed(Vec<SocketAddr>);

impl Resolver for Fixed {
    fn resolve(
        &self,
        _: &http::Uri,
        _: &Config,
        _: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut found = self.empty();
        self.0.iter().take(MAX_ADDRESSES).for_each(|address| found.push(*address));
        if found.is_empty() { Err(ureq::Error::HostNotFound) } else { Ok(found) }
    }
}
