//! Checks the origins whose web pages may use the server (setting `http.cors_origins`).

use crate::SettingsError;
use crate::listen::is_host;

/// Entry of the setting that stands for all origins.
const ALL: &str = "*";
/// Largest number of origins in the setting.
const MAX_ORIGINS: usize = 64;

/// Checks the setting `http.cors_origins`.
///
/// # Errors
/// If an origin is not in the form that browsers send, if `*` stands beside other origins, or if the setting has too
/// many origins.
pub(crate) fn check(origins: &[String]) -> Result<(), SettingsError> {
    let refuse = |why| Err(SettingsError::Conflict { field: "http.cors_origins", why });
    if origins.len() > MAX_ORIGINS {
        return refuse("holds more than 64 origins");
    }
    if origins.iter().any(|origin| origin == ALL) && origins.len() > 1 {
        return refuse("holds * beside other origins; state * alone, or only the others");
    }
    if !origins.iter().all(|origin| origin == ALL || is_origin(origin)) {
        return refuse(
            "holds a text that is no origin; write * for all, or SCHEME://HOST or SCHEME://HOST:PORT as browsers send \
             it: in lower case, without a path, and without :80 for http and :443 for https",
        );
    }
    Ok(())
}

/// Whether a text is an origin in the form of the header `Origin`. Browsers leave out the port that the scheme implies,
/// so an origin with this port would match no page.
fn is_origin(text: &str) -> bool {
    let Some((scheme, at)) = text.split_once("://") else { return false };
    let (host, port) = match at.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (at, None),
    };
    let of_scheme = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    let is_scheme =
        scheme.starts_with(|c: char| c.is_ascii_lowercase()) && scheme.chars().all(of_scheme);
    let is_port = port.is_none_or(|port| {
        port.parse::<u16>().is_ok_and(|number| number > 0 && number.to_string() == port)
    });
    let implied = matches!((scheme, port), ("http", Some("80")) | ("https", Some("443")));
    is_scheme
        && is_port
        && !implied
        && is_host(host)
        && !text.chars().any(|c| c.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(origins: &[&str]) -> bool {
        let origins: Vec<String> = origins.iter().map(|origin| origin.to_string()).collect();
        check(&origins).is_ok()
    }

    #[test]
    fn origins_are_as_browsers_send_them() {
        for origin in [
            "https://chat.example.org",
            "http://localhost:3000",
            "http://127.0.0.1",
            "http://[::1]:5173",
            "https://[2001:db8::1]",
            "app://obsidian.md",
            "tauri://localhost",
            "https://example.org:80",
        ] {
            assert!(passes(&[origin]), "{origin}");
        }
        for text in [
            "",
            "null",
            "example.org",
            "https://",
            "https://Example.org",
            "HTTPS://example.org",
            "https://example.org/",
            "https://example.org/page",
            "https://example.org:443",
            "http://example.org:80",
            "https://example.org:0",
            "https://example.org:08",
            "https://example.org:port",
            "https://example.org:70000",
            "https://*.example.org",
            "https://user@example.org",
            "://example.org",
            "https://example.org https://example.com",
        ] {
            assert!(!passes(&[text]), "{text}");
        }
    }

    #[test]
    fn all_origins_stand_alone() {
        assert!(passes(&[]) && passes(&["*"]));
        assert!(!passes(&["*", "https://example.org"]) && !passes(&["*", "*"]));
        let many: Vec<String> = (0..65).map(|at| format!("https://s{at}.example.org")).collect();
        assert!(check(&many[..64]).is_ok() && check(&many).is_err());
    }
}
