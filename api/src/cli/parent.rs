//! Ends a process with the process that started it.

use std::io;

/// Exit code of a process whose parent has ended.
const ORPHANED: i32 = 1;

/// Ends this process when its standard input ends or cannot be read. The standard input is a pipe that the parent holds
/// and never writes to, so this process ends with the parent, even if a signal ends the parent.
///
/// # Errors
/// If the thread that reads the standard input cannot be started.
pub(super) fn end_with_stdin() -> io::Result<()> {
    let watch = || {
        // Ignore an error: a standard input that cannot be read has ended.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        std::process::exit(ORPHANED);
    };
    std::thread::Builder::new().name("tiercel-parent".into()).spawn(watch).map(drop)
}
