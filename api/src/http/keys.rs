//! API keys: which clients the server lets in, and with which rights.

use crate::http::ApiError;
use crate::http::caller::{Caller, Rights, limits_of};
use crate::http::origin::{refuse_other_pages, refuse_other_sites};
use actix_web::HttpRequest;
use actix_web::http::{StatusCode, header};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use subtle::{ConditionallySelectable, ConstantTimeEq};
use tiercel_config::{HttpSettings, KeysError, Role, read_keys};
use tiercel_device::Clock;
use tiercel_policy::Weight;
use tiercel_policy::admission::KeyLimits;
use tiercel_policy::blocks::Salt;

/// Name of the only tenant of a server without keys. Names in a keys file cannot have brackets.
const LOCAL: &str = "[local]";

/// API keys of the server. A server without keys lets every client in, and all clients belong to one tenant.
pub(crate) struct Keys {
    /// Key of the hash that turns tenants' names into salts of the prefix cache; random per process, so that no client
    /// can compute another tenant's salt. The label of a tenant, which is a part of the tenant's salt, does not depend
    /// on this key.
    salt_key: [u8; 32],
    /// Keys file (`http.keys_file`), read again by [`Keys::reload`].
    file: Option<PathBuf>,
    /// Keys of the setting `http.api_keys`, which stay when the keys file is read again.
    of_settings: Vec<Accepted>,
    /// All keys that are in force. Readers copy the pointer and hold the lock no longer than that.
    accepted: RwLock<Arc<[Accepted]>>,
    /// Number of tenants that the keys in force belong to.
    tenants: AtomicUsize,
    /// Whether the server speaks TLS, so that its own pages have an origin with `https`.
    tls: bool,
    /// Origins whose pages may use the public listener (`http.cors_origins`).
    cors_origins: Vec<String>,
    /// Whether a server without keys may serve other machines (`http.allow_anonymous`).
    allow_anonymous: bool,
}

/// A key that the server accepts.
#[derive(Debug, Clone)]
pub(crate) struct Accepted {
    sha256: [u8; 32],
    pub(crate) caller: Caller,
    /// Time from which the key is refused, seconds since 1970.
    pub(crate) expires_unix_s: Option<i64>,
    /// What the key may do on the control API.
    pub(crate) role: Option<Role>,
}

/// Client of the control API.
#[derive(Debug, Clone)]
pub(crate) struct Operator {
    /// Name of the client's API key, for the audit log.
    pub(crate) name: Arc<str>,
}

impl Keys {
    /// Reads the keys that the settings state or name.
    ///
    /// # Errors
    /// If the keys file cannot be used.
    pub(crate) fn new(settings: &HttpSettings) -> Result<Keys, KeysError> {
        let salt_key = rand::random();
        let of_settings = settings.api_keys.iter().enumerate().map(|(index, key)| {
            let name = format!("http.api_keys[{}]", index + 1);
            let name: Arc<str> = name.into();
            let caller = Caller {
                salt: salt(&salt_key, &name),
                weight: Weight::default(),
                rights: Rights::STANDARD,
                limits: KeyLimits::default(),
                tenant: name.clone(),
                key: name,
            };
            let sha256 = Sha256::digest(key.trim().as_bytes()).into();
            Accepted { sha256, caller, expires_unix_s: None, role: None }
        });
        let file = settings.keys_file.as_ref().map(PathBuf::from);
        let of_settings = of_settings.collect();
        let accepted = RwLock::new(Arc::<[Accepted]>::from([]));
        let tenants = AtomicUsize::new(0);
        let tls = settings.has_tls();
        let keys = Keys {
            salt_key,
            file,
            of_settings,
            accepted,
            tenants,
            tls,
            cors_origins: settings.cors_origins.clone(),
            allow_anonymous: settings.allow_anonymous,
        };
        keys.reload()?;
        Ok(keys)
    }

