//! The upper part of the view: the server, its speed, its pools and its tiers.

use super::Palette;
use crate::cli::ctl::duration;
use crate::cli::top::model::{Link, Model};
use crate::cli::top::sample::{Latency, Pool, TierRow};
use ratatui::layout::Constraint;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Row, Table};

/// Lines of the table of tiers: a heading, and three tiers.
pub(super) const TIER_LINES: u16 = 4;
/// Width of a latency: its 99th percentile and its target.
const LATENCY_WIDTH: u16 = 17;
/// Width of the terminal from which on there is room for all three latencies.
const WIDE: u16 = 100;
/// Age of the figures, us, from which the title names it.
const OLD_US: u64 = 3_000_000;

/// Returns the title: which server, in which stage, and whether the connection is lost.
pub(super) fn title(model: &Model, palette: Palette) -> Line<'static> {
    let mut parts = vec![
        Span::styled("tiercel top", palette.heading()),
        Span::raw(format!("  {}  ", model.url)),
    ];
    match (&model.link, &model.sample) {
        (Link::Lost(_), None) => parts.push(Span::styled("NO FIGURES", palette.bad())),
        (_, None) => parts.push(Span::raw("connecting ...")),
        (link, Some(sample)) => {
            let requests = format!("{} of {} requests", sample.requests, sample.max_requests);
            let stage = match sample.stage.as_str() {
                "draining" => Span::styled("DRAINING  ", palette.bad()),
                stage => Span::raw(format!("{stage}  ")),
            };
            let age_us = model.now.since_us(sample.at);
            if matches!(link, Link::Lost(_)) {
                let text = format!("CONNECTION LOST, figures are {} old", age(age_us));
                parts.push(Span::styled(text, palette.bad()));
            } else if age_us >= OLD_US {
                let text = format!("NO ANSWER for {}", age(age_us));
                parts.push(Span::styled(text, palette.bad()));
            } else {
                parts.extend([stage, Span::raw(requests)]);
            }
        }
    }
    Line::from(parts)
}

fn age(us: u64) -> String {
    format!("{} s", us / 1_000_000)
}

/// Returns the line of the server's speed over the last seconds.
pub(super) fn speeds(model: &Model, palette: Palette) -> Line<'static> {
    let rates = model.rates();
    let shown = |value: Option<f64>, digits: usize| {
        value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let of_step = rates.step_ms.map_or("-".to_owned(), |ms| format!("{ms:.1} ms"));
    Line::from(vec![
        Span::styled("speed ", palette.heading()),
        Span::raw(format!(
            "{} tokens/s   a step each {of_step}   {} preemptions/min",
            shown(rates.tokens_per_s, 0),
            shown(rates.preemptions_per_min, 1)
        )),
    ])
}

/// Returns the line of both pools, with bars as wide as there is room.
pub(super) fn pools(model: &Model, palette: Palette, width: u16) -> Line<'static> {
    let pools = model.sample.as_ref().map(|sample| sample.pools).unwrap_or_default();
    let bar = usize::from(width.saturating_sub(60) / 2).clamp(6, 40);
    let mut parts = vec![Span::styled("KV blocks ", palette.heading())];
    for (name, pool) in ["device", "host"].iter().zip(pools) {
        let text = match pool.all {
            0 => format!("{name} none   "),
            _ => format!("{name} [{}] {}/{}   ", bar_of(pool, bar), pool.used, pool.all),
        };
        parts.push(Span::raw(text));
    }
    Line::from(parts)
}

fn bar_of(pool: Pool, width: usize) -> String {
    let filled = (pool.used as usize * width).div_ceil(pool.all.max(1) as usize).min(width);
    format!("{}{}", "#".repeat(filled), ".".repeat(width - filled))
}

/// Returns the table of tiers. A tier has a row, with as many of its latencies as there is room for.
pub(super) fn tiers(model: &Model, palette: Palette, width: u16) -> Table<'static> {
    let latencies = if width < WIDE { 2 } else { 3 };
    let heading = ["TIER", "QUEUED", "RUNS", "PREEMPTED", "MET", "LEFT", "P99/TARGET"];
    let rows = model.sample.iter().flat_map(|sample| &sample.tiers);
    let rows: Vec<Row<'static>> = rows.map(|tier| row(tier, latencies, palette)).collect();
    let widths =
        [10, 6, 4, 9, 4, 5].into_iter().chain([LATENCY_WIDTH; 3].into_iter().take(latencies));
    Table::new(rows, widths.map(Constraint::Length))
        .header(Row::new(heading.map(Cell::from)).style(palette.heading()))
        .column_spacing(1)
}

fn row(tier: &TierRow, latencies: usize, palette: Palette) -> Row<'static> {
    let known = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
    let least =
        |of: fn(&Latency) -> Option<f64>| tier.latencies.iter().filter_map(of).reduce(f64::min);
    let percent = |share: Option<f64>| {
        share.map_or("-".to_owned(), |share| format!("{:.0}%", (share * 100.0).floor()))
    };
    let left = least(|latency| latency.headroom);
    let mut cells = vec![
        Cell::from(Span::styled(tier.tier.name(), palette.tier(tier.tier))),
        Cell::from(tier.queued.to_string()),
        Cell::from(known(tier.running)),
        Cell::from(known(tier.preempted)),
        Cell::from(percent(least(|latency| latency.compliance))),
        Cell::from(Span::styled(percent(left), style(left, palette))),
    ];
    cells.extend(tier.latencies.iter().take(latencies).map(|latency| of_latency(latency, palette)));
    Row::new(cells)
}

fn of_latency(latency: &Latency, palette: Palette) -> Cell<'static> {
    let target = duration(latency.target_ms / 1e3);
    let p99 = latency.p99_ms.map_or("-".to_owned(), |ms| duration(ms / 1e3));
    let mark = if latency.headroom.is_some_and(|left| left < 0.0) { "!" } else { "" };
    let text = format!("{} {p99}/{target}{mark}", latency.name);
    Cell::from(Span::styled(text, style(latency.headroom, palette)))
}

/// Returns the style of a figure whose headroom this is.
fn style(headroom: Option<f64>, palette: Palette) -> Style {
    if headroom.is_some_and(|left| left < 0.0) { palette.bad() } else { Style::new() }
}
