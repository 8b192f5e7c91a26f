//! Tests of the Grafana board and of the alerts: their queries name metrics that a running server has.

use crate::{metric_names, metrics, ops};
use serde_json::Value;
use std::collections::BTreeSet;

fn board() -> Value {
    let text = std::fs::read_to_string(ops("grafana/dashboards/tiercel.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Returns the panels of the board, without the rows that only head them.
fn panels(board: &Value) -> Vec<&Value> {
    let all = board["panels"].as_array().unwrap().iter();
    all.filter(|panel| panel["type"] != "row").collect()
}

#[test]
fn every_query_of_the_board_names_a_metric_that_a_running_server_has() {
    let (board, metrics) = (board(), metrics());
    let mut seen = BTreeSet::new();
    for panel in panels(&board) {
        for target in panel["targets"].as_array().unwrap() {
            let expr = target["expr"].as_str().unwrap();
            let names = metric_names(expr);
            assert!(!names.is_empty(), "{expr}");
            for name in names {
                assert!(metrics.has(name), "a running server has no {name}: {expr}");
                seen.insert(name.to_owned());
            }
        }
    }
    assert!(seen.len() > 40, "{seen:?}");
    for variable in board["templating"]["list"].as_array().unwrap() {
        let query = variable["query"]["query"].as_str().unwrap_or_default();
        metric_names(query).iter().for_each(|name| assert!(metrics.has(name), "{query}"));
    }
}

#[test]
fn the_board_has_the_fields_that_grafana_wants() {
    let board = board();
    assert!(board["schemaVersion"].as_u64().unwrap() >= 36);
    assert!(board["uid"].is_string() && board["title"].is_string());
    assert!(board["time"]["from"].is_string() && board["annotations"]["list"].is_array());
    let mut ids = BTreeSet::new();
    let mut places = BTreeSet::new();
    for panel in board["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "two panels have one id: {panel}");
        assert!(panel["title"].is_string() && panel["type"].is_string(), "{panel}");
        let [h, w, x, y] =
            ["h", "w", "x", "y"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(h > 0 && w > 0 && x + w <= 24, "{panel}");
        for column in x..x + w {
            for line in y..y + h {
                assert!(places.insert((column, line)), "panels overlap: {panel}");
            }
        }
    }
    for panel in panels(&board) {
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{panel}");
        assert!(!panel["description"].as_str().unwrap().is_empty(), "{panel}");
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{panel}");
        if panel["type"] == "timeseries" {
            let legend = &panel["options"]["legend"];
            assert!(legend["calcs"].is_array() && legend["displayMode"].is_string(), "{panel}");
        }
        for target in panel["targets"].as_array().unwrap() {
            assert_eq!(target["datasource"]["type"], "prometheus", "{target}");
            assert!(target["refId"].is_string(), "{target}");
            let expr = target["expr"].as_str().unwrap();
            let selected = expr.matches("job=~\"$job\",instance=~\"$instance\"").count();
            assert_eq!(selected, metric_names(expr).len(), "not by job and instance: {expr}");
        }
    }
    let variables = board["templating"]["list"].as_array().unwrap();
    let named: Vec<&str> = variables.iter().map(|v| v["name"].as_str().unwrap()).collect();
    assert_eq!(named, ["datasource", "job", "instance"]);
}

#[test]
fn every_metric_in_the_alerts_is_one_that_a_running_server_has() {
    let metrics = metrics();
    for file in ["prometheus/alerts.yml", "prometheus/alerts_test.yml"] {
        let text = std::fs::read_to_string(ops(file)).unwrap();
        let names = metric_names(&text);
        assert!(names.len() > 8, "{names:?}");
        for name in names {
            assert!(metrics.has(name), "{file}: a running server has no {name}");
        }
    }
}

#[test]
fn every_alert_says_what_is_wrong_and_what_to_do() {
    let text = std::fs::read_to_string(ops("prometheus/alerts.yml")).unwrap();
    let alerts: Vec<&str> = text.split("- alert: ").skip(1).collect();
    assert_eq!(alerts.len(), 8);
    for alert in alerts {
        for field in ["expr:", "severity:", "summary:", "description:", "action:"] {
            assert!(alert.contains(field), "no {field} in {alert}");
        }
    }
}
