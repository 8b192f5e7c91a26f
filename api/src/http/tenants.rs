//! Tenants: checks API keys and finds the tenant that a request belongs to. Only requests of one tenant share
//! prefix-cache blocks.

use crate::http::ApiError;
use actix_web::HttpRequest;
use actix_web::http::{StatusCode, header};
use tiercel_policy::blocks::Salt;

/// All tenants of the server. A request's bearer token decides its tenant; all requests without a token belong to one
/// anonymous tenant.
pub(crate) struct Tenants {
    /// Key of the hash that turns API keys into salts of the prefix cache; random per process, so that no client can
    /// compute another tenant's salt.
    key: [u8; 32],
    /// Hashes of the accepted API keys; if the list is empty, every client is accepted. Hashes are compared in constant
    /// time.
    accepted: Vec<blake3::Hash>,
}

impl Tenants {
    pub(crate) fn new(api_keys: &[String]) -> Tenants {
        let key = rand::random();
        let hash = |api_key: &String| blake3::keyed_hash(&key, api_key.as_bytes());
        Tenants { accepted: api_keys.iter().map(hash).collect(), key }
    }

    /// Logs for each API key the label that its tenant has in the metrics, because the keys themselves must not appear
    /// as labels.
    pub(crate) fn log_labels(&self) {
        for (index, hash) in self.accepted.iter().enumerate() {
            tracing::info!(
                key = index + 1,
                tenant = salt_of(hash).label(),
                "an API key (http.api_keys) stands for this tenant"
            );
        }
    }

    /// Checks the request's API key and returns the prefix-cache salt of its tenant.
    ///
    /// # Errors
    /// 401 if this server requires an API key and the request has none of the accepted keys.
    pub(crate) fn salt(&self, request: &HttpRequest) -> Result<Salt, ApiError> {
        let token = request
            .headers()
            .get(header::AUTHORIZATION)
            .and_then(|value| bearer(value.as_bytes()))
            .unwrap_or_default();
        let hash = blake3::keyed_hash(&self.key, token);
        if !self.accepted.is_empty() && !self.accepted.contains(&hash) {
            let message = if token.is_empty() {
                "this server wants an API key; send the header `Authorization: Bearer KEY`"
            } else {
                "the API key is not one of this server's"
            };
            return Err(ApiError::new(StatusCode::UNAUTHORIZED, message).code("invalid_api_key"));
        }
        Ok(salt_of(&hash))
    }
}

fn salt_of(hash: &blake3::Hash) -> Salt {
    let mut salt = [0; 16];
    salt.copy_from_slice(&hash.as_bytes()[..16]);
    Salt(salt)
}

/// Returns the token of an `Authorization` header value `Bearer TOKEN`; upper and lower case of `Bearer` do not matter.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::test::TestRequest;

    fn request(authorization: &str) -> HttpRequest {
        TestRequest::default()
            .insert_header((header::AUTHORIZATION, authorization))
            .to_http_request()
    }

    #[test]
    fn tokens_tell_tenants_apart() {
        let tenants = Tenants::new(&[]);
        let salt = |authorization| tenants.salt(&request(authorization)).unwrap();
        assert_eq!(salt("Bearer a"), salt("bearer  a"));
        assert_ne!(salt("Bearer a"), salt("Bearer b"));
        let anonymous = tenants.salt(&TestRequest::default().to_http_request()).unwrap();
        assert_eq!(salt("Basic eDp5"), anonymous);
        assert_ne!(salt("Bearer a"), anonymous);
        assert_ne!(Tenants::new(&[]).salt(&request("Bearer a")).unwrap(), salt("Bearer a"));
    }

    #[test]
    fn a_server_with_keys_wants_one_of_them() {
        let tenants = Tenants::new(&["k1".into(), "k2".into()]);
        assert!(tenants.salt(&request("Bearer k2")).is_ok());
        for wrong in ["Bearer k3", "k1", "Bearer ", ""] {
            assert!(tenants.salt(&request(wrong)).is_err(), "{wrong}");
        }
    }
}
