//! A terminal for tests: a window of tmux that runs one program.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Interval between two looks at the window.
const LOOK: Duration = Duration::from_millis(50);
/// Most looks for something that must happen: 30 s.
const LOOKS_MAX: u32 = 600;

/// Runs a program, writes the number of its process to a file, and says how it ended.
const WRAPPER: &str = "\
    file=$1; shift
    sh -c 'echo $$ >\"$0\"; exec \"$@\"' \"$file\" \"$@\"
    echo \"ended with $?.\"
    exec sleep 1000";

/// A window of a tmux server of its own. Dropping it ends the tmux server and the program.
pub(crate) struct Screen {
    folder: TempDir,
}

impl Screen {
    /// Runs a program in a window of 100 columns and 30 rows.
    pub(crate) fn run(program: &str, args: &[&str]) -> Screen {
        let screen = Screen { folder: TempDir::new().unwrap() };
        let file = screen.process_file();
        let begin = ["-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30"];
        let wrapped = ["sh", "-c", WRAPPER, "sh", file.to_str().unwrap(), program];
        screen.tmux(&begin.iter().chain(&wrapped).chain(args).copied().collect::<Vec<_>>());
        screen
    }

    /// Returns the number of the program's process.
    pub(crate) fn process(&self) -> String {
        std::fs::read_to_string(self.process_file()).unwrap().trim().to_owned()
    }

    fn process_file(&self) -> PathBuf {
        self.folder.path().join("process")
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

    /// Waits until the window shows `expected`, and returns the text of the window.
    ///
    /// # Panics
    /// If the window does not show the expected text within 30 s.
    pub(crate) fn wait_for(&self, expected: &str) -> String {
        self.wait_until(expected, |text| text.contains(expected))
    }

    /// Waits until `holds` holds for the window's text, and returns the text.
    ///
    /// # Panics
    /// If `holds` does not hold within 30 s; the message names `what`.
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

    /// Waits until the program has ended with this exit code; the terminal must be as it was before.
    pub(crate) fn ends_with(&self, code: u8) {
        self.wait_for(&format!("ended with {code}."));
        assert_eq!(self.value("alternate_on"), "0", "the view is still on the terminal");
        assert_eq!(self.value("cursor_flag"), "1", "the cursor is hidden");
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
