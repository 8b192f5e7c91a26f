//! Settings of a mock device, and of the recording of answers for it.

use crate::{DeviceKind, Kind, SettingsError};

settings! {
    /// Settings of a mock device, and of the recording of answers for it.
    pub struct MockSettings {
        /// File with the texts of answers to certain prompts, for the mock device (docs/mock.md). Without this setting,
        /// and for other prompts, the mock device answers with made-up text.
        replies_file: Option<String> = None, as Kind::File, flag "replies";
        /// File with faults that the mock device injects into steps and copies (docs/mock.md).
        faults_file: Option<String> = None, as Kind::File, flag "faults";
        /// New file to which the server, on any device, writes its answers in the form that mock.replies_file reads
        /// (docs/mock.md). The file holds texts of users and texts of answers.
        record_file: Option<String> = None, as Kind::File, flag "record";
    }
}

impl MockSettings {
    /// Checks that only a mock device has replies and faults.
    pub(crate) fn check(&self, device: &DeviceKind) -> Result<(), SettingsError> {
        let refuse = |field| {
            let why = "needs a mock device; state one, for example --device mock:tiny";
            Err(SettingsError::Conflict { field, why })
        };
        match (device, self) {
            (DeviceKind::Mock(_), _) => Ok(()),
            (_, MockSettings { replies_file: Some(_), .. }) => refuse("mock.replies_file"),
            (_, MockSettings { faults_file: Some(_), .. }) => refuse("mock.faults_file"),
            _ => Ok(()),
        }
    }
}
