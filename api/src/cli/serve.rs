//! The command `tiercel serve`: serves a model over OpenAI's API.

use crate::boot;
use crate::cli::failure::Failure;
use crate::cli::log;
use crate::cli::settings::SettingFlags;
use clap::Args;

const EXAMPLES: &str = "\
A setting has the value of its flag, otherwise of its TIERCEL_... environment variable, otherwise of the
file that --config names, otherwise its default. docs/configuration.md lists all settings.

Examples:
  tiercel serve
  tiercel serve --model ./SmolLM2-135M-Instruct.Q4_1.gguf --threads 2 --kv-cache-mib 1024
  tiercel serve --config tiercel.toml --listen 0.0.0.0:8080 --keys-file keys.toml --access-log
  tiercel serve --model hf:Qwen/Qwen3-0.6B --served-name qwen --served-name gpt-4o-mini
  tiercel serve --device mock:tiny --replies replies.toml
  TIERCEL_SCHEDULER_POLICY=fcfs tiercel serve --model hf:Qwen/Qwen3-0.6B

  curl -N http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"stream\": true, \"temperature\": 0, \"max_tokens\": 256, \"messages\": [{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}]}'

GET /health answers 200 as soon as the server accepts requests. After SIGTERM or ctrl-C the server lets
running requests finish; a second signal ends it at once.";

/// Serve a model over OpenAI's API.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    #[command(flatten)]
    settings: SettingFlags,
}

impl Serve {
    pub(crate) fn run(self) -> Result<(), Failure> {
        // Load the settings before any runtime or thread pool exists, because they say how large these are.
        let (settings, warnings) = self.settings.load()?;
        log::start(log::SERVER, settings.http.log_format);
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        boot::serve(settings).map_err(Failure::new)
    }
}
