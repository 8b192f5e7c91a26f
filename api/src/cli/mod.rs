//! The command line. Invalid arguments and settings, and unreadable input files such as workloads and traces, exit with
//! code 2, all other failures with code 1. A failure prints one line on stderr; only clap's own errors have several.

mod bench;
mod calibrate;
mod ctl;
mod failure;
mod fuzz;
mod log;
mod parent;
mod policy;
mod pull;
mod recording;
mod replay;
mod report_file;
mod serve;
mod settings;
mod signals;
mod simulate;
mod top;
mod trace;

use crate::cli::failure::Failure;
use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tiercel_config::LogFormat;

const ABOUT: &str =
    "LLM inference server that keeps latency targets, those of the most important requests first";

const EXAMPLES: &str = "\
Examples:
  tiercel serve                                 serve SmolLM2-135M-Instruct on 127.0.0.1:8080
  tiercel serve --model ./model.gguf            serve a local GGUF file
  tiercel serve --device mock:tiny              try out clients: made-up text, no model
  tiercel ctl requests                          list the live requests of a running server
  tiercel top                                   watch a running server in the terminal
  tiercel ctl what-if --policy fcfs --minutes 5      what another policy would have done
  tiercel pull hf:Qwen/Qwen3-0.6B               download a model before the first start
  tiercel bench --url http://127.0.0.1:8080 --workload load.toml --json result.json
  tiercel simulate --workload benches/workloads/w2-memory-tight.toml --policy fcfs,tiercel
  tiercel trace show run.trace --request 17          print the events of one simulated request";

#[derive(Debug, Parser)]
#[command(name = "tiercel", version, about = ABOUT, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    Ctl(ctl::Ctl),
    Top(top::Top),
    Pull(pull::Pull),
    Bench(bench::Bench),
    Simulate(Box<simulate::Simulate>),
    Policy(policy::PolicyCommand),
    Trace(trace::Trace),
}

/// Parses the process's arguments and runs the command that they name.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match &cli.command {
        // The settings of a server say which form its log has, so the log starts when they are loaded.
        Command::Serve(_) => {}
        Command::Simulate(_) | Command::Bench(_) => log::start(log::SIMULATION, LogFormat::Text),
        Command::Top(_) => log::start(log::VIEW, LogFormat::Text),
        _ => log::start(log::SERVER, LogFormat::Text),
    }
    let done = match cli.command {
        Command::Serve(serve) => serve.run(),
        Command::Ctl(ctl) => ctl.run(),
        Command::Top(top) => top.run(),
        Command::Pull(pull) => pull.run(),
        Command::Bench(bench) => bench.run(),
        Command::Simulate(simulate) => simulate.run(),
        Command::Policy(policy) => policy.run(),
        Command::Trace(trace) => trace.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { message, code }) => {
            // Join an error message of several lines, as libraries may produce it, into one line.
            let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
            eprintln!("tiercel: {line}");
            ExitCode::from(code)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
