//! The routes of both listeners: one table for each, which is both served and described in the OpenAPI document.

mod control;
mod public;

use crate::document::{Endpoint, document};
use crate::http::{Surface, pages};
use actix_web::web::{self, Data};
use std::collections::BTreeMap;
use utoipa::openapi::OpenApi;
use utoipa::openapi::schema::Type;

const PUBLIC: (&str, &str) = (
    "Tiercel",
    "OpenAI's API with tiers, and the requests of the caller's tenant. Paths that take GET take HEAD too; any other \
     method gets a 405. Requests may have the header `X-Request-Id`, and every answer has it.",
);
const CONTROL: (&str, &str) = (
    "Tiercel control",
    "Operators see and change live requests and settings, and drain the server. An API key needs the role `viewer` for \
     GET, and `operator` for the other methods and for the file of a recording. Paths that take GET take HEAD too; any other method gets a 405.",
);

/// Registers the routes of a listener, and the answers to unknown paths and wrong methods. `keyed` says whether the
/// server has API keys.
pub(super) fn register(surface: Surface, keyed: bool, config: &mut web::ServiceConfig) {
    let endpoints = endpoints(surface);
    let document = described(surface, &endpoints, keyed);
    let json = document.to_json().expect("the keys of the document are texts");
    config.app_data(Data::new(pages::Document(json)));
    let mut paths: BTreeMap<&str, Vec<Endpoint>> = BTreeMap::new();
    for endpoint in endpoints {
        paths.entry(endpoint.path).or_default().push(endpoint);
    }
    for (path, endpoints) in paths {
        let allowed: Vec<&str> = endpoints.iter().map(|one| one.method.allowed()).collect();
        let allowed = allowed.join(", ");
        let other = web::to(move |request| pages::wrong_method(request, allowed.clone()));
        let resource = web::resource(path).default_service(other);
        config.service(
            endpoints.into_iter().fold(resource, |resource, one| resource.route(one.into_route())),
        );
    }
    config.default_service(web::to(pages::elsewhere));
}

fn described(surface: Surface, endpoints: &[Endpoint], keyed: bool) -> OpenApi {
    let about = match surface {
        Surface::Public => PUBLIC,
        Surface::Control => CONTROL,
    };
    document(about, endpoints, keyed)
}

fn endpoints(surface: Surface) -> Vec<Endpoint> {
    let own = match surface {
        Surface::Public => public::endpoints(),
        Surface::Control => control::endpoints(),
    };
    own.into_iter().chain(probes()).collect()
}

/// Routes for monitoring, and the document, which need no key.
fn probes() -> [Endpoint; 5] {
    let health = |path, name: &str| {
        Endpoint::get(path, pages::health)
            .named(name, "Answers 200 while requests can be served.")
            .answers::<pages::Health>(200, "Requests can be served.")
            .answers::<pages::Health>(503, "The server loads, drains, or does not answer.")
            .open()
    };
    [
        health("/health", "health"),
        health("/ready", "ready"),
        Endpoint::get("/metrics", pages::metrics)
            .named("metrics", "Shows metrics in Prometheus' text format.")
            .writes(("text/plain", Type::String), "The metrics.")
            .fails([404])
            .open(),
        Endpoint::get("/version", pages::version)
            .named("version", "Shows the version of the server.")
            .answers::<pages::Version>(200, "The version.")
            .open(),
        Endpoint::get("/openapi.json", pages::openapi)
            .named("openapi", "Returns this document.")
            .writes(("application/json", Type::Object), "The document.")
            .open(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::http::{Method, StatusCode, header};
    use actix_web::test::{TestRequest, call_service, init_service};
    use serde_json::{Value, json};
    use std::collections::BTreeSet;

    const SURFACES: [Surface; 2] = [Surface::Public, Surface::Control];

    fn document_of(surface: Surface, keyed: bool) -> Value {
        json!(described(surface, &endpoints(surface), keyed))
    }

    /// Returns the methods and paths of a document.
    fn operations(document: &Value) -> Vec<(String, String, &Value)> {
        let paths = document["paths"].as_object().unwrap().iter();
        let operations = paths.flat_map(|(path, item)| {
            let item = item.as_object().unwrap().iter();
            item.map(|(method, of)| (method.to_uppercase(), path.clone(), of))
        });
        operations.collect()
    }

    #[test]
    fn the_document_has_every_route_and_no_other() {
        actix_rt::System::new().block_on(async {
            for surface in SURFACES {
                let app = actix_web::App::new().configure(|it| register(surface, false, it));
                let app = init_service(app).await;
                let document = document_of(surface, false);
                let paths = document["paths"].as_object().unwrap();
                assert!(paths.len() > 10, "{paths:?}");
                for (path, item) in paths {
                    let uri = path.replace("{id}", "x").replace("{file}", "x");
                    let request = TestRequest::with_uri(&uri).method(Method::DELETE);
                    let answer = call_service(&app, request.to_request()).await;
                    assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED, "{path}");
                    let allowed = answer.headers().get(header::ALLOW).unwrap().to_str().unwrap();
                    let served: BTreeSet<&str> =
                        allowed.split(", ").filter(|method| *method != "HEAD").collect();
                    let documented = item.as_object().unwrap().keys();
                    let documented: BTreeSet<String> =
                        documented.map(|method| method.to_uppercase()).collect();
                    assert!(served.iter().eq(documented.iter()), "{path}: {allowed}");
                }
                let request = TestRequest::with_uri("/not/in/the/document").to_request();
                assert_eq!(call_service(&app, request).await.status(), StatusCode::NOT_FOUND);
            }
        });
    }

    #[test]
    fn every_reference_leads_to_a_component_and_names_of_operations_are_unique() {
        for surface in SURFACES {
            let document = document_of(surface, true);
            let text = document.to_string();
            for reference in text.split("\"$ref\":\"#").skip(1) {
                let pointer = reference.split('"').next().unwrap();
                assert!(document.pointer(pointer).is_some(), "{pointer}");
            }
            let operations = operations(&document);
            let names: BTreeSet<&str> =
                operations.iter().map(|(.., of)| of["operationId"].as_str().unwrap()).collect();
            assert_eq!(names.len(), operations.len());
        }
    }

    #[test]
    fn only_routes_for_monitoring_and_the_document_need_no_key() {
        for (surface, keyed) in SURFACES.into_iter().flat_map(|of| [(of, false), (of, true)]) {
            let document = document_of(surface, keyed);
            let (open, closed): (Vec<_>, Vec<_>) = operations(&document)
                .into_iter()
                .partition(|(.., operation)| operation.get("security").is_none());
            let open: BTreeSet<String> = open.into_iter().map(|(_, path, _)| path).collect();
            let page = ["/dashboard", "/dashboard/{file}"];
            let page = page.iter().filter(|_| surface == Surface::Control);
            let expected =
                page.chain(&["/health", "/metrics", "/openapi.json", "/ready", "/version"]);
            assert!(open.iter().eq(expected), "{open:?}");
            let security = if keyed { json!([{"key": []}]) } else { json!([{}, {"key": []}]) };
            for (method, path, operation) in closed {
                assert_eq!(operation["security"], security, "{method} {path}");
                assert!(operation["responses"].get("401").is_some(), "{method} {path}");
            }
        }
    }
}
