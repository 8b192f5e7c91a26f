//! The upper part of the view: the server, its speed, its pools and its tiers.

use super::Palette;
use crate::cli::ctl::duration;
use crate::cli::top::model::{Link, Model};
use crate::cli::top::sample::{Latency, Pool, TierRow};
use ratatui::layout::Constraint;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Row, Table};
use tiercel_device::Tier;

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
    let of_steps = match model.sample.as_ref().and_then(|sample| sample.step_ms) {
        Some((p50, p99)) => format!("{p50:.1} ms (p99 {p99:.1} ms)"),
        None => "-".to_owned(),
    };
    Line::from(vec![
        Span::styled("speed ", palette.heading()),
        Span::raw(format!(
            "{} tokens/s   step {of_steps}   {} preemptions/min",
            shown(rates.tokens_per_s, 0),
            shown(rates.preemptions_per_min, 1)
        )),
    ])
}

/// Returns the line of both pools, with bars as wide as there is room. A letter of a bar says whose blocks these are:
/// premium's (P), standard's (S), background's (B), or others' (o); cached blocks are a minus, other free ones a dot.
pub(super) fn pools(model: &Model, palette: Palette, width: u16) -> Line<'static> {
    let pools = model.sample.as_ref().map(|sample| sample.pools).unwrap_or_default();
    let bar = usize::from(width.saturating_sub(50) / 2).clamp(6, 60);
    let mut parts = vec![Span::styled("KV blocks ", palette.heading())];
    for (name, pool) in ["device", "host"].iter().zip(pools) {
        if pool.all == 0 {
            parts.push(Span::raw(format!("{name} none   ")));
            continue;
        }
        parts.push(Span::raw(format!("{name} [")));
        parts.extend(bar_of(&pool, bar, palette));
        parts.push(Span::raw(format!("] {}/{}   ", pool.used(), pool.all)));
    }
    Line::from(parts)
}

/// Returns the bar of a pool. An owner of few blocks has a letter too, as far as there is room.
fn bar_of(pool: &Pool, width: usize, palette: Palette) -> Vec<Span<'static>> {
    let owners = [
        ("P", palette.tier(Tier::Premium)),
        ("S", palette.tier(Tier::Standard)),
        ("B", palette.tier(Tier::Background)),
        ("o", Style::new()),
        ("-", Style::new()),
    ];
    let counts = pool.owned.into_iter().chain([pool.cached]);
    let mut room = width;
    let mut spans: Vec<Span<'static>> = Vec::new();
    for ((letter, style), blocks) in owners.into_iter().zip(counts) {
        let exact = blocks as f64 * width as f64 / pool.all as f64;
        let letters = if blocks == 0 { 0 } else { (exact.round() as usize).max(1).min(room) };
        room -= letters;
        spans.push(Span::styled(letter.repeat(letters), style));
    }
    spans.push(Span::raw(".".repeat(room)));
    spans
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
    let least =
        |of: fn(&Latency) -> Option<f64>| tier.latencies.iter().filter_map(of).reduce(f64::min);
    let percent = |share: Option<f64>| {
        share.map_or("-".to_owned(), |share| format!("{:.0}%", (share * 100.0).floor().max(-999.0)))
    };
    let left = least(|latency| latency.headroom);
    let mut cells = vec![
        Cell::from(Span::styled(tier.tier.name(), palette.tier(tier.tier))),
        Cell::from(tier.queued.to_string()),
        Cell::from(tier.running.to_string()),
        Cell::from(tier.preempted.to_string()),
        Cell::from(percent(least(|latency| latency.compliance))),
        Cell::from(Span::styled(percent(left), style(left, palette))),
    ];
    cells.extend(tier.latencies.iter().take(latencies).map(|latency| of_latency(latency, palette)));
    Row::new(cells)
}

fn of_latency(latency: &Latency, palette: Palette) -> Cell<'static> {
    let (target, p99) = (short(latency.target_ms), latency.p99_ms.map_or("-".to_owned(), short));
    let mark = if latency.headroom.is_some_and(|left| left < 0.0) { "!" } else { "" };
    let text = format!("{} {p99}/{target}{mark}", latency.name);
    Cell::from(Span::styled(text, style(latency.headroom, palette)))
}

/// Returns a duration in ms, with a decimal if it is short.
fn short(ms: f64) -> String {
    if ms < 10.0 { format!("{ms:.1}ms") } else { duration(ms / 1e3) }
}

/// Returns the style of a figure whose headroom this is.
fn style(headroom: Option<f64>, palette: Palette) -> Style {
    if headroom.is_some_and(|left| left < 0.0) { palette.bad() } else { Style::new() }
}
