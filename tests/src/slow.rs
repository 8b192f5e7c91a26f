//! Profile of a mock device so slow that no long request of a test ends by itself within the test.

use std::io::Write;

/// Temporary profile file of a slow mock device: a step takes 50 ms, and the device pool holds 64 blocks of 16 tokens.
pub struct SlowProfile {
    file: tempfile::NamedTempFile,
}

impl Default for SlowProfile {
    fn default() -> Self {
        let profile = "\
            name = \"slow\"\nstep_base_us = 50000.0\ndecode_token_us = 1.0\nprefill_token_us = 1.0\n\
            kv_token_us = 0.0\nprefill_context_us = 0.0\nprefill_step_us = 0.0\n\
            link_bytes_per_s = 1e9\nkv_bytes_per_token = 4000\nblock_size = 16\ndevice_blocks = 64\n\
            host_blocks = 64\nvocab_size = 1000\nmax_model_len = 2048\nmax_steps_in_flight = 1\n";
        let mut file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        file.write_all(profile.as_bytes()).unwrap();
        SlowProfile { file }
    }
}

impl SlowProfile {
    /// Returns the path of the slow profile's file, which `--device mock:NAME` accepts as NAME.
    pub fn name(&self) -> String {
        self.file.path().to_str().unwrap().to_owned()
    }
}
