//! `docs/api-reference.md` is what the comments of the protocol say.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{collections::HashMap, env, fmt::Write, fs, path::PathBuf};

use prost::Message;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto,
};

const UPDATE: &str = "UPDATE_DOCS=1 cargo test -p budget-proto --test reference";
const HEAD: &str = "# API reference\n\n\
    The gRPC package `retrybudget.v1`, generated from the comments of [its files](../proto/proto/retrybudget/v1): a test\n\
    compares them. What a caller needs in short is in [README.md](../README.md#the-api-in-brief).\n";

/// The comment above an element, by its path in the file.
type Comments = HashMap<Vec<i32>, String>;

#[test]
fn the_api_reference_is_what_the_protocol_says() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/api-reference.md");
    let set = FileDescriptorSet::decode(&include_bytes!(concat!(env!("OUT_DIR"), "/documented.bin"))[..]).unwrap();
    let made = reference(&set);
    if env::var_os("UPDATE_DOCS").is_some_and(|value| value == "1") {
        fs::write(&path, &made).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == made, "{} is not what the protocol says; run\n  {UPDATE}", path.display());
}

fn reference(set: &FileDescriptorSet) -> String {
    let mut text = HEAD.to_owned();
    // What callers need first stands first.
    for name in ["budget", "lease", "admin"] {
        let file = set.file.iter().find(|file| file.name() == format!("retrybudget/v1/{name}.proto")).unwrap();
        file_reference(file, &mut text);
    }
    text
}

fn file_reference(file: &FileDescriptorProto, text: &mut String) {
    let locations = &file.source_code_info.as_ref().unwrap().location;
    let trimmed = |comment: &str| comment.lines().map(str::trim).collect::<Vec<_>>().join("\n").trim().to_owned();
    let mut comments: Comments = HashMap::new();
    for location in locations {
        let comment = [location.leading_comments(), location.trailing_comments()].map(trimmed).join("\n");
        comments.insert(location.path.clone(), comment.trim().to_owned());
    }
    let short = file.name().rsplit('/').next().unwrap();
    // The head of the file stands above its `syntax` line, field 12 of a file.
    write!(text, "\n## {short}\n\n{}\n", comments[&vec![12]]).unwrap();
    for (at, service) in (0..).zip(&file.service) {
        service_reference(service, &comments, &[6, at], text);
    }
    for (at, message) in (0..).zip(&file.message_type) {
        assert!(message.nested_type.is_empty() && message.enum_type.is_empty(), "{}: not shown", message.name());
        message_reference(message, &comments, &[4, at], text);
    }
    for (at, values) in (0..).zip(&file.enum_type) {
        enum_reference(values, &comments, &[5, at], text);
    }
}

fn comment<'a>(comments: &'a Comments, path: &[i32], further: &[i32]) -> &'a str {
    comments.get(&[path, further].concat()).map_or("", String::as_str)
}

fn heading(name: &str, about: &str, text: &mut String) {
    write!(text, "\n### {name}\n").unwrap();
    if !about.is_empty() {
        write!(text, "\n{about}\n").unwrap();
    }
}

fn short(type_name: &str) -> &str {
    type_name.rsplit('.').next().unwrap()
}

/// One cell of a table.
fn cell(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|")
}

fn service_reference(service: &ServiceDescriptorProto, comments: &Comments, path: &[i32], text: &mut String) {
    heading(service.name(), comment(comments, path, &[]), text);
    text.push_str("\n| method | takes | answers | |\n|---|---|---|---|\n");
    for (at, method) in (0..).zip(&service.method) {
        let stream = |streams| if streams { "stream of " } else { "" };
        let (takes, answers) = (short(method.input_type()), short(method.output_type()));
        let about = cell(comment(comments, path, &[2, at]));
        assert!(!about.is_empty(), "{} is not explained", method.name());
        let (takes_many, answers_many) = (stream(method.client_streaming()), stream(method.server_streaming()));
        writeln!(text, "| `{}` | {takes_many}{takes} | {answers_many}{answers} | {about} |", method.name()).unwrap();
    }
}

fn message_reference(message: &DescriptorProto, comments: &Comments, path: &[i32], text: &mut String) {
    heading(message.name(), comment(comments, path, &[]), text);
    if message.field.is_empty() {
        return;
    }
    text.push_str("\n| field | type | |\n|---|---|---|\n");
    for (at, field) in (0..).zip(&message.field) {
        let about = cell(comment(comments, path, &[2, at]));
        writeln!(text, "| `{}` = {} | {} | {about} |", field.name(), field.number(), kind(message, field)).unwrap();
    }
    for (at, oneof) in (0..).zip(&message.oneof_decl) {
        let about = cell(comment(comments, path, &[8, at]));
        if !oneof.name().starts_with('_') {
            let about = if about.is_empty() { "." } else { &format!(": {about}") };
            writeln!(text, "\n`{}` is one of those marked so{about}", oneof.name()).unwrap();
        }
    }
}

fn kind(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let scalar = field.r#type().as_str_name().trim_start_matches("TYPE_").to_lowercase();
    let kind = if field.type_name().is_empty() { &scalar } else { short(field.type_name()) };
    match (field.label().as_str_name(), field.proto3_optional(), field.oneof_index) {
        ("LABEL_REPEATED", ..) => format!("repeated {kind}"),
        (_, true, _) => format!("optional {kind}"),
        (_, false, Some(at)) => {
            format!("{kind}, one of `{}`", message.oneof_decl[usize::try_from(at).unwrap()].name())
        }
        (_, false, None) => kind.to_owned(),
    }
}

fn enum_reference(values: &EnumDescriptorProto, comments: &Comments, path: &[i32], text: &mut String) {
    heading(values.name(), comment(comments, path, &[]), text);
    text.push_str("\n| value | |\n|---|---|\n");
    for (at, value) in (0..).zip(&values.value) {
        let about = if value.number() == 0 { "Refused." } else { comment(comments, path, &[2, at]) };
        writeln!(text, "| `{}` = {} | {} |", value.name(), value.number(), cell(about)).unwrap();
    }
}
