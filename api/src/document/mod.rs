//! The OpenAPI document of a listener's routes. The table of the routes (`http/routes`) holds endpoints with their
//! handlers and descriptions, so the same table is served and documented.

mod endpoint;
pub(crate) mod schema;

pub(crate) use endpoint::Endpoint;

use crate::http::ErrorBody;
use endpoint::KEY;
use std::collections::BTreeSet;
use utoipa::ToSchema;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, Content, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, PathItem,
    Paths, Ref, Response, ResponseBuilder,
};

/// What a status of an error means, for all endpoints.
const FAILURES: [(u16, &str); 13] = [
    (400, "The request is wrong. `param` names the field, if the fault is in one."),
    (401, "The server needs an API key, and the request has none, another one or an expired one."),
    (
        403,
        "The API key does not allow this; or the server has no API keys, and a web page of another origin sent the request.",
    ),
    (404, "There is no such model, no live request with this id, or no metrics on this listener."),
    (405, "The path takes other methods, which the header `Allow` names."),
    (408, "The body did not arrive in time, or the client did not read the answer in time."),
    (
        409,
        "The request was cancelled, several live requests have this id, or the server drains already.",
    ),
    (413, "The body is larger than the server allows."),
    (415, "The body is not `application/json` in UTF-8, or is compressed."),
    (
        429,
        "The server, a queue or a limit of the API key is full. `Retry-After` says when to try again.",
    ),
    (500, "The model, the device or the tokenizer failed on this request."),
    (
        503,
        "The server loads its model, drains, has no memory for the body, or has preempted the request for good.",
    ),
    (504, "The first token would come, or came, later than the request's own `max_wait_ms`."),
];

/// Makes the document of a listener: its name, what it is for, and its endpoints. `keyed` says whether the server has
/// API keys.
pub(crate) fn document(
    (title, about): (&str, &str),
    endpoints: &[Endpoint],
    keyed: bool,
) -> OpenApi {
    let mut paths = Paths::new();
    // Every path answers other methods with 405.
    let mut failures = BTreeSet::from([405]);
    let mut of_errors = Vec::new();
    ErrorBody::schemas(&mut of_errors);
    let mut components = ComponentsBuilder::new()
        .schema_from::<ErrorBody>()
        .schemas_from_iter(of_errors)
        .security_scheme(KEY, bearer());
    for endpoint in endpoints {
        let (operation, schemas, of_endpoint) = endpoint.describe(keyed);
        failures.extend(of_endpoint);
        components = components.schemas_from_iter(schemas.iter().cloned());
        let item = PathItem::new(endpoint.method.documented(), operation);
        paths.paths.entry(endpoint.documented_path()).or_default().merge_operations(item);
    }
    components = failures.into_iter().fold(components, |components, status| {
        components.response(status.to_string(), failure(status))
    });
    let license = LicenseBuilder::new().name("Apache-2.0").identifier(Some("Apache-2.0"));
    let info = InfoBuilder::new()
        .title(title)
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(about))
        .license(Some(license.build()));
    OpenApiBuilder::new().info(info).paths(paths).components(Some(components.build())).build()
}

fn bearer() -> SecurityScheme {
    let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer);
    let about = "An API key of the server. A server without keys serves requests without one.";
    SecurityScheme::Http(scheme.description(Some(about)).build())
}

/// Returns the answer with an error of this status.
fn failure(status: u16) -> Response {
    let about =
        FAILURES.iter().find(|(of, _)| *of == status).map_or("An error.", |(_, about)| about);
    let headers: &[(&str, &str)] = match status {
        401 => &[("WWW-Authenticate", "`Bearer`")],
        405 => &[("Allow", "Methods that the path takes.")],
        429 | 503 => &[
            ("Retry-After", "Time after which the client may try again, s."),
            ("retry-after-ms", "The same time, ms."),
        ],
        _ => &[],
    };
    let content = Content::new(Some(Ref::from_schema_name(ErrorBody::name())));
    let response = ResponseBuilder::new().description(about).content("application/json", content);
    let response = headers.iter().fold(response, |response, (name, about)| {
        let header = HeaderBuilder::new().schema(Some(schema::text(about)));
        response.header(*name, header.description(Some(*about)).build())
    });
    response.build()
}
