//! Drawing of the view: the whole terminal from the state, with nothing kept between two drawings.

mod help;
mod requests;
mod server;
mod style;
mod tenants;

pub(super) use style::Palette;

use super::model::{Link, Mode, Model};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;

/// Smallest terminal, columns and rows, in which the view is drawn.
const SMALLEST: (u16, u16) = (60, 16);
/// Rows of the list of events in a terminal of 24 rows; higher terminals show more.
const EVENTS: u16 = 2;
/// Line of the keys that matter most.
const KEYS: &str = "j/k select  r raise  l lower  p pause/resume  c cancel  t tier  s sort  u tenants  ? help  q quit";
/// The same for terminals that are less wide.
const KEYS_SHORT: &str =
    "j/k r raise l lower p pause c cancel t tier s sort u tenants ? help q quit";
/// Line of the keys while the tenants are shown.
const KEYS_TENANTS: &str = "u requests  q quit";

/// Draws the view.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, palette: Palette) {
    let area = frame.area();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let (width, height) = SMALLEST;
        let text = format!("tiercel top needs {width}x{height}; q quits");
        frame.render_widget(Line::raw(text), area);
        return;
    }
    let events = EVENTS + area.height.saturating_sub(24) / 4;
    let rows = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(server::TIER_LINES),
        Constraint::Min(3),
        Constraint::Length(1),
        Constraint::Length(events + 1),
        Constraint::Length(1),
    ]);
    let [title, speeds, pools, tiers, table, detail, happened, foot] = rows.areas(area);
    frame.render_widget(server::title(model, palette), title);
    frame.render_widget(server::speeds(model, palette), speeds);
    frame.render_widget(server::pools(model, palette, area.width), pools);
    frame.render_widget(server::tiers(model, palette, area.width), tiers);
    if model.mode == Mode::Tenants {
        tenants::draw(frame, table.union(detail), model, palette);
    } else {
        requests::draw(frame, table, model, palette);
        frame.render_widget(requests::detail(model), detail);
    }
    draw_events(frame, happened, model, palette);
    frame.render_widget(footer(model, palette, foot.width), foot);
    if model.mode == Mode::Help {
        help::draw(frame, area, palette);
    }
}

fn draw_events(frame: &mut Frame<'_>, area: Rect, model: &Model, palette: Palette) {
    let room = usize::from(area.height.saturating_sub(1));
    let heading = match model.events.len() {
        0 => "EVENTS: none since this view began".to_owned(),
        _ => "EVENTS, the latest last".to_owned(),
    };
    let skipped = model.events.len().saturating_sub(room);
    let lines = model.events.iter().skip(skipped).map(|line| Line::raw(line.as_str()));
    let lines: Vec<Line<'_>> =
        std::iter::once(Line::styled(heading, palette.heading())).chain(lines).collect();
    frame.render_widget(ratatui::text::Text::from(lines), area);
}

/// Returns the last line: a question, or the connection that is lost, or what the last key did, or the keys.
fn footer(model: &Model, palette: Palette, width: u16) -> Line<'_> {
    if let Mode::Ask(change) = &model.mode {
        let text = format!(
            "Cancel {}? Its client gets an error; this cannot be undone. y cancels, any other key does not",
            change.id
        );
        return Line::styled(text, palette.bad());
    }
    match (&model.link, &model.notice) {
        (Link::Lost(why), _) => Line::styled(format!("! {why}"), palette.bad()),
        _ if model.mode == Mode::Tenants => Line::raw(KEYS_TENANTS),
        (_, Some(notice)) if notice.failed => {
            Line::styled(format!("! {}", notice.text), palette.bad())
        }
        (_, Some(notice)) => Line::raw(notice.text.as_str()),
        (_, None) if usize::from(width) < KEYS.len() => Line::raw(KEYS_SHORT),
        (_, None) => Line::raw(KEYS),
    }
}

#[cfg(test)]
mod tests;
