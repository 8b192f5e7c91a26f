//! Tests of the drawing, on a terminal in memory.

use super::*;
use crate::cli::top::model::{Event, Key};
use crate::cli::top::sample::{
    Counters, Latency, Pool, RequestRow, Sample, TenantRow, TenantUse, TierRow,
};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;
use tiercel_device::{Tier, Timestamp};

const PLAIN: Palette = Palette { colour: false };

fn latency(headroom: f64) -> Latency {
    let (name, p99_ms) = ("TTFT", Some(250.0));
    Latency { name, p99_ms, target_ms: 200.0, compliance: Some(0.987), headroom: Some(headroom) }
}

fn row(seq: u64) -> RequestRow {
    RequestRow {
        id: format!("chatcmpl-{seq}"),
        request_id: format!("job-{seq}"),
        seq,
        tenant: "shop".into(),
        tier: Tier::Background,
        state: "waiting".into(),
        late: seq == 2,
        age_ms: 61_000,
        output_tokens: 7,
        max_tokens: 64,
        slack_ms: Some(if seq == 2 { -250.0 } else { 90.0 }),
        ..RequestRow::default()
    }
}

fn sample(at: Timestamp) -> Sample {
    let premium = TierRow {
        tier: Tier::Premium,
        queued: 3,
        running: 12,
        preempted: 4,
        latencies: vec![latency(-0.25)],
    };
    Sample {
        at,
        stage: "ready".into(),
        requests: 40,
        max_requests: 1_024,
        step_ms: Some((50.0, 61.5)),
        pools: [Pool { all: 60, owned: [20, 0, 12, 1], cached: 8 }, Pool::default()],
        tiers: vec![premium, TierRow { tier: Tier::Background, ..TierRow::default() }],
        tenants: vec![
            TenantRow {
                tenant: "shop".into(),
                running: 12,
                waiting: 3,
                preempted: 4,
                device_blocks: 20,
                used: Some(TenantUse {
                    prompt_tokens: 123_456,
                    output_tokens: 7_890,
                    device_s: 61.0,
                    recent_share: 0.75,
                }),
            },
            TenantRow { tenant: "late".into(), ..TenantRow::default() },
        ],
        tenants_total: 66,
        counters: Counters { steps: at.0 / 50_000, tokens: at.0 / 10_000, preemptions: 0 },
        total: 40,
        rows: (1..=40).map(row).collect(),
    }
}

/// Returns a view that has had two samples, a second apart.
fn view() -> Model {
    let mut model = Model::new("http://127.0.0.1:8081".into());
    for at in [Timestamp(1_000_000), Timestamp(2_000_000)] {
        model.update(Event::Sample(Box::new(sample(at))), at);
    }
    model
}

/// Draws the view in a terminal of this size, and returns its lines.
fn lines(model: &Model, (width, height): (u16, u16)) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model, PLAIN)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let cells: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
    cells.chunks(usize::from(width)).map(|line| line.concat().trim_end().to_owned()).collect()
}

fn shows(lines: &[String], expected: &[&str]) {
    for text in expected {
        assert!(lines.iter().any(|line| line.contains(text)), "{text:?}:\n{}", lines.join("\n"));
    }
}

#[test]
fn the_usual_terminal_shows_every_part() {
    let drawn = lines(&view(), (80, 24));
    shows(
        &drawn,
        &[
            "tiercel top  http://127.0.0.1:8081  ready  40 of 1024 requests",
            "speed 100 tokens/s   step 50.0 ms (p99 61.5 ms)   0.0 preemptions/min",
            "device [PPPPPBBBo--....] 33/60",
            "host none",
            "premium    3      12   4         98%  -25%  TTFT 250ms/200ms!",
            "REQUESTS 40: all tiers, least slack first",
            "> 1       background waiting           61s    7/64        90ms      shop",
            "  2       background waiting, late     61s    7/64        -250ms!   shop",
            "chatcmpl-1: request id job-1, prompt 0/0",
            "EVENTS: none since this view began",
            "? help",
            "q quit",
        ],
    );
}

#[test]
fn wider_terminals_show_more_columns_and_higher_ones_more_rows() {
    let wide = lines(&view(), (140, 50));
    shows(&wide, &["PREEMPTED BLOCKS", "REQUEST ID", "job-30"]);
    let rows =
        |drawn: &[String]| drawn.iter().filter(|line| line.contains("background wa")).count();
    assert!(rows(&wide) > rows(&lines(&view(), (80, 24))) + 15);
    assert!(lines(&view(), (40, 10)).concat().contains("tiercel top needs 60x16"));
}

