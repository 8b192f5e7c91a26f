//! Endpoints that show and change the settings of the engine while it runs.

use crate::boot::App;
use crate::control::audit::Event;
use crate::http::{ApiError, JsonRequest};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde_json::{Map, Value, json};
use tiercel_actors::Control;
use tiercel_config::{ChangeError, EngineSettings, LoadError, Role, SettingsError};

/// Most settings in one request.
const CHANGES_MAX: usize = 100;

/// Endpoint `GET /control/v1/policy`: the settings of the engine in effect, and those that may be changed.
pub(crate) async fn get(app: Data<App>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    app.keys.operator(&request, Role::Viewer)?;
    let serving = app.loaded()?;
    let settings = serving.settings.lock().await.clone();
    let values = by_name(&settings);
    let changeable = tiercel_config::changeable(serving.engine.settings());
    let changeable: Vec<Value> = changeable
        .into_iter()
        .map(|(field, at_most)| {
            json!({
                "name": field.path,
                "value": values.get(&field.path),
                "allowed": field.kind.allowed(),
                "at_most": at_most,
                "help": field.help,
            })
        })
        .collect();
    Ok(HttpResponse::Ok().json(json!({"settings": settings, "changeable": changeable})))
}

/// Endpoint `PATCH /control/v1/policy`: changes settings, all or none. The body is an object of names and values.
pub(crate) async fn patch(
    app: Data<App>,
    request: HttpRequest,
    body: JsonRequest,
) -> Result<HttpResponse, ApiError> {
    let operator = app.keys.operator(&request, Role::Operator)?;
    let changes = read(&body.body)?;
    let serving = app.accepting()?;
    // Hold the settings until the engine has those that follow from them, so that no other change is lost.
    let mut current = serving.settings.lock().await;
    let started = serving.engine.settings();
    let next = tiercel_config::changed(&current, started, &changes).map_err(refused)?;
    let answer = serving.engine.command(Control::Adjust(Box::new(next.clone()))).await?;
    serving.follow(&next);
    let changed = difference(&by_name(&current), &by_name(&next));
    *current = next;
    drop(current);
    let step = answer.step.0;
    app.audit.record(&Event {
        by: &operator.name,
        action: "policy",
        step: Some(step),
        settings: Some(changed.clone()),
        ..Event::default()
    });
    Ok(HttpResponse::Ok().json(json!({"step": step, "changed": changed})))
}

/// Reads the body of a change: an object of settings' names and their new values.
fn read(body: &Value) -> Result<Vec<(String, String)>, ApiError> {
    let wrong = |message: String| Err(ApiError::param("body", message));
    let Some(object) = body.as_object().filter(|object| !object.is_empty()) else {
        return wrong(
            "expected an object of settings, such as {\"patience.standard_s\": 60}".into(),
        );
    };
    if object.len() > CHANGES_MAX {
        return wrong(format!("{} settings are more than {CHANGES_MAX}", object.len()));
    }
    let text = |(name, value): (&String, &Value)| match value {
        Value::String(text) => Ok((name.clone(), text.clone())),
        Value::Number(_) | Value::Bool(_) => Ok((name.clone(), value.to_string())),
        _ => Err(ApiError::param(name, "a setting is a text, a number, true or false")),
    };
    object.iter().map(text).collect()
}

/// Makes the error 400 for a change that is not allowed, about the setting that is wrong.
fn refused(error: ChangeError) -> ApiError {
    let message = error.to_string();
    let field = match &error {
        ChangeError::Load(
            LoadError::Value { path, .. }
            | LoadError::NoValue { path, .. }
            | LoadError::BothNames { new: path, .. },
        )
        | ChangeError::TooLarge { path, .. } => (*path).to_owned(),
        ChangeError::Load(LoadError::Unknown { name, .. }) => name.chars().take(100).collect(),
        ChangeError::Load(LoadError::Settings(SettingsError::Range { field, .. })) => field.clone(),
        ChangeError::Load(LoadError::Settings(SettingsError::Conflict { field, .. })) => {
            (*field).to_owned()
        }
        ChangeError::Load(_) => "body".to_owned(),
        ChangeError::Fixed { path } => path.clone(),
    };
    ApiError::param(field, message)
}

/// Returns the settings by their dotted names.
fn by_name(settings: &EngineSettings) -> Map<String, Value> {
    fn add(prefix: &str, value: Value, to: &mut Map<String, Value>) {
        match value {
            Value::Object(table) => table.into_iter().for_each(|(key, value)| {
                let dot = if prefix.is_empty() { "" } else { "." };
                add(&format!("{prefix}{dot}{key}"), value, to);
            }),
            value => _ = to.insert(prefix.to_owned(), value),
        }
    }
    let mut names = Map::new();
    add("", json!(settings), &mut names);
    names
}

/// Returns the settings that differ, each with its values before and after.
fn difference(before: &Map<String, Value>, after: &Map<String, Value>) -> Value {
    let changed = after.iter().filter(|(name, value)| before.get(*name) != Some(*value));
    changed
        .map(|(name, value)| (name.clone(), json!({"before": before.get(name), "after": value})))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_an_object_of_plain_values() {
        let body = json!({"patience.standard_s": 60, "scheduler.policy": "fcfs", "x": true});
        let text = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let expected = vec![
            text("patience.standard_s", "60"),
            text("scheduler.policy", "fcfs"),
            text("x", "true"),
        ];
        assert_eq!(read(&body).unwrap(), expected);
        for bad in [json!([]), json!({}), json!({"a": null}), json!({"a": {"b": 1}}), json!(1)] {
            assert!(read(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_settings_that_differ_are_told() {
        let before = EngineSettings::default();
        let mut after = before.clone();
        after.patience.standard_s = 60.0;
        assert_eq!(
            difference(&by_name(&before), &by_name(&after)),
            json!({"patience.standard_s": {"before": 600.0, "after": 60.0}})
        );
    }
}
