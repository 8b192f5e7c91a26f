//! Styles of the view. Each says by a word, a mark or a weight what it says by colour too, so that nothing is lost
//! without colours.

use ratatui::style::{Color, Modifier, Style};
use tiercel_device::Tier;

/// Whether the view uses colours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Palette {
    pub(crate) colour: bool,
}

impl Palette {
    /// Returns the palette that the environment asks for: no colours with `NO_COLOR`.
    pub(crate) fn of_environment() -> Palette {
        Palette { colour: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
    }

    fn of(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    pub(super) fn tier(self, tier: Tier) -> Style {
        match tier {
            Tier::Premium => self.of(Color::Magenta),
            Tier::Background => self.of(Color::DarkGray),
            Tier::System | Tier::Standard => Style::new(),
        }
    }

    /// Returns the style of a figure that is worse than its target, or of a failure; it is bold too.
    pub(super) fn bad(self) -> Style {
        self.of(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// Returns the style of headings.
    pub(super) fn heading(self) -> Style {
        self.of(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    /// Returns the style of a selected row, which has the mark `>` too.
    pub(super) fn selected() -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}
