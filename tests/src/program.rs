//! A Tiercel server that runs as a process of its own, as users start it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

/// A server that runs as a process. Dropping it kills the process.
pub struct Program {
    path: String,
    child: Child,
    address: SocketAddr,
    control_url: String,
    /// Thread that collects the rest of the log.
    log: Option<JoinHandle<Vec<String>>>,
}

impl Program {
    /// Starts `tiercel serve` with these arguments, on free ports, and waits until it is ready. `path` is the path of
    /// the program.
    ///
    /// # Panics
    /// If the server ends before it is ready; the panic shows its log.
    pub fn serve(path: &str, args: &[&str]) -> Program {
        Program::serve_in(path, args, &[])
    }

    /// Starts a server like [`Program::serve`], with these variables in its environment.
    ///
    /// # Panics
    /// The same as of [`Program::serve`].
    pub fn serve_in(path: &str, args: &[&str], variables: &[(&str, &str)]) -> Program {
        let ports = ["--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0"];
        let mut command = Command::new(path);
        command.arg("serve").args(ports).args(args).stderr(Stdio::piped());
        command.envs(variables.iter().copied());
        let mut child = command.env_remove("TIERCEL_LOG").env("NO_COLOR", "1").spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let (mut seen, mut address) = (Vec::new(), None);
        let control_url = loop {
            let Some(line) = lines.next() else { panic!("not ready: {}", seen.join("\n")) };
            let after = |mark: &str| {
                let rest = line.split_once(mark)?.1;
                rest.split_whitespace().next().map(str::to_owned)
            };
            address = after("address=").or(address);
            if let Some(url) = after("tiercel ctl --url ") {
                break url;
            }
            seen.push(line);
        };
        let address = address.unwrap().parse().unwrap();
        // Read the log to its end, because a server whose log nobody reads stands still.
        let log = std::thread::spawn(move || seen.into_iter().chain(lines).collect());
        Program { path: path.to_owned(), child, address, control_url, log: Some(log) }
    }

    /// Returns the id of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL of the server's control API.
    pub fn control_url(&self) -> &str {
        &self.control_url
    }

    /// Runs `tiercel ctl` with these arguments against the server.
    pub fn ctl(&self, args: &[&str]) -> Output {
        let mut command = Command::new(&self.path);
        command.args(["ctl", "--url", &self.control_url]).args(args);
        command.env_remove("TIERCEL_API_KEY").output().unwrap()
    }

    /// Sends SIGTERM to the process until the process ends, at most `most` times, 50 ms apart. Returns the exit code of
    /// the process; `None` if it still runs.
    ///
    /// # Panics
    /// If the operating system cannot send the signal.
    pub fn terminate(&mut self, most: u32) -> Option<i32> {
        for _ in 0..most {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            let id = self.id().to_string();
            assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
            std::thread::park_timeout(Duration::from_millis(50));
        }
        None
    }

    /// Waits for the end of the process, which must succeed, and returns the lines of its log.
    ///
    /// # Panics
    /// If the process ends with an error.
    pub fn log(mut self) -> Vec<String> {
        let status = self.child.wait().unwrap();
        let log = self.log.take().unwrap().join().unwrap();
        assert!(status.success(), "{status}: {}", log.join("\n"));
        log
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The process has ended already if a test waited for its log.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
