//! The routes of both listeners: one table for each, which is both served and described in the OpenAPI document.

use crate::control::query::Listing;
use crate::control::{
    Numbered, dashboard, keys, live as views, policy, recording, requests, server as whole,
    support, trace,
};
use crate::document::schema::path;
use crate::document::{Endpoint, document};
use crate::http::{Surface, pages};
use crate::openai;
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
const REQUEST_ID: &str =
    "Id of a request: the one in its response, its `X-Request-Id`, or the number of a sequence.";

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
    let own: Vec<Endpoint> = match surface {
        Surface::Public => generation().into_iter().chain(texts()).chain(own()).collect(),
        Surface::Control => {
            live().into_iter().chain(changes()).chain(recorded()).chain(server()).collect()
        }
    };
    let page = matches!(surface, Surface::Control).then(page).into_iter().flatten();
    own.into_iter().chain(page).chain(probes()).collect()
}

/// Routes of the live page's files, which need no key.
fn page() -> [Endpoint; 2] {
    [
        Endpoint::get("/dashboard", dashboard::page)
            .named("dashboard", "Returns the live page, for browsers.")
            .writes(("text/html", Type::String), "The page.")
            .open(),
        Endpoint::get("/dashboard/{file}", dashboard::file)
            .named(
                "dashboard_file",
                "Returns a script, the style sheet or the icon of the live page.",
            )
            .with([path("file", "Name of the file.")])
            .writes(("text/javascript", Type::String), "The file.")
            .writes(("text/css", Type::String), "The file.")
            .writes(("image/svg+xml", Type::String), "The file.")
            .fails([404])
            .open(),
    ]
}

/// Routes that generate text.
fn generation() -> [Endpoint; 2] {
    let failures = [403, 404, 409, 429, 500, 503, 504];
    [
        Endpoint::post("/v1/chat/completions", openai::chat)
            .named("create_chat_completion", "Answers a conversation.")
            .with(openai::generation_headers())
            .takes::<openai::ChatRequest>()
            .answers::<openai::ChatCompletion>(200, "The answer, or its event stream.")
            .streams::<openai::ChatCompletionChunk>(
                "The stream has pieces of the answer, then `[DONE]`.",
            )
            .fails(failures),
        Endpoint::post("/v1/completions", openai::completions)
            .named("create_completion", "Continues one or several texts.")
            .with(openai::generation_headers())
            .takes::<openai::TextRequest>()
            .answers::<openai::TextCompletion>(200, "The continuations, or their event stream.")
            .streams::<openai::TextCompletionChunk>(
                "The stream has pieces of the texts, then `[DONE]`.",
            )
            .fails(failures),
    ]
}

/// Routes about the model and its tokens.
fn texts() -> [Endpoint; 4] {
    [
        Endpoint::post("/tokenize", openai::tokenize)
            .named("tokenize", "Turns a text or a conversation into tokens.")
            .takes::<openai::TokenizeRequest>()
            .answers::<openai::Tokens>(200, "The tokens.")
            .fails([404, 429, 500, 503]),
        Endpoint::post("/detokenize", openai::detokenize)
            .named("detokenize", "Turns tokens into a text.")
            .takes::<openai::DetokenizeRequest>()
            .answers::<openai::Text>(200, "The text.")
            .fails([404, 503]),
        Endpoint::get("/v1/models", pages::models)
            .named("list_models", "Lists the served model under each of its names.")
            .answers::<pages::ModelList>(200, "The names.")
            .fails([503]),
        Endpoint::get("/v1/models/{id:.+}", pages::model)
            .named("retrieve_model", "Describes the served model under one of its names.")
            .with([path("id", "Name of the model, which may contain slashes.")])
            .answers::<pages::ModelCard>(200, "The model.")
            .fails([404, 503]),
    ]
}

/// Routes about the requests of the caller's tenant, and about steps.
fn own() -> [Endpoint; 3] {
    [
        Endpoint::get("/v1/requests", requests::own)
            .named("list_own_requests", "Lists the live requests of the caller's tenant.")
            .with(Listing::parameters())
            .answers::<requests::RequestList>(200, "The requests.")
            .fails([400, 503]),
        Endpoint::post("/v1/requests/{id}/cancel", requests::cancel_own)
            .named("cancel_own_request", "Cancels a request of the caller's tenant.")
            .with([path("id", REQUEST_ID)])
            .answers::<requests::RequestChanges>(200, "The request before the change.")
            .fails([404, 409, 503]),
        Endpoint::get("/debug/steps", pages::steps)
            .named("latest_steps", "Shows contents and times of the latest steps.")
            .with(pages::StepsQuery::parameters())
            .answers::<pages::LatestSteps<'_>>(200, "The steps.")
            .fails([400, 503]),
    ]
}

