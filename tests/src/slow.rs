//! Profile of a mock device so slow that no long request of a test ends by itself within the test.

use std::io::Write;

/// Temporary profile file of a slow mock device: a step takes 50 ms, and a block has 16 tokens. By default the device
/// pool holds 64 blocks.
pub struct SlowProfile {
    file: tempfile::NamedTempFile,
}

impl Default for SlowProfile {
    fn default() -> Self {
        SlowProfile::with_blocks(64)
    }
}

impl SlowProfile {
    /// Writes the profile of a slow mock device whose pools hold `blocks` blocks each.
    pub fn with_blocks(blocks: u32) -> SlowProfile {
        let profile = format!(
            "\
            name = \"slow\"\nstep_base_us = 50000.0\ndecode_token_us = 1.0\nprefill_token_us = 1.0\n\
            kv_token_us = 0.0\nprefill_context_us = 0.0\nprefill_step_us = 0.0\n\
            link_bytes_per_s = 1e9\nkv_bytes_per_token = 4000\nblock_size = 16\ndevice_blocks = {blocks}\n\
            host_blocks = {blocks}\nvocab_size = 1000\nmax_model_len = 2048\nmax_steps_in_flight = 1\n"
        );
        let mut file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        file.write_all(profile.as_bytes()).unwrap();
        SlowProfile { file }
    }

    /// Returns the path of the slow profile's file, which `--device mock:NAME` accepts as NAME.
    pub fn name(&self) -> String {
        self.file.path().to_str().unwrap().to_owned()
    }
}
