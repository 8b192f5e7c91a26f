//! Client of the control API.

use crate::cli::ctl::reach::Reach;
use crate::cli::failure::Failure;
use clap::Args;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::time::Duration;
use ureq::http::Response;
use ureq::{Agent, Body};

/// Longest wait of `tiercel ctl` for an answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Largest answer, bytes.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// Largest file that the server sends, bytes.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Flags that say where the control API is, and how to reach it.
#[derive(Debug, Args)]
pub(crate) struct Address {
    /// URL of the control API, as the server logs it when it is ready
    #[arg(
        long,
        value_name = "URL",
        env = "TIERCEL_CONTROL_URL",
        global = true,
        default_value = "http://127.0.0.1:8081"
    )]
    pub(crate) url: String,
    #[command(flatten)]
    reach: Reach,
}

impl Address {
    /// Makes a client of the control API at the address, with the key in `TIERCEL_API_KEY`, if there is one.
    ///
    /// # Errors
    /// If the file of certificates or the address of the server cannot be used.
    pub(crate) fn client(self) -> Result<Client, Failure> {
        self.client_within(TIMEOUT)
    }

    /// Makes a client like [`Address::client`], which waits at most `timeout` for a connection, and for the head of an
    /// answer.
    pub(crate) fn client_within(self, timeout: Duration) -> Result<Client, Failure> {
        let key = std::env::var("TIERCEL_API_KEY").ok();
        Client::new(&self.url, self.reach, key, timeout)
    }
}

/// Connection settings of a control API: its base URL, and the key to send.
#[derive(Clone)]
pub(crate) struct Client {
    agent: Agent,
    url: String,
    key: Option<String>,
}

/// Reason why a request to the control API failed.
pub(crate) enum Trouble {
    /// The server answered with an error.
    Refused(String),
    /// No server could be reached, or it hung up.
    Unreachable(String),
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Failure {
        match trouble {
            Trouble::Refused(message) | Trouble::Unreachable(message) => Failure::new(message),
        }
    }
}

impl Client {
    fn new(
        url: &str,
        reach: Reach,
        key: Option<String>,
        timeout: Duration,
    ) -> Result<Client, Failure> {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(timeout))
            .timeout_recv_response(Some(timeout));
        let url = url.trim_end_matches('/').to_owned();
        Ok(Client { agent: reach.agent(config)?, url, key })
    }

    /// Sends a GET request and returns the JSON of the answer.
    pub(crate) fn get(&self, path: &str, query: &[(&str, String)]) -> Result<Value, Trouble> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        for (name, value) in query {
            request = request.query(*name, value);
        }
        self.answer(self.with_key(request).call())
    }

    /// Sends a POST request with a JSON body and returns the JSON of the answer.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value, Trouble> {
        let request = self.with_key(self.agent.post(format!("{}{path}", self.url)));
        self.answer(request.content_type("application/json").send(body.to_string()))
    }

    /// Sends a PATCH request with a JSON body and returns the JSON of the answer.
    pub(crate) fn patch(&self, path: &str, body: &Value) -> Result<Value, Trouble> {
        let request = self.with_key(self.agent.patch(format!("{}{path}", self.url)));
        self.answer(request.content_type("application/json").send(body.to_string()))
    }

    /// Opens a stream of server-sent events and returns the data of each event, from now on. Data that is no JSON is
    /// returned as a text.
    pub(crate) fn listen(
        &self,
        path: &str,
    ) -> Result<impl Iterator<Item = Result<Value, Trouble>>, Trouble> {
        let request = self.with_key(self.agent.get(format!("{}{path}", self.url)));
        let response = self.checked(request.call())?;
        let lines = BufReader::new(response.into_body().into_reader()).lines();
        let ended = |error| Trouble::Refused(format!("the server ended the stream: {error}"));
        Ok(lines.filter_map(move |line| match line {
            Ok(line) => {
                let data = line.strip_prefix("data: ")?;
                Some(Ok(serde_json::from_str(data).unwrap_or_else(|_| data.into())))
            }
            Err(error) => Some(Err(ended(error))),
        }))
    }

    /// Sends a GET request and writes the body of the answer to `file`.
    pub(super) fn fetch(&self, path: &str, file: &mut impl Write) -> Result<(), Trouble> {
        let request = self.with_key(self.agent.get(format!("{}{path}", self.url)));
        let response = self.checked(request.call())?;
        let mut body = response.into_body().into_reader().take(MAX_FILE_BYTES + 1);
        let bytes = std::io::copy(&mut body, file);
        let bytes = bytes.map_err(|error| Trouble::Refused(format!("{path}: {error}")))?;
        if bytes > MAX_FILE_BYTES {
            let problem = format!("{path} has more than {MAX_FILE_BYTES} bytes");
            return Err(Trouble::Refused(problem));
        }
        Ok(())
    }

    fn with_key<T>(&self, request: ureq::RequestBuilder<T>) -> ureq::RequestBuilder<T> {
        match &self.key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    /// Sends a GET request and returns the text of the answer.
    pub(crate) fn get_text(&self, path: &str, query: &[(&str, String)]) -> Result<String, Trouble> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        for (name, value) in query {
            request = request.query(*name, value);
        }
        self.text(self.with_key(request).call())
    }

    fn text(&self, response: Result<Response<Body>, ureq::Error>) -> Result<String, Trouble> {
        let mut response = self.checked(response)?;
        let body = response.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_string();
        body.map_err(|error| self.unreachable(&error))
    }

    fn answer(&self, response: Result<Response<Body>, ureq::Error>) -> Result<Value, Trouble> {
        let text = self.text(response)?;
        serde_json::from_str(&text).map_err(|error| {
            Trouble::Refused(format!("{} did not answer with JSON: {error}", self.url))
        })
    }

    fn checked(
        &self,
        response: Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, Trouble> {
        let mut response = response.map_err(|error| self.unreachable(&error))?;
        let status = response.status().as_u16();
        if response.status().is_success() {
            return Ok(response);
        }
        let text = response.body_mut().read_to_string().unwrap_or_default();
        let json: Value = serde_json::from_str(&text).unwrap_or_default();
        let message = json["error"]["message"].as_str().unwrap_or("no message");
        let hint = match status {
            401 => "; put an API key of this server into TIERCEL_API_KEY",
            404 if json["error"]["code"] == "unknown_url" => {
                "; is this the address of the control API (http.control_listen)?"
            }
            _ => "",
        };
        Err(Trouble::Refused(format!("{message} (status {status}){hint}")))
    }

    fn unreachable(&self, error: &dyn std::fmt::Display) -> Trouble {
        let hint = if self.url.starts_with("https:") {
            "the URL must have a name of the server's certificate (--connect states another address of the server), and --ca \
             the certificate of a private authority, or a certificate that signed itself and is no authority's (CA:FALSE)"
        } else {
            "state its address with --url, as the server logs it when it is ready"
        };
        Trouble::Unreachable(format!(
            "cannot reach the control API at {}: {error}; {hint}",
            self.url
        ))
    }
}
