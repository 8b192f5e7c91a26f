//! HTTP errors in the JSON form that OpenAI's clients read.

use actix_web::http::{StatusCode, header};
use actix_web::{HttpResponse, ResponseError};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt;
use tiercel_actors::{Refusal, RequestFault};
use utoipa::ToSchema;

/// Body of every answer with an error, as OpenAI's clients read it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    error: ErrorFacts,
}

/// Description of the error.
#[derive(Debug, Serialize, ToSchema)]
struct ErrorFacts {
    /// Description for people.
    message: String,
    /// Kind of the error, which depends on the status, such as `rate_limit_error`.
    r#type: &'static str,
    /// Field of the request's body that the error is about.
    #[schema(required)]
    param: Option<String>,
    /// Cause, for programs, such as `queue_full`.
    #[schema(required)]
    code: Option<&'static str>,
}

/// HTTP error that a request is answered with. Its body is `{"error": {"message", "type", "param", "code"}}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
    retry_after_ms: Option<u64>,
    /// Whether clients that retry automatically are told not to (header `x-should-retry: false`).
    is_final: bool,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            message: message.into(),
            param: None,
            code: None,
            retry_after_ms: None,
            is_final: false,
        }
    }

    /// Makes an HTTP error 400 about one field of the request's body, `param`.
    pub(crate) fn param(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message).about(param).code("invalid_value")
    }

    /// Makes an HTTP error 400 about a feature that this server does not have.
    pub(crate) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError::param(param, message).code("unsupported")
    }

    /// Makes an HTTP error 400: prompt and output do not fit into the context. The message repeats the error code,
    /// because clients that look for the code may see the message alone.
    pub(crate) fn too_long(param: &str, message: impl fmt::Display) -> ApiError {
        const CODE: &str = "context_length_exceeded";
        ApiError::param(param, format!("{message} ({CODE})")).code(CODE)
    }

    /// Makes an HTTP error 503: the server cannot serve now, and clients may retry after 1 s.
    pub(crate) fn unavailable(message: impl Into<String>, code: &'static str) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code(code).retry_after_ms(1_000)
    }

    /// Sets the field of the request's body that the error is about.
    pub(crate) fn about(mut self, param: impl Into<String>) -> ApiError {
        self.param = Some(param.into());
        self
    }

    /// Returns the error's code, which is the request's outcome in the access log.
    pub(crate) fn outcome(&self) -> Option<&'static str> {
        self.code
    }

    /// Returns whether the error refuses a valid request that could have been served at another time or by another
    /// server (status 429, 503 or 504).
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self.status.as_u16(), 429 | 503 | 504)
    }

    pub(crate) fn code(mut self, code: &'static str) -> ApiError {
        self.code = Some(code);
        self
    }

    /// Makes an HTTP error 429: the client may retry after `ms` milliseconds.
    fn too_many(message: String, code: &'static str, ms: u64) -> ApiError {
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).code(code).retry_after_ms(ms)
    }

    /// Makes an HTTP error 504: the first token cannot come within the patience (maximum wait) that the request itself
    /// states. Clients are told not to retry.
    fn out_of_patience(message: String) -> ApiError {
        let error = ApiError::new(StatusCode::GATEWAY_TIMEOUT, message).code("overloaded");
        ApiError { is_final: true, ..error }
    }

    pub(crate) fn retry_after_ms(mut self, ms: u64) -> ApiError {
        self.retry_after_ms = Some(ms);
        self
    }

    /// Returns OpenAI's type of the error, such as `rate_limit_error`, which depends on the status.
    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            400..500 => "invalid_request_error",
            _ => "server_error",
        }
    }

    /// Returns the JSON body of an answer with the error.
    pub(crate) fn body(&self) -> Value {
        let error = ErrorFacts {
            message: self.message.clone(),
            r#type: self.kind(),
            param: self.param.clone(),
            code: self.code,
        };
        json!(ErrorBody { error })
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl ResponseError for ApiError {
    fn status_code(&self) -> StatusCode {
        self.status
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status);
        if let Some(ms) = self.retry_after_ms {
            response.insert_header((header::RETRY_AFTER, ms.div_ceil(1000).to_string()));
            response.insert_header(("retry-after-ms", ms.to_string()));
            response.insert_header(("x-should-retry", "true"));
        }
        if self.is_final {
            response.insert_header(("x-should-retry", "false"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.insert_header((header::WWW_AUTHENTICATE, "Bearer"));
        }
        response.json(self.body())
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> ApiError {
        let message = refusal.to_string();
        match refusal {
            // The message says "on this server", because memory that is reserved for other tiers makes the longest
            // possible context shorter for some tiers than for others.
            Refusal::NeverFits(_) => ApiError::too_long(
                "max_tokens",
                format!(
                    "This model's maximum context length is exceeded on this server: {message}"
                ),
            ),
            Refusal::QueueFull { retry_after_ms, .. }
            | Refusal::ServerFull { retry_after_ms, .. } => {
                ApiError::too_many(message, "queue_full", retry_after_ms)
            }
            Refusal::OutOfPatience { .. } => ApiError::out_of_patience(message),
            Refusal::Late { retry_after_ms, .. } | Refusal::OverShare { retry_after_ms, .. } => {
                ApiError::too_many(message, "overloaded", retry_after_ms)
            }
            Refusal::ShuttingDown => ApiError::unavailable(message, "shutting_down"),
            Refusal::EngineStopped => ApiError::unavailable(message, "engine_stopped"),
        }
    }
}

impl From<RequestFault> for ApiError {
    fn from(fault: RequestFault) -> ApiError {
        let message = fault.to_string();
        match fault {
            RequestFault::OutOfPatience { stated: true, .. } => ApiError::out_of_patience(message),
            RequestFault::TurnedAway { retry_after_ms }
            | RequestFault::OutOfPatience { retry_after_ms, .. } => {
                ApiError::too_many(message, "overloaded", retry_after_ms)
            }
            RequestFault::Dropped => ApiError::unavailable(message, "preempted"),
            RequestFault::ShuttingDown => ApiError::unavailable(message, "drained"),
            // Tell clients not to retry: whoever cancelled the request does not want it to come back.
            RequestFault::Cancelled => {
                let error = ApiError::new(StatusCode::CONFLICT, message).code("cancelled");
                ApiError { is_final: true, ..error }
            }
            RequestFault::Stalled => {
                ApiError::new(StatusCode::REQUEST_TIMEOUT, message).code("stalled")
            }
            // The client's own grammar or schema ended the request, so a retry would fail too.
            RequestFault::Constraint(_) => {
                let error = ApiError::new(StatusCode::BAD_REQUEST, message);
                ApiError { is_final: true, ..error.code("constraint_failed") }
            }
            RequestFault::Model(_) => {
                ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message).code("model_error")
            }
            RequestFault::Step(_) => {
                ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message).code("device_error")
            }
        }
    }
}
