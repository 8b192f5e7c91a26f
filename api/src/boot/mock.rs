//! Mock device with a vocabulary of bytes, which lets a server run without a model, for tests and demonstrations.

use crate::boot::BootError;
use crate::boot::model::{Loaded, with_temperature};
use crate::replies::Replies;
use crate::text::Text;
use std::path::Path;
use std::sync::Arc;
use tiercel_config::{KvSettings, ServerSettings};
use tiercel_device::{
    Clock, MASK_WAIT_US, MockDevice, MockFaults, MockOptions, MockProfile, SamplingParams,
};

/// Opens the mock device of the profile `profile` on the calling thread, which must run local tasks. The settings
/// `kv.cache_mib` and `kv.host_mib` replace the memory sizes of the profile, and `model.max_model_len` can only shorten
/// the context of the profile. `kv.cache_mib` and `model.max_model_len` change nothing if they are 0, and `kv.host_mib`
/// changes nothing if it is not stated; 0 stands for no host pool.
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
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("{profile:?}").as_bytes());
    let mut options = MockOptions::new(profile, clock.clone());
    options.mask_wait_us = Some(MASK_WAIT_US);
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
    let replies = replies(settings, &name)?;
    let vocabulary = replies.as_ref().map(Replies::vocabulary).unwrap_or_default();
    if let Some(replies) = replies {
        options.vocab_size = options.vocab_size.max(vocabulary.len());
        hasher.update(replies.hash().as_bytes());
        options.script = Some(Arc::new(replies));
    }
    let chat_template = settings.model.chat_template.as_deref().map(Path::new);
    let text = Text::of_mock(vocabulary, chat_template).map_err(refused)?;
    let sampling = with_temperature(SamplingParams::default(), &settings.model);
    let (device, hash) = (MockDevice::open(options), hasher.finalize());
    Ok(Loaded { device, text, name, hash, sampling, settings: settings.clone() })
}

/// Reads the replies that the settings name, and logs what the mock device `device` answers with.
fn replies(settings: &ServerSettings, device: &str) -> Result<Option<Replies>, BootError> {
    let Some(path) = &settings.mock.replies_file else {
        tracing::warn!(device, "serving a mock device, which returns made-up text");
        return Ok(None);
    };
    let replies = Replies::read(Path::new(path)).map_err(refused)?;
    tracing::warn!(
        device,
        replies = replies.len(),
        "serving a mock device, which returns the replies of {path}, and made-up text for other prompts"
    );
    Ok(Some(replies))
}

fn refused(error: impl std::fmt::Display) -> BootError {
    BootError::Device(error.to_string())
}
