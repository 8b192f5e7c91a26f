//! Checks the form of an address that the server listens on: `HOST:PORT`.

use std::net::{IpAddr, Ipv6Addr};

/// Text in error messages that states the form of an address to listen on.
pub(crate) const FORM: &str = "HOST:PORT";
/// Port that is suggested to a user who gave an address without a port.
const PORT: u16 = 8080;

/// Whether a text has the form `HOST:PORT`. Whether the host exists shows only when the server listens on the address.
pub(crate) fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| is_host(host) && is_port(port))
}

/// Returns the text for an error message about an invalid address to listen on: the required form ([`FORM`]) and, if
/// there is a guess, the address that was probably meant.
pub(crate) fn expected(text: &str) -> String {
    let meant = meant(text.trim());
    meant.map_or(FORM.to_owned(), |meant| format!("{FORM}; did you mean {meant}?"))
}

/// Whether only programs of the same machine can reach an address of the form `HOST:PORT`. Of host names, only
/// `localhost` is known to be such an address.
pub fn is_loopback(text: &str) -> bool {
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

fn meant(text: &str) -> Option<String> {
    let without_scheme = text.split_once("://").map_or(text, |(_, rest)| rest);
    let text = without_scheme.split('/').next().unwrap_or_default();
    if is_address(text) {
        return Some(text.to_owned());
    }
    let is_ipv6 = |host: &str| host.parse::<Ipv6Addr>().is_ok();
    match text.rsplit_once(':') {
        None if is_port(text) => Some(format!("127.0.0.1:{text}")),
        None => is_host(text).then(|| format!("{text}:{PORT}")),
        Some(("", port)) if is_port(port) => Some(format!("0.0.0.0:{port}")),
        Some((host, port)) if is_ipv6(host) && is_port(port) => Some(format!("[{host}]:{port}")),
        Some(_) => is_ipv6(text).then(|| format!("[{text}]:{PORT}")),
    }
}

/// Whether the text is a host name, an IPv4 address, or an IPv6 address in brackets.
pub(crate) fn is_host(text: &str) -> bool {
    match text.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').is_some_and(|host| {
            host.split('%').next().is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
        }),
        None => {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            !text.is_empty() && text.chars().all(allowed)
        }
    }
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_this_machine_only() {
        for address in
            ["127.0.0.1:1", "127.8.0.1:0", "localhost:80", "[::1]:80", "[::ffff:127.0.0.1]:1"]
        {
            assert!(is_loopback(address), "{address}");
        }
        for address in
            ["0.0.0.0:1", "[::]:1", "10.0.0.1:80", "example.org:80", "localhost.example.org:80"]
        {
            assert!(!is_loopback(address), "{address}");
        }
    }

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for good in ["127.0.0.1:8080", "localhost:0", "[::1]:65535", "[fe80::1%eth0]:80", "a-b.c:1"]
        {
            assert!(is_address(good), "{good}");
        }
        for bad in ["8080", ":8080", "localhost", "a:", "a:65536", "a:+1", "::1:80", "a b:1", ""] {
            assert!(!is_address(bad), "{bad}");
        }
    }

    #[test]
    fn the_likely_address_is_suggested() {
        for (given, meant) in [
            ("8080", "127.0.0.1:8080"),
            (":8080", "0.0.0.0:8080"),
            ("localhost", "localhost:8080"),
            ("http://localhost:9000/v1", "localhost:9000"),
            ("::1", "[::1]:8080"),
            ("::1:9000", "[::1]:9000"),
        ] {
            assert_eq!(expected(given), format!("HOST:PORT; did you mean {meant}?"));
        }
        assert_eq!(expected("a:99999"), "HOST:PORT");
        assert_eq!(expected(""), "HOST:PORT");
    }
}
