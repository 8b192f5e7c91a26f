//! The list of keys.

use super::Palette;
use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Clear, Paragraph};

const LINES: [&str; 17] = [
    "up, k / down, j    select a request (page up, page down, home, end too)",
    "r or +             raise it to the next higher tier",
    "l or -             lower it to the next lower tier",
    "p or space         pause it; again: resume it",
    "c                  cancel it, after a question",
    "t                  show one tier only; again: the next one",
    "s                  other order: slack, age, output, order of service",
    "u                  usage of the tenants; again: the requests",
    "escape             clear the last line",
    "q or ctrl-C        quit",
    "",
    "MET: share of a tier's requests that met their target. LEFT: share of",
    "the target that the slowest of 100 requests (P99) leaves, below 0 above",
    "the target; both of the latency that is worst. SLACK: time by which a",
    "request is ahead of its target. KV blocks: of premium (P), standard (S),",
    "background (B) and other (o) requests, cached (-), free (.). A ! marks",
    "what misses its target.",
];

/// Draws the list of keys over the view.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, palette: Palette) {
    let width = LINES.iter().map(|line| line.len()).max().unwrap_or(0) as u16 + 4;
    let place = area.centered(
        Constraint::Length(width.min(area.width)),
        Constraint::Length((LINES.len() as u16 + 2).min(area.height)),
    );
    let title = Line::styled(" Keys: any key closes this list ", palette.heading());
    let block = Block::bordered().title(title);
    let text = Text::from_iter(LINES.map(|line| Line::raw(format!(" {line}"))));
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(text).block(block), place);
}
