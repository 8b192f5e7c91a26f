//! Where a request without a key comes from: a program, this listener's own page, or a page of another site in a
//! browser of this machine.
//!
//! A page of another site can make the browser send requests to the loopback address. The browser tells of it: it adds
//! the header `Origin` to every request that could change something, and `Sec-Fetch-Site` to all of them. A page of a
//! host whose owner points its name to this machine (DNS rebinding) is of the same origin for the browser, but its
//! requests have that name in the header `Host`.

use crate::http::ApiError;
use actix_web::HttpRequest;
use actix_web::http::{StatusCode, header};
use tiercel_config::is_loopback;

/// Header in which browsers say how the page that sent a request is related to the server.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// Refuses a request that a page of another site may have sent. The request may come from a program, or from a page of
/// this listener: then `Origin` is the listener's own, with the scheme of the listener (`tls`) and the host and port
/// that are in `Host`. In either case `Host` is a name of this machine that nobody else can give out.
///
/// # Errors
/// 403 for such a request.
pub(super) fn refuse_other_sites(request: &HttpRequest, tls: bool) -> Result<(), ApiError> {
    let text = |name: &str| {
        let mut values = texts(request, name);
        (values.next(), values.next().is_some())
    };
    let (host, several_hosts) = text(header::HOST.as_str());
    let (origin, several_origins) = text(header::ORIGIN.as_str());
    let (site, _) = text(SEC_FETCH_SITE);
    let is_own = |origin: &str| {
        let scheme = if tls { "https" } else { "http" };
        let parts = origin.split_once("://").zip(host);
        parts.is_some_and(|((of, at), host)| of == scheme && at.eq_ignore_ascii_case(host))
    };
    if host.is_some_and(is_loopback)
        && !several_hosts
        && !several_origins
        && origin.is_none_or(is_own)
        && site.is_none_or(|site| matches!(site, "same-origin" | "none"))
    {
        return Ok(());
    }
    let message = "without API keys only programs of this machine and the server's own page (/dashboard) may use the \
                   control API, at 127.0.0.1 or localhost; pages of other sites may not";
    Err(ApiError::new(StatusCode::FORBIDDEN, message).code("local_only"))
}

/// Refuses a request to the public listener that a web page of another origin sent. Such a page can send some requests
/// without asking the server for leave (CORS), and the requests would have their effects although the page cannot read
/// the answers. `listed` are the origins of `http.cors_origins`. A page has the listener's own origin if `Origin` and
/// `Host` name the same host and port. Then `Host` must be a name of this machine that nobody else can give out, unless
/// `anonymous` (`http.allow_anonymous`) lets in other machines too. Origins of other schemes than `http` and `https`
/// belong to programs, such as extensions of browsers.
///
/// # Errors
/// 403 for such a request.
pub(super) fn refuse_other_pages(
    request: &HttpRequest,
    (listed, anonymous): (&[String], bool),
) -> Result<(), ApiError> {
    let hosts: Vec<&str> = texts(request, header::HOST.as_str()).collect();
    let allowed = |origin: &str| {
        let own = |at: &str| {
            hosts.len() == 1
                && at.eq_ignore_ascii_case(hosts[0])
                && (anonymous || is_loopback(hosts[0]))
        };
        listed.iter().any(|of| of == "*" || of == origin)
            || match origin.split_once("://") {
                Some(("http" | "https", at)) => own(at),
                Some(_) => true,
                None => false,
            }
    };
    let Some(other) = texts(request, header::ORIGIN.as_str()).find(|origin| !allowed(origin))
    else {
        return Ok(());
    };
    let short: String = other.chars().take(100).collect();
    let message = format!(
        "a web page of the origin {short:?} sent this request; without API keys only pages of the origins in \
         http.cors_origins (--cors-origin) may use this server"
    );
    Err(ApiError::new(StatusCode::FORBIDDEN, message).code("origin_not_allowed"))
}

