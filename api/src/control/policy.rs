//! Endpoints that show and change the settings of the engine while it runs.

use crate::boot::App;
use crate::control::audit::Event;
use crate::control::recording;
use crate::document::schema;
use crate::http::{ApiError, JsonRequest};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use tiercel_actors::Control;
use tiercel_config::{
    ChangeError, EngineSettings, Kind, LoadError, Role, SettingsError, TARGET_MS,
};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// Most settings in one request.
const CHANGES_MAX: usize = 100;

/// Settings of the engine.
#[derive(Serialize, ToSchema)]
pub(crate) struct Settings {
    /// Settings in effect, in tables as in the settings file.
    #[schema(value_type = Object)]
    settings: EngineSettings,
    /// Settings that can be changed while the server runs.
    changeable: Vec<Changeable>,
}

/// A setting that can be changed while the server runs.
#[derive(Serialize, ToSchema)]
struct Changeable {
    /// Dotted name, such as `patience.standard_s`.
    name: &'static str,
    value: Option<Value>,
    /// Description of the values that are allowed.
    allowed: String,
    /// Largest value that is allowed since the server was started; null if there is none.
    #[schema(required)]
    at_most: Option<u32>,
    /// What the setting does.
    help: &'static str,
}

/// Settings that a request has changed.
#[derive(Serialize, ToSchema)]
pub(crate) struct SettingsChanged {
    /// Step that was planned last before the change, which takes effect in a later one.
    step: u64,
    /// Settings that were changed, by their dotted names.
    #[schema(value_type = BTreeMap<String, SettingChange>)]
    changed: Value,
}

/// Values of a setting before and after a change.
#[derive(Serialize, ToSchema)]
struct SettingChange {
    before: Option<Value>,
    after: Value,
}

/// Body of a change of settings: names and new values.
pub(crate) enum SettingsChange {}

impl PartialSchema for SettingsChange {
    fn schema() -> RefOr<Schema> {
        let settings = tiercel_config::changeable(&EngineSettings::default());
        let object = ObjectBuilder::new()
            .schema_type(Type::Object)
            .min_properties(Some(1))
            .max_properties(Some(CHANGES_MAX))
            .additional_properties(Some(AdditionalProperties::FreeForm(false)))
            .description(Some("Names of settings and their new values."));
        let add = |object: ObjectBuilder, (field, _): &(&tiercel_config::Field, _)| {
            object.property(&field.path, setting(field))
        };
        settings.iter().fold(object, add).into()
    }
}

impl ToSchema for SettingsChange {}

/// Returns the schema of the values of a setting. A text that states a number, or true or false, counts as such. A
/// target may also be a word.
fn setting(field: &tiercel_config::Field) -> RefOr<Schema> {
    let about = format!("{} (allowed: {})", field.help, field.kind.allowed());
    let text = schema::text("The same as a text.");
    let value = match field.kind {
        Kind::Integer { low, high } => schema::count(low..=high, &about),
        Kind::Number { low, high } => schema::number(low..=high, &about),
        Kind::Target => schema::number(TARGET_MS, &about),
        Kind::Bool => schema::flag(&about),
        Kind::Choice(words) => return schema::word(words, &about),
        _ => return schema::text(&about),
    };
    schema::any_of([value, text], &about)
}

/// Endpoint `GET /control/v1/policy`: the settings of the engine in effect, and those that may be changed.
pub(crate) async fn get(app: Data<App>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    app.keys.operator(&request, Role::Viewer)?;
    let serving = app.loaded()?;
    let settings = serving.settings.lock().await.clone();
    let values = by_name(&settings);
    let changeable = tiercel_config::changeable(serving.engine.settings());
    let changeable = changeable
        .into_iter()
        .map(|(field, at_most)| Changeable {
            name: &field.path,
            value: values.get(&field.path).cloned(),
            allowed: field.kind.allowed(),
            at_most,
            help: &field.help,
        })
        .collect();
    Ok(HttpResponse::Ok().json(Settings { settings, changeable }))
}

/// Endpoint `PATCH /control/v1/policy`: changes settings, all or none. The body is an object of names and values.
pub(crate) async fn patch(
    app: Data<App>,
    request: HttpRequest,
    body: JsonRequest,
) -> Result<HttpResponse, ApiError> {
    let operator = app.keys.operator(&request, Role::Operator)?;
    let changes = read(&body.body)?;
    // Complete and audit the change even if the client leaves meanwhile.
    let changed = actix_rt::spawn(async move { change(&app, &operator.name, &changes).await });
    changed.await.expect("a change neither panics nor is aborted")
}

/// Changes settings, and answers with those that were changed.
async fn change(
    app: &App,
    by: &str,
    changes: &[(String, String)],
) -> Result<HttpResponse, ApiError> {
    let serving = app.accepting()?;
    // Hold the settings until the engine has those that follow from them, so that no other change is lost.
    let mut current = serving.settings.lock().await;
    let started = serving.engine.settings();
    let next = tiercel_config::changed(&current, started, changes).map_err(refused)?;
    let answer = serving.engine.command(Control::Adjust(Box::new(next.clone()))).await?;
    serving.follow(&next);
    let changed = difference(&by_name(&current), &by_name(&next));
    if *current != next && recording::runs(serving.engine.recorder()) {
        app.recorded.note_change();
    }
    *current = next;
    drop(current);
    let step = answer.step.0;
    app.audit.record(&Event {
        by,
        action: "policy",
        step: Some(step),
        settings: Some(changed.clone()),
        ..Event::default()
    });
    Ok(HttpResponse::Ok().json(SettingsChanged { step, changed }))
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
    let change = |(name, after): (&String, &Value)| {
        let (before, after) = (before.get(name).cloned(), after.clone());
        (name.clone(), SettingChange { before, after })
    };
    json!(changed.map(change).collect::<BTreeMap<_, _>>())
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