    /// Reads the keys file again; this blocks the thread. Requests that are being served go on. If the file cannot be
    /// used, the keys stay as they were. Returns the numbers of keys before and after.
    ///
    /// # Errors
    /// If the keys file cannot be used.
    pub(crate) fn reload(&self) -> Result<(usize, usize), KeysError> {
        let mut accepted = self.of_settings.clone();
        if let Some(file) = &self.file {
            for key in read_keys(file)? {
                if let Some(stated) = self.of_settings.iter().find(|of| of.sha256 == key.sha256) {
                    let why = format!("is the hash of {}; remove the key there", stated.caller.key);
                    return Err(KeysError::field(file, &key.name, "sha256", why));
                }
                let caller = Caller {
                    salt: salt(&self.salt_key, &key.tenant),
                    weight: Weight::new(key.share),
                    rights: Rights::of(&key),
                    limits: limits_of(&key),
                    key: key.name.into(),
                    tenant: key.tenant.into(),
                };
                accepted.push(Accepted {
                    caller,
                    sha256: key.sha256,
                    expires_unix_s: key.expires_unix_s,
                    role: key.role,
                });
            }
        }
        let after = accepted.len();
        let tenants: BTreeSet<&Arc<str>> = accepted.iter().map(|key| &key.caller.tenant).collect();
        self.tenants.store(tenants.len(), Ordering::Relaxed);
        let mut in_force = self.accepted.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *in_force, accepted.into());
        Ok((before.len(), after))
    }

    /// Returns the number of tenants that the keys in force belong to; 0 without keys.
    pub(crate) fn tenants(&self) -> usize {
        self.tenants.load(Ordering::Relaxed)
    }

    /// Returns the name of a tenant; the label that the tenant has in metrics if no key in force belongs to it.
    pub(crate) fn tenant_name(&self, tenant: Salt) -> Arc<str> {
        if !self.required() && tenant == salt(&self.salt_key, LOCAL) {
            return LOCAL.into();
        }
        let in_force = self.in_force();
        let known = in_force.iter().find(|key| key.caller.salt == tenant);
        known.map_or_else(|| tenant.label().into(), |key| key.caller.tenant.clone())
    }

    /// Returns the names of the keys in force.
    pub(crate) fn names(&self) -> Vec<Arc<str>> {
        self.in_force().iter().map(|key| key.caller.key.clone()).collect()
    }

    /// Whether clients need a key.
    pub(crate) fn required(&self) -> bool {
        self.file.is_some() || !self.of_settings.is_empty()
    }

    /// Whether the keys come from a file, which can be read again.
    pub(crate) fn reloadable(&self) -> bool {
        self.file.is_some()
    }

    /// Logs for each key the label that its tenant has in the metrics.
    pub(crate) fn log_labels(&self) {
        for key in self.in_force().iter() {
            let tenant = key.caller.salt.label();
            tracing::info!(key = &*key.caller.key, tenant, "an API key stands for this tenant");
        }
    }

    /// Returns the caller of an HTTP request, by its bearer token. A server without keys serves every program, but no
    /// request with the `Origin` of a web page that is neither the listener's own nor listed in `http.cors_origins`.
    ///
    /// # Errors
    /// 401 if this server requires an API key and the request has none that is in force; 403 if the server requires no
    /// key and a page of another origin sent the request.
    pub(crate) fn caller(&self, request: &HttpRequest) -> Result<Caller, ApiError> {
        if !self.required() {
            refuse_other_pages(request, (&self.cors_origins, self.allow_anonymous))?;
            return Ok(Caller {
                salt: salt(&self.salt_key, LOCAL),
                weight: Weight::default(),
                rights: Rights::ALL,
                limits: KeyLimits::default(),
                key: LOCAL.into(),
                tenant: LOCAL.into(),
            });
        }
        self.key(request).map(|key| key.caller)
    }

    /// Returns the client of a request to the control API. On a server without keys, every program of this machine is
    /// an operator, and so is the server's own page in a browser of this machine, but no page of another site.
    ///
    /// # Errors
    /// 401 if this server requires an API key and the request has none that is in force; 403 if the key lacks the role
    /// `needed`, or if the server requires no key and a page of another site may have sent the request.
    pub(crate) fn operator(
        &self,
        request: &HttpRequest,
        needed: Role,
    ) -> Result<Operator, ApiError> {
        if !self.required() {
            refuse_other_sites(request, self.tls)?;
            return Ok(Operator { name: LOCAL.into() });
        }
        let key = self.key(request)?;
        if key.role.is_some_and(|role| role >= needed) {
            return Ok(Operator { name: key.caller.key });
        }
        let needed = match needed {
            Role::Viewer => "viewer or operator",
            Role::Operator => "operator",
        };
        let message =
            format!("this needs an API key with the role {needed} (field `role` in the keys file)");
        Err(ApiError::new(StatusCode::FORBIDDEN, message).code("role_needed"))
    }

    /// Returns the key that an HTTP request carries as its bearer token.
    fn key(&self, request: &HttpRequest) -> Result<Accepted, ApiError> {
        let token = request
            .headers()
            .get(header::AUTHORIZATION)
            .and_then(|value| bearer(value.as_bytes()))
            .unwrap_or_default();
        let refused =
            |message| Err(ApiError::new(StatusCode::UNAUTHORIZED, message).code("invalid_api_key"));
        if token.is_empty() {
            return refused(
                "this server wants an API key; send the header `Authorization: Bearer KEY`",
            );
        }
        let accepted = self.in_force();
        match find(&accepted, &Sha256::digest(token).into()) {
            None => refused("the API key is not one of this server's"),
            Some(key) if key.expires_unix_s.is_some_and(|at| at <= Clock::unix_s() as i64) => {
                refused("the API key has expired; ask the operator for a new one")
            }
            Some(key) => Ok(key.clone()),
        }
    }

    /// Returns the keys in force: those of `http.api_keys`, then those of the keys file in its order.
    pub(crate) fn in_force(&self) -> Arc<[Accepted]> {
        self.accepted.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns the key with this hash. Compares all hashes in constant time, so that the time of the answer does not tell
/// how much of a hash is right, nor which key it is.
fn find<'a>(accepted: &'a [Accepted], sha256: &[u8; 32]) -> Option<&'a Accepted> {
    let mut found = 0;
    for (number, key) in (1_u32..).zip(accepted) {
        found.conditional_assign(&number, key.sha256.ct_eq(sha256));
    }
    accepted.get(found.checked_sub(1)? as usize)
}

/// Returns the prefix-cache salt of a tenant. The first four bytes of the salt are the tenant's label in the metrics.
/// The label depends on the tenant's name alone, so the label stays the same when the server restarts. The other bytes
/// are secret.
fn salt(salt_key: &[u8; 32], tenant: &str) -> Salt {
    let label = blake3::derive_key("tiercel: label of a tenant in the metrics", tenant.as_bytes());
    let secret = blake3::keyed_hash(salt_key, tenant.as_bytes());
    let mut salt = [0; 16];
    salt[..4].copy_from_slice(&label[..4]);
    salt[4..].copy_from_slice(&secret.as_bytes()[..12]);
    Salt(salt)
}

/// Returns the token of an `Authorization` header value `Bearer TOKEN`; upper and lower case of `Bearer` do not matter.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests;
