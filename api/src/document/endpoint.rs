//! Endpoints: a method of a path, with its handler and its description for the OpenAPI document.

use actix_web::{FromRequest, Handler, Responder, Route, guard, web};
use std::collections::BTreeMap;
use utoipa::openapi::path::{HttpMethod, Operation, Parameter};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{Schema, Type};
use utoipa::openapi::security::SecurityRequirement;
use utoipa::openapi::{Content, ObjectBuilder, Ref, RefOr, Required, Response, ResponsesBuilder};
use utoipa::{PartialSchema, ToSchema};

/// Name of the security scheme: an API key as a bearer token.
pub(super) const KEY: &str = "key";
/// Statuses of a request whose JSON body is wrong, late, too large or of another type, or finds no memory.
const BODY_FAILURES: [u16; 6] = [400, 408, 413, 415, 429, 503];

/// Schemas by their names.
pub(super) type Schemas = Vec<(String, RefOr<Schema>)>;

/// Methods of endpoints. An endpoint for GET answers HEAD too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Post,
    Patch,
}

impl Method {
    /// Returns the method's names for the header `Allow`.
    pub(crate) fn allowed(self) -> &'static str {
        match self {
            Method::Get => "GET, HEAD",
            Method::Post => "POST",
            Method::Patch => "PATCH",
        }
    }

    pub(super) fn documented(self) -> HttpMethod {
        match self {
            Method::Get => HttpMethod::Get,
            Method::Post => HttpMethod::Post,
            Method::Patch => HttpMethod::Patch,
        }
    }
}

/// A method of a path: its handler, and what the document says of it.
pub(crate) struct Endpoint {
    pub(crate) method: Method,
    /// Path with its parameters, as actix matches it.
    pub(crate) path: &'static str,
    route: Route,
    operation: Operation,
    responses: BTreeMap<u16, Response>,
    failures: Vec<u16>,
    needs_key: bool,
    schemas: Schemas,
}

