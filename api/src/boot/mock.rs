//! Mock device with a vocabulary of bytes, which lets a server run without a model, for tests and demonstrations.

use crate::boot::BootError;
use crate::boot::model::Loaded;
use crate::text::Text;
use tiercel_config::{KvSettings, ServerSettings};
use tiercel_device::{Clock, MockDevice, MockOptions, MockProfile, SamplingParams};

/// Opens the mock device of the profile `profile` on the calling thread, which must run local tasks. Memory sizes in
/// the settings replace those of the profile, and `max_model_len` can only shorten the profile's context; a setting of
/// 0 changes nothing.
pub(crate) fn open(
    settings: &ServerSettings,
    profile: &str,
    clock: &Clock,
) -> Result<Loaded, BootError> {
    if let Some(model) = &settings.model.source {
        return Err(BootError::Device(format!(
            "the mock device mock:{profile} cannot run a model, such as {model}; leave out --model"
        )));
    }
    let profile =
        MockProfile::named(profile).map_err(|error| BootError::Device(error.to_string()))?;
    let block_size = settings.kv.block_size;
    if block_size != profile.block_size && block_size != KvSettings::default().block_size {
        return Err(BootError::Device(format!(
            "the mock device mock:{} has blocks of {} tokens; leave out --block-size {block_size}, or set \
             block_size in a profile of your own",
            profile.name, profile.block_size
        )));
    }
    let name = format!("mock-{}", profile.name);
    let hash = blake3::hash(format!("{profile:?}").as_bytes());
    let mut options = MockOptions::new(profile, clock.clone());
    let blocks = |mib: u64| u32::try_from((mib << 20) / options.block_bytes()).unwrap_or(u32::MAX);
    let (device_blocks, host_blocks) =
        (blocks(settings.kv.cache_mib), blocks(settings.kv.host_mib));
    if settings.kv.cache_mib > 0 {
        options.device_blocks = device_blocks.max(1);
    }
    if settings.kv.host_mib > 0 {
        options.host_blocks = host_blocks;
    }
    if settings.model.max_model_len > 0 {
        options.max_model_len = options.max_model_len.min(settings.model.max_model_len);
    }
    tracing::warn!(device = name, "serving a mock device, which returns made-up text");
    let text = Text::of_bytes();
    let sampling = SamplingParams::default();
    Ok(Loaded { device: MockDevice::open(options), text, name, hash, sampling })
}
