//! What a reply is, without listing every type the protocol has or may get.

use deadpool_redis::redis::Value;

/// The items of an array, or what the reply is instead.
pub(super) fn array(value: Value) -> Result<Vec<Value>, Value> {
    if let Value::Array(items) = value { Ok(items) } else { Err(value) }
}

/// A string as text; bytes that are no UTF-8 are replaced.
pub(super) fn text(value: &Value) -> Option<String> {
    if let Value::BulkString(bytes) = value {
        Some(String::from_utf8_lossy(bytes).into_owned())
    } else if let Value::SimpleString(text) | Value::VerbatimString { text, .. } = value {
        Some(text.clone())
    } else {
        None
    }
}

/// For errors.
pub(super) fn type_name(value: &Value) -> &'static str {
    if matches!(value, Value::Nil) {
        "nil"
    } else if matches!(value, Value::Int(_)) {
        "an integer"
    } else if matches!(value, Value::BulkString(_) | Value::SimpleString(_) | Value::VerbatimString { .. }) {
        "a string"
    } else if matches!(value, Value::Okay) {
        "OK"
    } else if matches!(value, Value::Array(_)) {
        "an array"
    } else if matches!(value, Value::Double(_)) {
        "a double"
    } else if matches!(value, Value::ServerError(_)) {
        "an error"
    } else {
        "of another type"
    }
}
