//! The table of live requests, and the line about the selected one.

use super::Palette;
use crate::cli::ctl::duration;
use crate::cli::top::model::{Model, Query};
use crate::cli::top::sample::RequestRow;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Row, Table, TableState};

/// A column: its heading, its width, and the width of the terminal from which on it is shown.
struct Column {
    heading: &'static str,
    width: Constraint,
    from: u16,
    cell: fn(&RequestRow, Palette) -> Span<'static>,
}

const COLUMNS: [Column; 10] = [
    Column { heading: "SEQ", width: Constraint::Length(7), from: 0, cell: seq },
    Column { heading: "TIER", width: Constraint::Length(10), from: 0, cell: tier },
    Column { heading: "STATE", width: Constraint::Length(17), from: 0, cell: state },
    Column { heading: "AGE", width: Constraint::Length(6), from: 0, cell: age },
    Column { heading: "OUTPUT", width: Constraint::Length(11), from: 0, cell: output },
    Column { heading: "PREEMPTED", width: Constraint::Length(9), from: 100, cell: preempted },
    Column { heading: "BLOCKS", width: Constraint::Length(6), from: 100, cell: blocks },
    Column { heading: "SLACK", width: Constraint::Length(9), from: 0, cell: slack },
    Column { heading: "TENANT", width: Constraint::Min(8), from: 0, cell: tenant },
    Column { heading: "REQUEST ID", width: Constraint::Min(20), from: 120, cell: request_id },
];

/// Draws the heading and the table.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model, palette: Palette) {
    let [heading, table] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
    frame.render_widget(Line::styled(heading_of(model), palette.heading()), heading);
    let columns: Vec<&Column> = COLUMNS.iter().filter(|column| area.width >= column.from).collect();
    let rows = model
        .rows()
        .iter()
        .map(|row| Row::new(columns.iter().map(|column| Cell::from((column.cell)(row, palette)))));
    let names = columns.iter().map(|column| Cell::from(column.heading));
    let widget = Table::new(rows, columns.iter().map(|column| column.width))
        .header(Row::new(names).style(palette.heading()))
        .row_highlight_style(Palette::selected())
        .highlight_symbol("> ");
    let mut state = TableState::default().with_selected(model.place());
    frame.render_stateful_widget(widget, table, &mut state);
}

fn heading_of(model: &Model) -> String {
    let Query { tier, sort } = model.query;
    let which = tier.map_or("all tiers".to_owned(), |tier| format!("{tier} only"));
    let (total, shown) = match &model.sample {
        None => return format!("REQUESTS {which}, {}", sort.name()),
        Some(sample) => (sample.total, sample.rows.len()),
    };
    let part = if shown < total { format!("{shown} of {total}") } else { total.to_string() };
    format!("REQUESTS {part}: {which}, {}", sort.name())
}

/// Returns the line about the selected request.
pub(super) fn detail(model: &Model) -> Line<'static> {
    let Some(row) = model.selected() else { return Line::raw("no live request is selected") };
    let line = match row.position {
        Some(position) => format!(", position {position} in line"),
        None => String::new(),
    };
    let computed = row.computed_tokens.min(row.prompt_tokens);
    Line::raw(format!(
        "{}: request id {}, prompt {computed}/{}, {} blocks ({} on host), {} preemptions{line}",
        row.id,
        row.request_id,
        row.prompt_tokens,
        row.device_blocks,
        row.host_blocks,
        row.preemptions
    ))
}

fn seq(row: &RequestRow, _: Palette) -> Span<'static> {
    Span::raw(row.seq.to_string())
}

fn tier(row: &RequestRow, palette: Palette) -> Span<'static> {
    Span::styled(row.tier.name(), palette.tier(row.tier))
}

fn state(row: &RequestRow, _: Palette) -> Span<'static> {
    Span::raw(match (row.paused, row.slow_reader, row.late) {
        (true, _, _) => format!("{}, paused", row.state),
        (_, true, _) => format!("{}, slow", row.state),
        (_, _, true) => format!("{}, late", row.state),
        _ => row.state.clone(),
    })
}

fn age(row: &RequestRow, _: Palette) -> Span<'static> {
    Span::raw(duration(row.age_ms as f64 / 1e3))
}

fn output(row: &RequestRow, _: Palette) -> Span<'static> {
    Span::raw(format!("{}/{}", row.output_tokens, row.max_tokens))
}

fn preempted(row: &RequestRow, _: Palette) -> Span<'static> {
    Span::raw(row.preemptions.to_string())
}

fn blocks(row: &RequestRow, _: Palette) -> Span<'static> {
    Span::raw(row.device_blocks.to_string())
}

fn slack(row: &RequestRow, palette: Palette) -> Span<'static> {
    match row.slack_ms {
        None => Span::raw("-"),
        Some(ms) if ms < 0.0 => Span::styled(format!("{}!", duration(ms / 1e3)), palette.bad()),
        Some(ms) => Span::styled(duration(ms / 1e3), Style::new()),
    }
}

fn tenant(row: &RequestRow, _: Palette) -> Span<'static> {
    Span::raw(row.tenant.clone())
}

fn request_id(row: &RequestRow, _: Palette) -> Span<'static> {
    Span::raw(row.request_id.clone())
}