#[test]
fn the_selected_row_stays_in_view() {
    let mut model = view();
    model.update(Event::Key(Key::Last), Timestamp(2_000_000));
    shows(&lines(&model, (80, 24)), &["> 40      background", "chatcmpl-40: request id job-40"]);
}

#[test]
fn a_lost_connection_is_named_with_the_age_of_the_figures() {
    let mut model = view();
    model.update(Event::Lost("cannot reach it".into()), Timestamp(9_000_000));
    let drawn = lines(&model, (80, 24));
    shows(&drawn, &["CONNECTION LOST, figures are 7 s old", "! cannot reach it", "> 1"]);
    model.update(Event::Sample(Box::new(sample(Timestamp(10_000_000)))), Timestamp(10_000_000));
    assert!(!lines(&model, (80, 24)).concat().contains("LOST"));
    model.update(Event::Redraw, Timestamp(14_000_000));
    shows(&lines(&model, (80, 24)), &["NO ANSWER for 4 s"]);
    let mut fresh = Model::new("http://x".into());
    shows(&lines(&fresh, (80, 24)), &["connecting ..."]);
    fresh.update(Event::Lost("refused".into()), Timestamp(0));
    shows(&lines(&fresh, (80, 24)), &["NO FIGURES", "! refused"]);
}

#[test]
fn tenants_are_shown_in_place_of_requests_which_no_key_changes_meanwhile() {
    let mut model = view();
    let now = Timestamp(2_000_000);
    assert_eq!(model.update(Event::Key(Key::Letter('u')), now), None);
    let drawn = lines(&model, (80, 24));
    shows(
        &drawn,
        &[
            "TENANTS 2 of 66: most blocks, then most device time, first",
            "TENANT                   RUNS  WAITS BLOCKS PROMPT     OUTPUT     DEVICE  MINUTE",
            "shop                     12    7     20     123456     7890       61s     75%",
            "late                     0     0     0      -          -          -       -",
            "u requests  q quit",
        ],
    );
    assert!(!drawn.concat().contains("chatcmpl-1"));
    for key in ['r', 'l', 'p', 'c', 't', 's'] {
        assert_eq!(model.update(Event::Key(Key::Letter(key)), now), None, "{key}");
        shows(&lines(&model, (80, 24)), &["TENANTS 2 of 66"]);
    }
    model.update(Event::Key(Key::Letter('u')), now);
    shows(&lines(&model, (80, 24)), &["> 1       background", "u tenants"]);
}

#[test]
fn the_question_names_the_request_and_help_lists_the_keys() {
    let mut model = view();
    model.update(Event::Key(Key::Letter('c')), Timestamp(2_000_000));
    shows(&lines(&model, (100, 24)), &["Cancel chatcmpl-1? Its client gets an error; this cannot"]);
    model.update(Event::Key(Key::Letter('n')), Timestamp(2_000_000));
    model.update(Event::Key(Key::Letter('?')), Timestamp(2_000_000));
    shows(&lines(&model, (80, 24)), &["any key closes this list", "raise it to the next higher"]);
}

#[test]
fn events_are_shown_the_latest_last() {
    let mut model = view();
    for number in 1..=5 {
        model.update(Event::Happened(format!("event {number}")), Timestamp(2_000_000));
    }
    let drawn = lines(&model, (80, 24));
    let at = |text: &str| drawn.iter().position(|line| line == text);
    assert_eq!((at("event 3"), at("event 4").is_some()), (None, true));
    assert_eq!(at("event 5"), at("event 4").map(|line| line + 1));
}

#[test]
fn without_colours_no_cell_has_one() {
    let used = |palette: Palette| {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| draw(frame, &view(), palette)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        buffer.content().iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert!(!used(PLAIN));
    assert!(used(Palette { colour: true }));
}

#[test]
fn control_characters_of_clients_do_not_reach_the_terminal() {
    let mut model = view();
    let mut hostile = sample(Timestamp(3_000_000));
    hostile.rows[0].tenant = "a\u{1b}[31mb".into();
    hostile.rows[0].request_id = "x\u{7}\u{1b}]0;y".into();
    model.update(Event::Sample(Box::new(hostile)), Timestamp(3_000_000));
    let drawn = lines(&model, (140, 24)).concat();
    assert!(!drawn.contains(char::is_control), "{drawn:?}");
}
