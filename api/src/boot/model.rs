//! Opens the model that the settings name: its device, its tokenizer and its default sampling parameters.

use crate::boot::{BootError, fingerprint};
use crate::text::Text;
use std::path::Path;
use tiercel_config::{DeviceKind, KvElement, ModelSettings, ServerSettings, Weights};
use tiercel_device::{Clock, Device, SamplingParams};
use tiercel_gpu::{KvType, WeightFormat, cuda};
use tiercel_model::generation::Recommended;
use tiercel_model::load::{self, DeviceChoice, GpuUse, KvCapacity, LoadError, LoadOptions};
use tiercel_model::source::{ModelFiles, ResolvedModel, Resolver, Stop};
use tiercel_model::tokenizer::TokenizerError;
use tiercel_model::weights::LoadProgress;
use tokio::sync::oneshot;

const MIB: u64 = 1 << 20;
/// Longest wait until a fetch of the model ends after it was told to stop, us.
const STOP_FETCHING_US: u64 = 3_000_000;

/// A loaded model: the device that runs it, its tokenizer and chat template, and its default sampling parameters.
pub(crate) struct Loaded {
    pub(crate) device: Device,
    pub(crate) text: Text,
    /// Default name of the model for clients, used unless the settings state other names.
    pub(crate) name: String,
    /// Hash of the model, for the system fingerprint.
    pub(crate) hash: blake3::Hash,
    /// Default sampling parameters, for those that a request leaves out.
    pub(crate) sampling: SamplingParams,
    /// Settings in effect: sizes of a step that no user states are the defaults of the chosen device.
    pub(crate) settings: ServerSettings,
}

/// Runs blocking work of several seconds on a thread of its own and awaits its result. Dropping the future does not end
/// the work.
pub(crate) async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BootError> + Send + 'static,
) -> Result<T, BootError> {
    let (done, result) = oneshot::channel();
    std::thread::Builder::new()
        .name("tiercel-load".into())
        // A failed send is ignored: the receiver is gone only if the program was told to stop, and then nobody needs
        // the result.
        .spawn(move || _ = done.send(work()))
        .map_err(|source| BootError::System { what: "the loading thread", source })?;
    result
        .await
        .map_err(|_| BootError::Model("loading the model panicked; see the message above".into()))?
}

/// Tells a fetch of the model to stop, and waits a few seconds for its end. A fetch by pip ends soon and leaves no
/// half-written file. A fetch from the Hugging Face hub is not stopped: it goes on until the process ends, and a later
/// fetch continues its files.
pub(crate) async fn stopped<T>(
    stop: &Stop,
    fetch: impl Future<Output = Result<T, BootError>>,
) -> Result<T, BootError> {
    stop.stop();
    let ended = Clock::wall().timeout_us(STOP_FETCHING_US, fetch).await;
    ended.unwrap_or_else(|| {
        Err(BootError::Model("the program was stopped before the model was fetched".into()))
    })
}

/// Finds the model that the settings name, fetches missing files, and opens the model on its device. Blocks.
pub(crate) fn load(settings: &ServerSettings, stop: Stop) -> Result<Loaded, BootError> {
    let ResolvedModel { files, name } = resolve(settings.model.source.as_deref(), stop)?;
    tracing::info!(model = name, path = %files.path().display(), "loading the model");
    let failed = |error: &dyn std::fmt::Display| {
        BootError::Model(format!("{}: {error}", files.path().display()))
    };
    // Read the tokenizer before the weights, which take long, so that an error in the tokenizer shows at once.
    let chat_template = settings.model.chat_template.as_deref().map(Path::new);
    let text = Text::of_model(&files, chat_template).map_err(|error| failed(&error))?;
    let hash = fingerprint::of_files(&files).map_err(|error| failed(&error))?;
    let sampling = match settings.model.generation_config {
        true => recommended(&files).map_err(|error| failed(&error))?,
        false => SamplingParams::default(),
    };
    let sampling = with_temperature(sampling, &settings.model);
    let mut tenths_told = 0;
    let mut tell = |progress: LoadProgress| {
        let tenths = progress.done * 10 / progress.total.max(1);
        if tenths > tenths_told {
            tenths_told = tenths;
            tracing::debug!(percent = tenths * 10, "packing the weights");
        }
    };
    let device = device(settings);
    let on_gpu = device != DeviceChoice::Cpu;
    let mut in_effect = if on_gpu { settings.on_gpu() } else { settings.clone() };
    let options = options(&in_effect, device);
    let loaded = load::load(&files, &options, &mut tell);
    let chosen = settings.device.kind == DeviceKind::Auto && on_gpu;
    let loaded = match loaded {
        // Fall back to the CPU: the device setting is `auto`, so the user did not insist on the GPU.
        Err(error) if chosen && error.is_of_device() => {
            tracing::warn!("the GPU cannot be used, so the CPU computes: {error}");
            in_effect = settings.clone();
            load::load(&files, &self::options(settings, DeviceChoice::Cpu), &mut |_| {})
        }
        loaded => loaded,
    };
    let loaded = loaded.map_err(|error| match error {
        // Report a CUDA error without the path of the model's files, because it is not about the files.
        LoadError::Cuda(error) => BootError::Model(error.to_string()),
        error => failed(&error),
    })?;
    let settings = in_effect;
    Ok(Loaded { device: loaded.device, text, name, hash, sampling, settings })
}