/// Returns the values of a header, each empty if it is not a visible text.
fn texts<'a>(request: &'a HttpRequest, name: &str) -> impl Iterator<Item = &'a str> {
    request.headers().get_all(name).map(|value| value.to_str().unwrap_or(""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::test::TestRequest;

    fn allowed(tls: bool, headers: &[(&str, &str)]) -> bool {
        let request = headers.iter().fold(TestRequest::default(), |request, (name, value)| {
            request.append_header((*name, *value))
        });
        refuse_other_sites(&request.to_http_request(), tls).is_ok()
    }

    #[test]
    fn programs_of_this_machine_may_and_names_of_others_may_not() {
        for host in ["127.0.0.1:8081", "localhost:8081", "[::1]:8081", "LOCALHOST", "127.9.9.9:1"] {
            assert!(allowed(false, &[("host", host)]), "{host}");
        }
        for host in [
            "example.org",
            "example.org:8081",
            "127.0.0.1.example.org:8081",
            "",
            "192.168.1.2:8081",
        ] {
            assert!(!allowed(false, &[("host", host)]), "{host}");
            let own = format!("http://{host}");
            assert!(!allowed(false, &[("host", host), ("origin", &own)]), "rebound: {host}");
        }
        assert!(!allowed(false, &[]));
        assert!(!allowed(false, &[("host", "localhost:1"), ("host", "example.org")]));
    }

    #[test]
    fn only_the_origin_of_the_listener_itself_may() {
        let host = ("host", "localhost:8081");
        let from = |origin| allowed(false, &[host, ("origin", origin)]);
        assert!(from("http://localhost:8081") && from("http://LOCALHOST:8081"));
        for origin in [
            "https://localhost:8081",
            "http://localhost:8080",
            "http://localhost",
            "http://127.0.0.1:8081",
            "http://localhost:8081.example.org",
            "http://localhost:8081/",
            "http://user@localhost:8081",
            "https://example.org",
            "localhost:8081",
            "null",
            "",
        ] {
            assert!(!from(origin), "{origin}");
        }
        assert!(allowed(true, &[host, ("origin", "https://localhost:8081")]));
        assert!(!allowed(true, &[host, ("origin", "http://localhost:8081")]));
        let twice = [host, ("origin", "http://localhost:8081"), ("origin", "https://example.org")];
        assert!(!allowed(false, &twice));
    }

    #[test]
    fn requests_that_the_browser_calls_those_of_another_site_may_not() {
        let from = |site| allowed(false, &[("host", "localhost:8081"), ("sec-fetch-site", site)]);
        assert!(from("same-origin") && from("none"));
        assert!(!from("same-site") && !from("cross-site") && !from(""));
    }

    /// Returns whether a request to the public listener at `host` with these values of `Origin` is let in.
    fn page_allowed(host: &str, origins: &[&str], (listed, anonymous): (&[&str], bool)) -> bool {
        let request = origins
            .iter()
            .fold(TestRequest::default(), |request, origin| {
                request.append_header(("origin", *origin))
            })
            .append_header(("host", host))
            .to_http_request();
        let listed: Vec<String> = listed.iter().map(|origin| (*origin).to_owned()).collect();
        refuse_other_pages(&request, (&listed, anonymous)).is_ok()
    }

    #[test]
    fn programs_and_pages_of_listed_origins_may_use_the_public_listener_and_other_pages_may_not() {
        let from = |origins: &[&str], listed: &[&str]| {
            page_allowed("localhost:8080", origins, (listed, false))
        };
        assert!(from(&[], &[]), "a program");
        assert!(from(&["http://localhost:8080"], &[]), "a page of the listener itself");
        assert!(from(&["chrome-extension://abcdef"], &[]), "an extension");
        let other = "https://example.org";
        assert!(!from(&[other], &[]) && from(&[other], &[other]) && from(&[other], &["*"]));
        assert!(!from(&[other, "https://evil.org"], &[other]), "two origins");
        for origin in ["null", "", "http://localhost:3000", "http://localhost:8080.evil.org"] {
            assert!(!from(&[origin], &[other]), "{origin}");
        }
    }

    #[test]
    fn a_page_of_a_name_that_points_to_this_machine_needs_an_open_server() {
        let from = |host: &str, anonymous| {
            page_allowed(host, &[&format!("http://{host}")], (&[], anonymous))
        };
        assert!(from("127.0.0.1:8080", false));
        assert!(!from("example.org:8080", false), "rebound");
        assert!(from("example.org:8080", true));
    }
}
