//! The routes of the control listener: the control API and the live page.

use crate::control::query::Listing;
use crate::control::{
    Numbered, dashboard, keys, live as views, policy, recording, requests, server as whole,
    support, trace,
};
use crate::document::Endpoint;
use crate::document::schema::path;
use utoipa::openapi::schema::Type;

/// Returns the routes that only the control listener has.
pub(super) fn endpoints() -> Vec<Endpoint> {
    live().into_iter().chain(changes()).chain(recorded()).chain(server()).chain(page()).collect()
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

/// Routes of the control API that show and change requests.
fn live() -> [Endpoint; 6] {
    let change = |endpoint: Endpoint, name: &str, about: &str| {
        endpoint
            .named(name, about)
            .with([path("id", requests::ID)])
            .answers::<requests::RequestChanges>(200, "The request before and after the change.")
            .fails([403, 404, 409, 503])
    };
    [
        Endpoint::get("/control/v1/requests", requests::list)
            .named("list_requests", "Lists live requests.")
            .with(Listing::parameters())
            .answers::<requests::RequestList<'_>>(200, "The requests.")
            .fails([400, 403, 503]),
        Endpoint::get("/control/v1/requests/{id}", requests::show)
            .named("show_request", "Shows the live requests with an id.")
            .with([path("id", requests::ID)])
            .answers::<requests::RequestsShown>(200, "The requests.")
            .fails([403, 404, 503]),
        change(
            Endpoint::post("/control/v1/requests/{id}/reprioritize", requests::reprioritize),
            "reprioritize_request",
            "Changes the tier of a request, and its priority, which is 0 if none is given.",
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
