//! The table of tenants: the live requests of each tenant, and the tokens and device time that the tenant used since
//! the start of the server.

use super::Palette;
use crate::cli::ctl::duration;
use crate::cli::top::model::Model;
use crate::cli::top::sample::{TenantRow, TenantUse};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table};

const HEADINGS: [&str; 8] =
    ["TENANT", "RUNS", "WAITS", "BLOCKS", "PROMPT", "OUTPUT", "DEVICE", "MINUTE"];
const WIDTHS: [Constraint; 8] = [
    Constraint::Min(8),
    Constraint::Length(5),
    Constraint::Length(5),
    Constraint::Length(6),
    Constraint::Length(10),
    Constraint::Length(10),
    Constraint::Length(7),
    Constraint::Length(6),
];

/// Draws the heading and the table.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model, palette: Palette) {
    let [heading, table] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
    let (total, rows) = match &model.sample {
        None => (0, &[][..]),
        Some(sample) => (sample.tenants_total, sample.tenants.as_slice()),
    };
    let part =
        if rows.len() < total { format!("{} of {total}", rows.len()) } else { total.to_string() };
    let text = format!("TENANTS {part}: most blocks, then most device time, first");
    frame.render_widget(Line::styled(text, palette.heading()), heading);
    let names = HEADINGS.map(Cell::from);
    let widget = Table::new(rows.iter().map(row), WIDTHS)
        .header(Row::new(names).style(palette.heading()))
        .column_spacing(1);
    frame.render_widget(widget, table);
}

fn row(tenant: &TenantRow) -> Row<'static> {
    let used = |text: fn(&TenantUse) -> String| tenant.used.as_ref().map_or("-".to_owned(), text);
    Row::new([
        tenant.tenant.clone(),
        tenant.running.to_string(),
        (tenant.waiting + tenant.preempted).to_string(),
        tenant.device_blocks.to_string(),
        used(|used| used.prompt_tokens.to_string()),
        used(|used| used.output_tokens.to_string()),
        used(|used| duration(used.device_s)),
        used(|used| format!("{:.0}%", used.recent_share * 100.0)),
    ])
}
