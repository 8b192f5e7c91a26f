//! Tests of what keys, figures and answers do to the view.

use super::*;
use crate::cli::top::sample::Counters;

fn row(seq: u64, tier: Tier) -> RequestRow {
    RequestRow { id: format!("chatcmpl-{seq}"), seq, tier, ..RequestRow::default() }
}

fn sample(rows: Vec<RequestRow>) -> Event {
    Event::Sample(Box::new(Sample { total: rows.len(), rows, ..Sample::default() }))
}

/// Returns a view that shows three background requests, with the sequences 1 to 3.
fn view() -> Model {
    let mut model = Model::new("http://127.0.0.1:8081".into());
    model.update(sample((1..=3).map(|seq| row(seq, Tier::Background)).collect()), Timestamp(0));
    model
}

fn press(model: &mut Model, key: Key) -> Option<Command> {
    model.update(Event::Key(key), Timestamp(0))
}

fn type_in(model: &mut Model, letter: char) -> Option<Command> {
    press(model, Key::Letter(letter))
}

fn notice(model: &Model) -> &str {
    model.notice.as_ref().map(|notice| notice.text.as_str()).unwrap_or_default()
}

fn change(seq: u64, verb: Verb) -> Option<Command> {
    Some(Command::Change(Change { id: format!("chatcmpl-{seq}"), verb }))
}

#[test]
fn the_selection_moves_and_stays_with_its_request() {
    let mut model = view();
    assert_eq!(model.place(), Some(0));
    press(&mut model, Key::Down);
    type_in(&mut model, 'j');
    press(&mut model, Key::Down);
    assert_eq!(model.selected().unwrap().seq, 3, "the last row is the end");
    type_in(&mut model, 'k');
    assert_eq!(model.selected().unwrap().seq, 2);
    let moved = [3, 1, 2].map(|seq| row(seq, Tier::Background));
    model.update(sample(moved.into()), Timestamp(1));
    assert_eq!((model.place(), model.selected().unwrap().seq), (Some(2), 2));
    // The request has ended: the selection stays at its place, within the table.
    model.update(sample(vec![row(3, Tier::Background)]), Timestamp(2));
    assert_eq!((model.place(), model.selected().unwrap().seq), (Some(0), 3));
    model.update(sample(vec![]), Timestamp(3));
    assert_eq!(model.place(), None);
    for key in ['r', 'l', 'p', 'c', 'j'] {
        assert_eq!(type_in(&mut model, key), None, "no request is selected");
    }
    assert_eq!(model.mode, Mode::Table);
}

#[test]
fn a_request_is_moved_to_the_next_tier_and_not_beyond_the_last() {
    let mut model = view();
    assert_eq!(type_in(&mut model, 'r'), change(1, Verb::Move(Tier::Standard)));
    assert_eq!(type_in(&mut model, 'l'), None);
    assert_eq!(notice(&model), "chatcmpl-1 is in the lowest tier already");
    model.update(sample(vec![row(1, Tier::Standard)]), Timestamp(1));
    assert_eq!(type_in(&mut model, '+'), change(1, Verb::Move(Tier::Premium)));
    assert_eq!(type_in(&mut model, '-'), change(1, Verb::Move(Tier::Background)));
    model.update(sample(vec![row(1, Tier::Premium)]), Timestamp(2));
    assert_eq!(type_in(&mut model, 'r'), None);
    assert_eq!(type_in(&mut model, 'l'), change(1, Verb::Move(Tier::Standard)));
}

#[test]
fn pausing_is_undone_by_the_same_key() {
    let mut model = view();
    assert_eq!(type_in(&mut model, 'p'), change(1, Verb::Pause));
    let paused = RequestRow { paused: true, ..row(1, Tier::Background) };
    model.update(sample(vec![paused]), Timestamp(1));
    assert_eq!(type_in(&mut model, 'p'), change(1, Verb::Resume));
}

#[test]
fn cancelling_asks_first_and_only_y_cancels() {
    let mut model = view();
    for key in [Key::Letter('n'), Key::Letter('c'), Key::Escape, Key::Letter('q')] {
        assert_eq!(type_in(&mut model, 'c'), None);
        assert!(matches!(&model.mode, Mode::Ask(change) if change.id == "chatcmpl-1"));
        assert_eq!(press(&mut model, key), None, "{key:?}");
        assert_eq!((&model.mode, notice(&model)), (&Mode::Table, "nothing was cancelled"));
    }
    type_in(&mut model, 'c');
    assert_eq!(type_in(&mut model, 'y'), change(1, Verb::Cancel));
    assert_eq!(model.mode, Mode::Table);
    // The question names a request; if that one leaves the table, the next y must not cancel another.
    type_in(&mut model, 'c');
    model.update(sample(vec![row(2, Tier::Background)]), Timestamp(1));
    assert_eq!(model.mode, Mode::Table);
    assert_eq!(type_in(&mut model, 'y'), None);
}

#[test]
fn filter_and_order_go_round() {
    let mut model = view();
    let tiers = [Some(Tier::Premium), Some(Tier::Standard), Some(Tier::Background), None];
    for tier in tiers {
        let query = Query { tier, sort: Sort::Slack };
        assert_eq!(type_in(&mut model, 't'), Some(Command::Look(query)));
    }
    for sort in [Sort::Age, Sort::Output, Sort::Service, Sort::Slack] {
        assert_eq!(type_in(&mut model, 's'), Some(Command::Look(Query { tier: None, sort })));
    }
}

#[test]
fn a_lost_connection_keeps_the_last_figures_until_it_comes_back() {
    let mut model = view();
    model.update(Event::Lost("refused".into()), Timestamp(5));
    assert_eq!(model.link, Link::Lost("refused".into()));
    assert_eq!(model.rows().len(), 3);
    model.update(sample(vec![row(9, Tier::Premium)]), Timestamp(6));
    assert_eq!((&model.link, model.rows().len()), (&Link::Up, 1));
}

#[test]
fn help_closes_with_any_key_and_quitting_has_two_keys() {
    let mut model = view();
    type_in(&mut model, '?');
    assert_eq!(model.mode, Mode::Help);
    assert_eq!(type_in(&mut model, 'q'), None, "it closes the help alone");
    assert_eq!(model.mode, Mode::Table);
    assert_eq!(type_in(&mut model, 'q'), Some(Command::Quit));
    type_in(&mut model, 'c');
    assert_eq!(press(&mut model, Key::Interrupt), Some(Command::Quit), "also during a question");
    assert_eq!(model.update(Event::Stop, Timestamp(0)), Some(Command::Quit));
}

#[test]
fn answers_and_events_are_kept_for_drawing() {
    let mut model = view();
    model.update(Event::Answered(Err("no such request".into())), Timestamp(0));
    assert!(model.notice.as_ref().is_some_and(|notice| notice.failed));
    press(&mut model, Key::Escape);
    assert_eq!(model.notice, None);
    for number in 0..EVENTS_KEPT + 5 {
        model.update(Event::Happened(number.to_string()), Timestamp(0));
    }
    assert_eq!((model.events.len(), model.events[0].as_str()), (EVENTS_KEPT, "5"));
}

#[test]
fn rates_follow_from_the_counters_of_samples() {
    let mut model = Model::default();
    for second in 0..3_u64 {
        let counters = Counters { steps: second * 10, tokens: second * 40, preemptions: 0 };
        let at = Timestamp(second * 1_000_000);
        let sample = Sample { at, counters, ..Sample::default() };
        model.update(Event::Sample(Box::new(sample)), at);
    }
    assert_eq!(model.rates().tokens_per_s, Some(40.0));
}
