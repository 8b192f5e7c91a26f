//! Command-line flags of `tiercel serve`, made from the table of settings: one flag for each setting that names one.

use crate::cli::failure::Failure;
use crate::cli::log;
use clap::builder::{PossibleValuesParser, UnknownArgumentValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};
use std::path::PathBuf;
use tiercel_config::{FIELDS, Field, Kind, Loader, ServerSettings};

const CONFIG: &str = "TIERCEL_CONFIG";
/// Environment variables that begin with `TIERCEL_` but are not settings.
const RESERVED: [&str; 7] = [
    CONFIG,
    log::FILTER,
    "TIERCEL_CACHE_DIR",
    "TIERCEL_API_KEY",
    "TIERCEL_CONTROL_URL",
    "TIERCEL_CA_FILE",
    "TIERCEL_CONNECT",
];

/// Settings that the user gives on the command line: a settings file, flags, and assignments (`--set`).
#[derive(Debug, Default)]
pub(crate) struct SettingFlags {
    config: Option<PathBuf>,
    flags: Vec<(&'static Field, String)>,
    assignments: Vec<String>,
}

impl SettingFlags {
    /// Loads the settings from the defaults, the settings file, environment variables, command-line flags and
    /// assignments (`--set`); a later source overrides an earlier one. Returns the settings with warnings for the log,
    /// which starts only when the settings are known.
    pub(crate) fn load(&self) -> Result<(ServerSettings, Vec<String>), Failure> {
        let mut loader = Loader::default();
        if let Some(path) = &self.config {
            loader.file(path).map_err(Failure::usage)?;
        }
        // Skip environment variables that are not UTF-8, which cannot hold a setting. `TIERCEL_CONFIG` is read by clap
        // and may be any path.
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        loader.env(std::env::vars_os().filter_map(text), &RESERVED).map_err(Failure::usage)?;
        for (field, value) in &self.flags {
            let flag = format!("--{}", field.flag.unwrap_or_default());
            loader.flag(field, &flag, value).map_err(Failure::usage)?;
        }
        for assignment in &self.assignments {
            loader.assignment(assignment).map_err(Failure::usage)?;
        }
        loader.finish().map_err(Failure::usage)
    }
}

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut flags = SettingFlags::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.config = matches.get_one::<PathBuf>("config").cloned();
        self.assignments = matches.get_many("set").into_iter().flatten().cloned().collect();
        self.flags = FIELDS
            .iter()
            .filter_map(|field| {
                let values = matches.get_many::<String>(field.flag?)?;
                Some((field, values.cloned().collect::<Vec<_>>().join(",")))
            })
            .collect();
        Ok(())
    }
}

impl Args for SettingFlags {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .env(CONFIG)
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("Settings file (TOML)");
        let set = Arg::new("set")
            .long("set")
            .value_name("NAME=VALUE")
            .action(ArgAction::Append)
            .help("Any setting by its name, such as slo.premium.ttft_ms=150; may be repeated");
        let flags = FIELDS.iter().filter_map(|field| Some(flag(field, field.flag?)));
        command.arg(config).args(flags).arg(set).args(of_other_servers())
    }

    fn augment_args_for_update(command: Command) -> Command {
        SettingFlags::augment_args(command)
    }
}

fn flag(field: &'static Field, name: &'static str) -> Arg {
    let arg = Arg::new(name).long(name).help(field.help.as_str());
    match field.kind {
        Kind::Choice(words) => arg.value_parser(PossibleValuesParser::new(words)),
        Kind::Bool => arg
            .value_name("BOOL")
            .value_parser(PossibleValuesParser::new(["true", "false"]))
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
        Kind::List => arg.value_name(value_name(field.kind)).action(ArgAction::Append),
        _ => arg.value_name(value_name(field.kind)).allow_negative_numbers(true),
    }
}

fn value_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Address | Kind::Listener => "HOST:PORT",
        Kind::Model => "MODEL",
        Kind::File => "FILE",
        Kind::List => "NAME",
        Kind::Device => "auto|cpu|cuda|cuda:N|mock:PROFILE",
        Kind::Integer { .. } => "N",
        Kind::Number { .. } | Kind::Target | Kind::Bool | Kind::Choice(_) => "VALUE",
    }
}

/// Returns hidden flags that other inference servers have. Using one of them is an error that names the right flag or
/// setting.
fn of_other_servers() -> [Arg; 4] {
    let suggest = UnknownArgumentValueParser::suggest_arg;
    let listen = "--listen takes host and port, such as --listen 0.0.0.0:8080";
    let keys = "API keys are in a file of hashes, named by --keys-file; a key in plain text can be \
                stated by TIERCEL_HTTP_API_KEYS=KEY in the environment";
    [
        ("host", suggest("--listen").and_suggest(listen)),
        ("port", suggest("--listen").and_suggest(listen)),
        ("api-key", UnknownArgumentValueParser::suggest(keys)),
        ("served-model-name", suggest("--served-name")),
    ]
    .map(|(name, parser)| Arg::new(name).long(name).hide(true).value_parser(parser))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_variable_is_an_empty_list() {
        let keys = |text: &str| {
            let mut loader = Loader::default();
            loader.env([("TIERCEL_HTTP_API_KEYS".to_owned(), text.to_owned())], &RESERVED).unwrap();
            loader.finish().map(|(settings, _)| settings.http.api_keys)
        };
        assert_eq!(keys("").unwrap(), [""; 0]);
        assert_eq!(keys(" ").unwrap(), [""; 0]);
        assert_eq!(keys("a, b").unwrap(), ["a", "b"]);
        assert!(keys("a,").is_err(), "an empty key would let everyone in");
    }
}
