//! Schemas of fields and parameters. They are made from the constants that the checks of the fields use, so that the
//! document states the limits that hold.

use serde_json::Value;
use std::ops::RangeInclusive;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{
    AnyOfBuilder, Array, Object, ObjectBuilder, Schema, SchemaType, Type,
};
use utoipa::openapi::{ArrayBuilder, RefOr, Required};

/// Maximum length of an array whose length the schema does not limit. One example is the array of the tokens of a
/// prompt, whose number is limited by the context.
pub(crate) const ANY_NUMBER: usize = usize::MAX;
/// A field of an object: its name and its schema.
pub(crate) type Property = (&'static str, RefOr<Schema>);

/// Names of the tiers that requests can have.
const TIERS: [&str; 3] = ["premium", "standard", "background"];

/// Returns the schema of an object with the fields `fields`. The first `required` fields are required, and the other
/// fields may be null.
pub(crate) fn object(about: &str, required: usize, fields: Vec<Property>) -> RefOr<Schema> {
    let mut object = ObjectBuilder::new().schema_type(Type::Object).description(Some(about));
    for (at, (name, schema)) in fields.into_iter().enumerate() {
        object = match at < required {
            true => object.required(name).property(name, schema),
            false => object.property(name, nullable(schema)),
        };
    }
    object.into()
}

/// Returns the schema of any JSON value.
pub(crate) fn any(about: &str) -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(SchemaType::AnyValue).description(Some(about)).into()
}

/// Returns the schema of a text.
pub(crate) fn text(about: &str) -> RefOr<Schema> {
    text_of(0..=usize::MAX, about)
}

/// Returns the schema of a text of so many characters.
pub(crate) fn text_of(chars: RangeInclusive<usize>, about: &str) -> RefOr<Schema> {
    let (least, most) = chars.into_inner();
    ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length((least > 0).then_some(least))
        .max_length((most < usize::MAX).then_some(most))
        .description(Some(about))
        .into()
}

/// Returns the schema of one of several words.
pub(crate) fn word(words: &[&str], about: &str) -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(words.iter().copied()))
        .description(Some(about))
        .into()
}

/// Returns the schema of the name of a tier.
pub(crate) fn tier() -> RefOr<Schema> {
    word(&TIERS, "Tier, the highest first.")
}

/// Returns the schema of true or false.
pub(crate) fn flag(about: &str) -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(Type::Boolean).description(Some(about)).into()
}

/// Returns the schema of a whole number.
pub(crate) fn whole(range: RangeInclusive<i64>, about: &str) -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(*range.start()))
        .maximum(Some(*range.end()))
        .description(Some(about))
        .into()
}

/// Returns the schema of a whole number that is not negative.
pub(crate) fn count(range: RangeInclusive<u64>, about: &str) -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(*range.start()))
        .maximum(Some(*range.end()))
        .description(Some(about))
        .into()
}

/// Returns the schema of a number.
pub(crate) fn number(range: RangeInclusive<f64>, about: &str) -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(Type::Number)
        .minimum(Some(*range.start()))
        .maximum(Some(*range.end()))
        .description(Some(about))
        .into()
}

/// Returns the schema of an array with so many items.
pub(crate) fn array(
    items: RefOr<Schema>,
    counts: RangeInclusive<usize>,
    about: &str,
) -> RefOr<Schema> {
    let (least, most) = counts.into_inner();
    ArrayBuilder::new()
        .items(items)
        .min_items((least > 0).then_some(least))
        .max_items((most < usize::MAX).then_some(most))
        .description(Some(about))
        .into()
}

/// Returns the schema of a value that has one of several forms.
pub(crate) fn any_of(forms: impl IntoIterator<Item = RefOr<Schema>>, about: &str) -> RefOr<Schema> {
    let forms = forms.into_iter().fold(AnyOfBuilder::new(), AnyOfBuilder::item);
    forms.description(Some(about)).into()
}

/// Returns the schema of a value that may also be null.
pub(crate) fn nullable(of: RefOr<Schema>) -> RefOr<Schema> {
    let or_null = |of: SchemaType| match of {
        SchemaType::Type(one) => SchemaType::Array(vec![one, Type::Null]),
        SchemaType::Array(several) => several.into_iter().chain([Type::Null]).collect(),
        SchemaType::AnyValue => SchemaType::AnyValue,
    };
    RefOr::T(match of {
        RefOr::T(Schema::Object(object)) => {
            let enum_values = object.enum_values.clone();
            let enum_values =
                enum_values.map(|values| values.into_iter().chain([Value::Null]).collect());
            let schema_type = or_null(object.schema_type.clone());
            Schema::Object(with(object, |object| {
                object.schema_type = schema_type;
                object.enum_values = enum_values;
            }))
        }
        RefOr::T(Schema::Array(array)) => {
            let schema_type = or_null(array.schema_type.clone());
            Schema::Array(with(array, |array: &mut Array| array.schema_type = schema_type))
        }
        other => any_of_two(other, Object::with_type(Type::Null).into()),
    })
}

fn with<T>(mut value: T, change: impl FnOnce(&mut T)) -> T {
    change(&mut value);
    value
}

fn any_of_two(first: RefOr<Schema>, second: RefOr<Schema>) -> Schema {
    AnyOfBuilder::new().item(first).item(second).build().into()
}

/// Returns a parameter of the query, which may be left out.
pub(crate) fn query(name: &str, schema: RefOr<Schema>) -> Parameter {
    parameter(ParameterIn::Query, name, schema)
}

/// Returns a header of a request, which may be left out.
pub(crate) fn header(name: &str, schema: RefOr<Schema>) -> Parameter {
    parameter(ParameterIn::Header, name, schema)
}

/// Returns a parameter of the path.
pub(crate) fn path(name: &str, about: &str) -> Parameter {
    parameter(ParameterIn::Path, name, text_of(1..=usize::MAX, about))
}

fn parameter(place: ParameterIn, name: &str, schema: RefOr<Schema>) -> Parameter {
    let required = match place {
        ParameterIn::Path => Required::True,
        _ => Required::False,
    };
    ParameterBuilder::new()
        .name(name)
        .parameter_in(place)
        .required(required)
        .schema(Some(schema))
        .build()
}