impl Endpoint {
    /// Makes the endpoint of GET, and of HEAD, for which actix leaves out the body of the answer.
    pub(crate) fn get<F, Args>(path: &'static str, handler: F) -> Endpoint
    where
        F: Handler<Args>,
        Args: FromRequest + 'static,
        F::Output: Responder + 'static,
    {
        let route = web::route().guard(guard::Any(guard::Get()).or(guard::Head()));
        Endpoint::new(Method::Get, path, route.to(handler))
    }

    /// Makes an endpoint of POST.
    pub(crate) fn post<F, Args>(path: &'static str, handler: F) -> Endpoint
    where
        F: Handler<Args>,
        Args: FromRequest + 'static,
        F::Output: Responder + 'static,
    {
        Endpoint::new(Method::Post, path, web::post().to(handler))
    }

    /// Makes an endpoint of PATCH.
    pub(crate) fn patch<F, Args>(path: &'static str, handler: F) -> Endpoint
    where
        F: Handler<Args>,
        Args: FromRequest + 'static,
        F::Output: Responder + 'static,
    {
        Endpoint::new(Method::Patch, path, web::patch().to(handler))
    }

    fn new(method: Method, path: &'static str, route: Route) -> Endpoint {
        Endpoint {
            method,
            path,
            route,
            operation: Operation::new(),
            responses: BTreeMap::new(),
            failures: vec![401],
            needs_key: true,
            schemas: Schemas::new(),
        }
    }

    /// Names the operation for client generators, and says what it does.
    pub(crate) fn named(mut self, name: &str, about: &str) -> Endpoint {
        self.operation.operation_id = Some(name.to_owned());
        self.operation.summary = Some(about.to_owned());
        self
    }

    /// Adds parameters of the path, the query or the headers.
    pub(crate) fn with(mut self, parameters: impl IntoIterator<Item = Parameter>) -> Endpoint {
        let parameters = parameters.into_iter().map(RefOr::T);
        self.operation.parameters.get_or_insert_default().extend(parameters);
        self
    }

    /// Says that the endpoint needs a JSON body of this type, with the statuses of bodies that are wrong.
    pub(crate) fn takes<T: ToSchema + PartialSchema>(mut self) -> Endpoint {
        let content = Content::new(Some(self.reference::<T>()));
        let body = RequestBodyBuilder::new()
            .content("application/json", content)
            .required(Some(Required::True));
        self.operation.request_body = Some(body.build().into());
        self.fails(BODY_FAILURES)
    }

    /// Says that a success has this status and a JSON body of this type.
    pub(crate) fn answers<T: ToSchema + PartialSchema>(
        mut self,
        status: u16,
        about: &str,
    ) -> Endpoint {
        let content = Content::new(Some(self.reference::<T>()));
        self.content(status, "application/json", content).description = about.to_owned();
        self
    }

    /// Says that the answer is an event stream whose events have data of the JSON type `T`, or that it is one if the
    /// request asks for it. The media type has no schema, because OpenAPI 3.1 has none for events.
    pub(crate) fn streams<T: ToSchema + PartialSchema>(mut self, about: &str) -> Endpoint {
        let Ref { ref_location, .. } = self.reference::<T>();
        let response = self.content(200, "text/event-stream", Content::default());
        let before = &response.description;
        let space = if before.is_empty() { "" } else { " " };
        response.description = format!(
            "{before}{space}{about} The data of an event is JSON of the schema `{ref_location}`."
        );
        self
    }

    /// Says that the answer has this media type and a body of any form.
    pub(crate) fn writes(mut self, (media_type, form): (&str, Type), about: &str) -> Endpoint {
        let content = Content::new(Some(ObjectBuilder::new().schema_type(form)));
        self.content(200, media_type, content).description = about.to_owned();
        self
    }

    /// Adds statuses of answers with an error.
    pub(crate) fn fails(mut self, statuses: impl IntoIterator<Item = u16>) -> Endpoint {
        self.failures.extend(statuses);
        self
    }

    /// Says that the endpoint needs no API key.
    pub(crate) fn open(mut self) -> Endpoint {
        self.needs_key = false;
        self.failures.retain(|status| *status != 401);
        self
    }

    fn content(&mut self, status: u16, media_type: &str, content: Content) -> &mut Response {
        let response = self.responses.entry(status).or_default();
        response.content.insert(media_type.to_owned(), content.into());
        response
    }

    /// Adds the schema of a type, and of the types in it, to the document's; returns a reference to the schema.
    fn reference<T: ToSchema + PartialSchema>(&mut self) -> Ref {
        self.schemas.push((T::name().into_owned(), T::schema()));
        T::schemas(&mut self.schemas);
        Ref::from_schema_name(T::name())
    }

    /// Returns the path as the document writes it: parameters without their patterns.
    pub(crate) fn documented_path(&self) -> String {
        let mut parts = self.path.split('{');
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |path, part| {
            let (parameter, rest) = part.split_once('}').unwrap_or((part, ""));
            let name = parameter.split(':').next().unwrap_or_default();
            format!("{path}{{{name}}}{rest}")
        })
    }

    /// Returns the operation of the document, the schemas that it refers to and the statuses of its errors. `keyed`
    /// says whether the server has API keys; without them every client is served.
    pub(super) fn describe(&self, keyed: bool) -> (Operation, &Schemas, &[u16]) {
        let responses = self.responses.iter();
        let responses = responses.fold(ResponsesBuilder::new(), |all, (status, response)| {
            all.response(status.to_string(), response.clone())
        });
        let responses = self.failures.iter().fold(responses, |all, status| {
            all.response(status.to_string(), Ref::from_response_name(status.to_string()))
        });
        let mut operation = self.operation.clone();
        operation.responses = responses.build();
        if self.needs_key {
            let key = SecurityRequirement::new::<_, [&str; 0], &str>(KEY, []);
            let none = (!keyed).then(SecurityRequirement::default);
            operation.security = Some(none.into_iter().chain([key]).collect());
        }
        (operation, &self.schemas, &self.failures)
    }

    /// Returns the route of the endpoint.
    pub(crate) fn into_route(self) -> Route {
        self.route
    }
}