/// Routes of the control API that show and change requests.
fn live() -> [Endpoint; 6] {
    let change = |endpoint: Endpoint, name: &str, about: &str| {
        endpoint
            .named(name, about)
            .with([path("id", REQUEST_ID)])
            .answers::<requests::RequestChanges>(200, "The request before and after the change.")
            .fails([403, 404, 409, 503])
    };
    [
        Endpoint::get("/control/v1/requests", requests::list)
            .named("list_requests", "Lists live requests.")
            .with(Listing::parameters())
            .answers::<requests::RequestList>(200, "The requests.")
            .fails([400, 403, 503]),
        Endpoint::get("/control/v1/requests/{id}", requests::show)
            .named("show_request", "Shows the live requests with an id.")
            .with([path("id", REQUEST_ID)])
            .answers::<requests::RequestsShown>(200, "The requests.")
            .fails([403, 404, 503]),
        change(
            Endpoint::post("/control/v1/requests/{id}/reprioritize", requests::reprioritize),
            "reprioritize_request",
            "Changes the tier of a request, and its priority.",
        )
        .takes::<requests::Reprioritize>(),
        change(
            Endpoint::post("/control/v1/requests/{id}/pause", requests::pause),
            "pause_request",
            "Stops scheduling a request.",
        ),
        change(
            Endpoint::post("/control/v1/requests/{id}/resume", requests::resume),
            "resume_request",
            "Schedules a paused request again.",
        ),
        change(
            Endpoint::post("/control/v1/requests/{id}/cancel", requests::cancel),
            "cancel_request",
            "Ends a request with an error of code `cancelled`.",
        ),
    ]
}

/// Routes of the control API that change the server as a whole.
fn changes() -> [Endpoint; 3] {
    [
        Endpoint::get("/control/v1/policy", policy::get)
            .named("get_policy", "Shows the settings of the engine, and those that can be changed.")
            .answers::<policy::Settings>(200, "The settings.")
            .fails([403, 503]),
        Endpoint::patch("/control/v1/policy", policy::patch)
            .named("change_policy", "Changes settings, all or none.")
            .takes::<policy::SettingsChange>()
            .answers::<policy::SettingsChanged>(200, "The settings that were changed.")
            .fails([403, 503]),
        Endpoint::post("/control/v1/drain", whole::drain)
            .named("drain", "Refuses new requests, lets running ones finish, and stops the server.")
            .takes::<whole::DrainRequest>()
            .answers::<whole::Draining>(202, "The server drains.")
            .fails([403, 409, 503]),
    ]
}

/// Routes of the control API that record live traffic.
fn recorded() -> [Endpoint; 4] {
    [
        Endpoint::get("/control/v1/recording", recording::show)
            .named("show_recording", "Shows the state of the running or the last recording.")
            .answers::<recording::RecordingView>(200, "The recording.")
            .fails([403, 503]),
        Endpoint::post("/control/v1/recording", recording::start)
            .named("start_recording", "Begins a recording of live traffic, without its text.")
            .takes::<recording::RecordingRequest>()
            .answers::<recording::RecordingView>(200, "The recording.")
            .fails([403, 409, 503]),
        Endpoint::post("/control/v1/recording/stop", recording::stop)
            .named("stop_recording", "Ends the recording, which the server keeps.")
            .answers::<recording::RecordingView>(200, "The recording.")
            .fails([403, 404, 503]),
        Endpoint::get("/control/v1/recording/file", recording::file)
            .named(
                "fetch_recording",
                "Returns the recording, after its end; needs the role operator.",
            )
            .writes((recording::CONTENT_TYPE, Type::String), "JSON lines, a header first.")
            .fails([403, 404, 409, 500, 503]),
    ]
}

/// Routes of the control API that show the server as a whole.
fn server() -> [Endpoint; 7] {
    [
        Endpoint::get("/control/v1/keys", keys::list)
            .named("list_keys", "Lists the API keys in force, without the keys and their hashes.")
            .with(keys::Listing::parameters())
            .answers::<keys::KeyList>(200, "The keys.")
            .fails([400, 403, 503]),
        Endpoint::get("/control/v1/snapshot", support::snapshot)
            .named("snapshot", "Shows status, live requests, settings and targets, for support.")
            .answers::<support::SupportSnapshot<'_>>(200, "The document.")
            .fails([403, 503]),
        Endpoint::get("/control/v1/status", whole::status)
            .named("show_status", "Shows the stage of the server, queues and memory.")
            .answers::<whole::Status>(200, "The state of the server.")
            .fails([403, 503]),
        Endpoint::get("/control/v1/live", views::live)
            .named("show_live", "Shows what live views poll, at most some 64 KiB.")
            .answers::<views::LiveDocument<'_>>(200, "The state of the server.")
            .fails([403, 503]),
        Endpoint::get("/control/v1/events", whole::events)
            .named("listen_to_events", "Sends every change that operators make from now on.")
            .streams::<Numbered<'_>>("The changes. The stream ends with the server.")
            .fails([403, 429]),
        Endpoint::get("/control/v1/trace", trace::trace)
            .named("take_trace", "Takes a trace of steps, copies and requests, as a Perfetto file.")
            .with(trace::TraceQuery::parameters())
            .writes(("application/json", Type::Object), "Trace events in Chrome's JSON format.")
            .fails([400, 403, 409, 500, 503]),
        Endpoint::get("/load", whole::load)
            .named("show_load", "Shows what a router needs to choose between servers.")
            .answers::<whole::Load>(200, "The load.")
            .fails([403, 503]),
    ]
}

/// Routes for monitoring, and the document, which need no key.
fn probes() -> [Endpoint; 4] {
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
            let expected = page.chain(&["/health", "/metrics", "/openapi.json", "/ready"]);
            assert!(open.iter().eq(expected), "{open:?}");
            let security = if keyed { json!([{"key": []}]) } else { json!([{}, {"key": []}]) };
            for (method, path, operation) in closed {
                assert_eq!(operation["security"], security, "{method} {path}");
                assert!(operation["responses"].get("401").is_some(), "{method} {path}");
            }
        }
    }
}
