//! Test server: a process `tiercel serve` with a mock device, its address, its answers and its log.

use crate::command::tiercel;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Stdio};

/// Test server: a process `tiercel serve` with a mock device, and the lines that it has logged.
pub(crate) struct Served {
    pub(crate) process: Child,
    pub(crate) log: BufReader<ChildStderr>,
    pub(crate) address: String,
    /// Lines that the server logged while it started, without the time; its address is replaced by ADDRESS.
    pub(crate) start: Vec<String>,
}

impl Served {
    pub(crate) fn start(args: &[&str]) -> Served {
        let all = [&["serve", "--device", "mock:tiny", "--listen", "127.0.0.1:0"], args].concat();
        let mut process = tiercel(&all).stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(process.stderr.take().unwrap());
        let mut served = Served { process, log, address: String::new(), start: Vec::new() };
        loop {
            let line = served.line();
            if let Some((_, address)) = line.split_once("address=") {
                served.address = address.to_owned();
            }
            let line = line.replace(&served.address, "ADDRESS");
            let last = line.starts_with("curl ");
            served.start.push(line);
            if last {
                return served;
            }
        }
    }

    /// Reads the next line of the server's log and returns it without its time stamp.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.log.read_line(&mut line).unwrap() > 0, "it ended: {:?}", self.start);
        let line = line.trim_end();
        line.split_once("Z ").map_or(line, |(_, rest)| rest).trim_start().to_owned()
    }

    /// Sends an HTTP request to the test server and returns the head and the body of the response.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> (String, String) {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        write!(
            socket,
            "{method} {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    /// Sends an HTTP request that must be answered with an error. Returns the error's status, code and message.
    pub(crate) fn error(&self, method: &str, path: &str, body: &Value) -> (u16, String, String) {
        let (head, body) = self.ask(method, path, &body.to_string());
        let error: Value = serde_json::from_str(&body).unwrap();
        let text = |field: &str| error["error"][field].as_str().unwrap().to_owned();
        (status(&head), text("code"), text("message"))
    }

    /// Stops the server with SIGTERM and returns the rest of its log, without time stamps.
    pub(crate) fn stop(mut self) -> Vec<String> {
        let kill = format!("kill -TERM {}", self.process.id());
        assert!(std::process::Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        let mut lines = Vec::new();
        loop {
            let line = self.line();
            if line == "INFO the server has stopped" {
                return lines;
            }
            lines.push(line);
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Kill the server process in case the test failed; otherwise it has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn status(head: &str) -> u16 {
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

pub(crate) fn completion(extra: Value) -> Value {
    let mut body = json!({"prompt": "x", "max_tokens": 3, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// Replaces durations and request ids in a log line by N, so that it can be compared.
pub(crate) fn without_figures(line: &str) -> String {
    let mut line = line.to_owned();
    for mark in ["ttft_ms=", "tpot_ms=", "total_ms=", " id=cmpl-", "request_id=req-", "retry in "] {
        if let Some((before, after)) = line.split_once(mark) {
            let rest = after.split_once(' ').map_or(String::new(), |(_, rest)| format!(" {rest}"));
            line = format!("{before}{mark}N{rest}");
        }
    }
    line
}
