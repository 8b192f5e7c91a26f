//! The two listeners of a server.

use tiercel_config::MetricsAt;

/// What an HTTP server serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Surface {
    /// OpenAI's API, for clients.
    Public,
    /// The control API, for operators.
    Control,
}

impl Surface {
    /// Returns the word that settings and metrics have for the listener.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Surface::Public => "public",
            Surface::Control => "control",
        }
    }

    /// Whether the listener answers `/metrics`.
    pub(crate) fn has_metrics(self, setting: MetricsAt) -> bool {
        match setting {
            MetricsAt::Public => self == Surface::Public,
            MetricsAt::Control => self == Surface::Control,
            MetricsAt::Both => true,
        }
    }
}
