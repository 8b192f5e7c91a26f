//! Mock device with a vocabulary of bytes, which lets a server run without a model, for tests and demonstrations.

use crate::boot::BootError;
use crate::boot::model::{Loaded, with_temperature};
use crate::replies::Replies;
use crate::text::Text;
use std::path::Path;
use std::sync::Arc;
use tiercel_config::{KvSettings, ServerSettings};
use tiercel_device::{Clock, MockDevice, MockFaults, MockOptions, MockProfile, SamplingParams};

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
    let profile = MockProfile::named(profile).map_err(refused)?;
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
        (blocks(settings.kv.cache_mib), settings.kv.host_mib.map(blocks));
    if settings.kv.cache_mib > 0 {
        options.device_blocks = device_blocks.max(1);
    }
    options.host_blocks = host_blocks.unwrap_or(options.host_blocks);
    if settings.model.max_model_len > 0 {
        options.max_model_len = options.max_model_len.min(settings.model.max_model_len);
    }
    if let Some(path) = &settings.mock.faults_file {
        options.faults = MockFaults::from_file(Path::new(path)).map_err(refused)?;
    }
    let text = match &settings.mock.replies_file {
        Some(path) => {
            let replies = Arc::new(Replies::read(Path::new(path)).map_err(refused)?);
            let vocabulary = replies.vocabulary();
            options.vocab_size = options.vocab_size.max(vocabulary.len());
            tracing::warn!(
                device = name,
                replies = replies.len(),
                "serving a mock device, which returns the replies of {path}, and made-up text for other prompts"
            );
            options.script = Some(replies);
            Text::of_mock(vocabulary)
        }
        None => {
            tracing::warn!(device = name, "serving a mock device, which returns made-up text");
            Text::of_mock(Arc::default())
        }
    };
    let sampling = with_temperature(SamplingParams::default(), &settings.model);
    Ok(Loaded { device: MockDevice::open(options), text, name, hash, sampling })
}

fn refused(error: impl std::fmt::Display) -> BootError {
    BootError::Device(error.to_string())
}
