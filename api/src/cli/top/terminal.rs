//! The terminal: its keys and sizes, and the signals that end the view, as events.

use super::model::{Event, Key};
use crate::cli::signals::at_signal;
use ratatui::crossterm::event::{self, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::sync::mpsc::SyncSender;
use std::thread;

/// Starts a thread that sends keys and new sizes of the terminal to `events`.
///
/// # Errors
/// If the operating system starts no thread.
pub(super) fn read_keys(events: SyncSender<Event>) -> std::io::Result<()> {
    thread::Builder::new().name("keys".into()).spawn(move || {
        loop {
            let event = match event::read() {
                Ok(event) => translate(&event),
                // The terminal is gone.
                Err(_) => Some(Event::Stop),
            };
            let ends = matches!(event, Some(Event::Stop));
            if event.is_some_and(|event| events.send(event).is_err()) || ends {
                return;
            }
        }
    })?;
    Ok(())
}

/// Starts a thread that sends the wish to stop to `events` at SIGTERM, SIGINT and SIGHUP, which then no longer end the
/// process at once: the view first restores the terminal.
///
/// # Errors
/// If the operating system refuses a signal handler or starts no thread.
pub(super) fn heed_signals(events: SyncSender<Event>) -> std::io::Result<()> {
    at_signal(move |_| {
        // The view may have ended meanwhile.
        let _ = events.send(Event::Stop);
    })
}

fn translate(event: &event::Event) -> Option<Event> {
    match event {
        event::Event::Key(key) if key.kind != KeyEventKind::Release => key_of(*key).map(Event::Key),
        event::Event::Resize(..) => Some(Event::Redraw),
        _ => None,
    }
}

fn key_of(KeyEvent { code, modifiers, .. }: KeyEvent) -> Option<Key> {
    if modifiers.contains(KeyModifiers::CONTROL) {
        return (code == KeyCode::Char('c')).then_some(Key::Interrupt);
    }
    Some(match code {
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::First,
        KeyCode::End => Key::Last,
        KeyCode::Esc => Key::Escape,
        KeyCode::Char(letter) => Key::Letter(letter),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_sizes_are_events_and_releases_are_not() {
        let press = |code, modifiers| event::Event::Key(KeyEvent::new(code, modifiers));
        let key = |code, modifiers| match translate(&press(code, modifiers)) {
            Some(Event::Key(key)) => Some(key),
            _ => None,
        };
        assert_eq!(key(KeyCode::Char('r'), KeyModifiers::NONE), Some(Key::Letter('r')));
        assert_eq!(key(KeyCode::Char('G'), KeyModifiers::SHIFT), Some(Key::Letter('G')));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Key::Interrupt));
        assert_eq!(key(KeyCode::Char('r'), KeyModifiers::CONTROL), None);
        assert_eq!(key(KeyCode::F(1), KeyModifiers::NONE), None);
        assert!(matches!(translate(&event::Event::Resize(80, 24)), Some(Event::Redraw)));
        let mut released = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::NONE);
        released.kind = KeyEventKind::Release;
        assert!(translate(&event::Event::Key(released)).is_none());
    }
}