/// Returns the default sampling parameters: those that the checkpoint recommends, and OpenAI's defaults for the rest.
/// Logs them if they differ from OpenAI's defaults.
fn recommended(files: &ModelFiles) -> Result<SamplingParams, TokenizerError> {
    let Recommended { sampling, ignored } = Recommended::from_files(files)?;
    for problem in ignored {
        tracing::warn!("{problem}");
    }
    if sampling != SamplingParams::default() {
        let SamplingParams { temperature, top_k, top_p, min_p, repetition_penalty, .. } = sampling;
        tracing::info!(
            %temperature,
            top_k,
            %top_p,
            %min_p,
            %repetition_penalty,
            "default sampling parameters are taken from the checkpoint"
        );
    }
    Ok(sampling)
}

/// Returns `sampling` with the temperature of the setting `model.temperature`, if the setting is stated.
pub(crate) fn with_temperature(
    sampling: SamplingParams,
    settings: &ModelSettings,
) -> SamplingParams {
    let Some(temperature) = settings.temperature else { return sampling };
    tracing::info!(
        temperature,
        "requests that state no temperature have that of model.temperature"
    );
    SamplingParams { temperature: temperature as f32, ..sampling }
}

/// Finds the model `source` and fetches its missing files; `None` is the default model.
pub(crate) fn resolve(source: Option<&str>, stop: Stop) -> Result<ResolvedModel, BootError> {
    Resolver::from_env()
        .and_then(|resolver| resolver.stopped_by(stop).resolve(source))
        .map_err(|error| BootError::Model(error.to_string()))
}

/// Finds the default model, and reads its whole file to check the digest. Fetches a missing or damaged file.
pub(crate) fn verify_default(stop: Stop) -> Result<ResolvedModel, BootError> {
    Resolver::from_env()
        .and_then(|resolver| resolver.stopped_by(stop).verify_default())
        .map_err(|error| BootError::Model(error.to_string()))
}

/// Chooses the device that runs the model. With the setting `auto`: the first GPU if it can be used, otherwise the CPU.
/// Logs the reason if a GPU is present but cannot be used.
fn device(settings: &ServerSettings) -> DeviceChoice {
    let ordinal = match settings.device.kind {
        DeviceKind::Cuda(ordinal) => ordinal,
        DeviceKind::Auto if cuda::gpu_present() => match cuda::Context::open(0) {
            Ok(_) => 0,
            Err(error) => {
                tracing::warn!("the GPU cannot be used, so the CPU computes: {error}");
                return DeviceChoice::Cpu;
            }
        },
        DeviceKind::Auto | DeviceKind::Cpu | DeviceKind::Mock(_) => return DeviceChoice::Cpu,
    };
    DeviceChoice::Cuda {
        ordinal,
        usage: GpuUse {
            memory_share: f64::from(settings.device.memory_percent) / 100.0,
            exact: settings.device.exact,
            graphs: settings.device.graphs,
        },
        kernels: Resolver::from_env().ok().map(|resolver| resolver.kernels_dir()),
    }
}

fn options(settings: &ServerSettings, device: DeviceChoice) -> LoadOptions {
    let scheduler = &settings.engine.scheduler;
    LoadOptions {
        device,
        weights: match settings.model.weights {
            Weights::Auto => WeightFormat::Auto,
            Weights::F32 => WeightFormat::F32,
            Weights::Bf16 => WeightFormat::Bf16,
            Weights::Q8_0 => WeightFormat::Q8_0,
            Weights::Native => WeightFormat::Native,
        },
        kv_type: match settings.kv.element {
            KvElement::F32 => KvType::F32,
            KvElement::F16 => KvType::F16,
            KvElement::Bf16 => KvType::Bf16,
            KvElement::Q8 => KvType::Q8,
        },
        threads: settings.device.threads as usize,
        block_size: settings.kv.block_size as usize,
        kv_capacity: match settings.kv.cache_mib {
            0 => KvCapacity::Auto,
            mib => KvCapacity::Bytes(mib * MIB),
        },
        host_bytes: settings.kv.host_mib.map(|mib| mib * MIB),
        max_num_seqs: scheduler.max_num_seqs as usize,
        max_num_batched_tokens: scheduler.max_num_batched_tokens as usize,
        max_model_len: settings.model.max_model_len as usize,
        // Make room for the sampler state of every request that the engine may hold, and of 16 requests of the server
        // itself.
        max_sequences: settings.engine.admission.max_requests as usize + 16,
        steps_in_flight: scheduler.steps_in_flight,
    }
}
