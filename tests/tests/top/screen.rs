//! A terminal for tests: a window of tmux that runs one program.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Interval between two looks at the window.
const LOOK: Duration = Duration::from_millis(50);
/// Most looks for something that must happen: 30 s.
const LOOKS_MAX: u32 = 600;

/// A window of a tmux server of its own. Dropping it ends the tmux server and the program.
pub(crate) struct Screen {
    folder: TempDir,
}

impl Screen {
    /// Runs a program in a window of 100 columns and 30 rows. The window stays when the program ends.
    pub(crate) fn run(program: &str, args: &[&str]) -> Screen {
        let screen = Screen { folder: TempDir::new().unwrap() };
        let begin = ["-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", program];
        let stay = [";", "set-option", "-w", "remain-on-exit", "on"];
        screen.tmux(&begin.iter().chain(args).chain(&stay).copied().collect::<Vec<_>>());
        screen
    }

    /// Presses a key, by its name in tmux.
    pub(crate) fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// Gives the window another size.
    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        let (columns, rows) = (columns.to_string(), rows.to_string());
        self.tmux(&["resize-window", "-x", &columns, "-y", &rows]);
    }

    /// Returns the text in the window.
    pub(crate) fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Returns a value of the window, by the name of its variable in tmux.
    pub(crate) fn value(&self, name: &str) -> String {
        self.tmux(&["display-message", "-p", &format!("#{{{name}}}")]).trim().to_owned()
    }

    /// Waits until the window shows `expected`, and returns its text.
    ///
    /// # Panics
    /// If that does not happen within 30 s.
    pub(crate) fn wait_for(&self, expected: &str) -> String {
        self.wait_until(expected, |text| text.contains(expected))
    }

    /// Waits until `holds` holds for the window's text, and returns the text.
    ///
    /// # Panics
    /// If that does not happen within 30 s.
    pub(crate) fn wait_until(&self, what: &str, holds: impl Fn(&str) -> bool) -> String {
        for _ in 0..LOOKS_MAX {
            let text = self.text();
            if holds(&text) {
                return text;
            }
            std::thread::park_timeout(LOOK);
        }
        panic!("not seen: {what}\n{}", self.text());
    }

    /// Waits until the program has ended, and returns its exit code; the terminal must be as it was before.
    pub(crate) fn end(&self) -> String {
        for _ in 0..LOOKS_MAX {
            let (status, signal) = (self.value("pane_dead_status"), self.value("pane_dead_signal"));
            if status.is_empty() && signal.is_empty() {
                std::thread::park_timeout(LOOK);
                continue;
            }
            assert_eq!(signal, "", "a signal ended the program");
            assert_eq!(self.value("alternate_on"), "0", "the view is still on the terminal");
            return status;
        }
        panic!("the program goes on:\n{}", self.text());
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("tmux")
    }

    fn tmux(&self, args: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(self.socket()).args(args);
        command.env_remove("TMUX").env_remove("TIERCEL_API_KEY").env_remove("NO_COLOR");
        let output = command.output().expect("tmux is installed");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The tmux server may have ended already.
        let _ = Command::new("tmux").arg("-S").arg(self.socket()).arg("kill-server").output();
    }
}
