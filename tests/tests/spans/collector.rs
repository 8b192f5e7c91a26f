//! A collector of spans for tests: it takes what a server exports by OTLP over HTTP.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A collector that answers every request alike.
pub(crate) struct Collector {
    url: String,
    bodies: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Collector {
    /// Starts a collector that answers with this status, such as `200 OK`.
    pub(crate) fn start(status: &'static str) -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let taken = bodies.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let taken = taken.clone();
                std::thread::spawn(move || take(connection.unwrap(), status, &taken));
            }
        });
        Collector { url, bodies }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the number of requests so far.
    pub(crate) fn requests(&self) -> usize {
        self.bodies.lock().unwrap().len()
    }

    /// Returns the bytes of all requests so far.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.bodies.lock().unwrap().concat()
    }

    /// Returns the names of the services that have sent spans, and the spans.
    pub(crate) fn spans(&self) -> (Vec<String>, Vec<Span>) {
        let (mut services, mut spans) = (Vec::new(), Vec::new());
        for body in self.bodies.lock().unwrap().iter() {
            let request = ExportTraceServiceRequest::decode(&body[..]).unwrap();
            for of_resource in request.resource_spans {
                let attributes = of_resource.resource.unwrap().attributes;
                let name = attributes.iter().find(|attribute| attribute.key == "service.name");
                services.extend(name.and_then(|name| match name.value.clone()?.value? {
                    Value::StringValue(text) => Some(text),
                    _ => None,
                }));
                spans.extend(of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
            }
        }
        (services, spans)
    }
}

/// Answers the requests of a connection.
fn take(connection: TcpStream, status: &str, taken: &Mutex<Vec<Vec<u8>>>) {
    let mut reader = BufReader::new(&connection);
    loop {
        let (mut head, mut line) = (String::new(), String::new());
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            head += &line.to_ascii_lowercase();
        }
        assert!(head.starts_with("post /v1/traces "), "{head}");
        assert!(head.contains("content-type: application/x-protobuf"), "{head}");
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
        let mut body = vec![0; length.unwrap().parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        taken.lock().unwrap().push(body);
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        (&connection).write_all(answer.as_bytes()).unwrap();
    }
}

/// Returns an attribute of a span as text; of an array, its texts with commas between them.
pub(crate) fn attribute(span: &Span, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key == name)?;
    text(found.value.clone()?.value?)
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::StringValue(text) => Some(text),
        Value::IntValue(number) => Some(number.to_string()),
        Value::BoolValue(yes) => Some(yes.to_string()),
        Value::DoubleValue(number) => Some(number.to_string()),
        Value::ArrayValue(array) => {
            let texts: Vec<_> =
                array.values.into_iter().filter_map(|value| text(value.value?)).collect();
            Some(texts.join(","))
        }
        _ => None,
    }
}
