//! The committed descriptor set is the promise of v1: what it names keeps its number, name and type.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeMap, env, fs, path::PathBuf};

use budget_proto::pb::FILE_DESCRIPTOR_SET;
use prost::Message;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    field_descriptor_proto,
};

const UPDATE: &str = "UPDATE_DESCRIPTORS=1 cargo test -p budget-proto --test descriptors";

fn committed_path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("retrybudget.v1.bin")
}

#[test]
fn the_committed_set_is_current_and_kept() {
    let path = committed_path();
    let committed = fs::read(&path).unwrap_or_default();
    let broken = broken_promises(&committed, FILE_DESCRIPTOR_SET);
    assert!(broken.is_empty(), "retrybudget.v1 must stay compatible with {}:\n{}", path.display(), broken.join("\n"));
    if env::var_os("UPDATE_DESCRIPTORS").is_some_and(|value| value == "1") {
        fs::write(&path, FILE_DESCRIPTOR_SET).unwrap();
    } else {
        let same = committed == FILE_DESCRIPTOR_SET;
        assert!(
            same,
            "{} is not what proto/retrybudget/v1 says; if the change is meant, run\n  {UPDATE}",
            path.display()
        );
    }
}

/// Everything of `old` that `new` lacks or says otherwise.
fn broken_promises(old: &[u8], new: &[u8]) -> Vec<String> {
    let (old, new) = (promises(old), promises(new));
    let kept = |(name, what): (&String, &String)| match new.get(name) {
        None => Some(format!("{name} was {what} and is gone")),
        Some(now) if now != what => Some(format!("{name} was {what} and is {now}")),
        Some(_) => None,
    };
    old.iter().filter_map(kept).collect()
}

/// One line for each method, field and enum value. A field is known by its number: that is what the wire carries; its
/// name is part of the promise because generated code and JSON carry it.
fn promises(set: &[u8]) -> BTreeMap<String, String> {
    let mut promises = BTreeMap::new();
    for file in FileDescriptorSet::decode(set).unwrap().file {
        let package = file.package().to_owned();
        for service in &file.service {
            for method in &service.method {
                let stream = |streams| if streams { "stream " } else { "" };
                let input = format!("{}{}", stream(method.client_streaming()), method.input_type());
                let output = format!("{}{}", stream(method.server_streaming()), method.output_type());
                let name = format!("{package}.{}/{}", service.name(), method.name());
                promises.insert(name, format!("({input}) returns ({output})"));
            }
        }
        file.message_type.iter().for_each(|message| message_promises(&package, message, &mut promises));
        file.enum_type.iter().for_each(|values| enum_promises(&package, values, &mut promises));
    }
    promises
}

fn message_promises(scope: &str, message: &DescriptorProto, promises: &mut BTreeMap<String, String>) {
    let scope = format!("{scope}.{}", message.name());
    for field in &message.field {
        promises.insert(format!("{scope} field {}", field.number()), field_promise(message, field));
    }
    message.nested_type.iter().for_each(|nested| message_promises(&scope, nested, promises));
    message.enum_type.iter().for_each(|values| enum_promises(&scope, values, promises));
}

fn field_promise(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    // Messages and enums go by their name, everything else by its kind.
    let kind = if field.type_name().is_empty() { field.r#type().as_str_name() } else { field.type_name() };
    let oneof = match (field.proto3_optional(), field.oneof_index) {
        (true, _) => " optional".to_owned(),
        (false, Some(index)) => format!(" oneof {}", message.oneof_decl[usize::try_from(index).unwrap()].name()),
        (false, None) => String::new(),
    };
    format!("{} {} {kind}{oneof}", field.name(), field.label().as_str_name())
}

fn enum_promises(scope: &str, values: &EnumDescriptorProto, promises: &mut BTreeMap<String, String>) {
    for value in &values.value {
        promises.insert(format!("{scope}.{} value {}", values.name(), value.number()), value.name().to_owned());
    }
}

/// The judge itself: each kind of change, and whether it is seen.
#[test]
fn every_kind_of_break_is_seen() {
    let message = |set: &mut FileDescriptorSet, name: &str, change: &dyn Fn(&mut DescriptorProto)| {
        let found = set.file.iter_mut().flat_map(|file| &mut file.message_type).find(|message| message.name() == name);
        change(found.unwrap());
    };
    fn budget(set: &mut FileDescriptorSet) -> &mut FileDescriptorProto {
        set.file.iter_mut().find(|file| file.name().ends_with("/budget.proto")).unwrap()
    }
    let broken = |change: &dyn Fn(&mut FileDescriptorSet)| {
        let mut set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
        change(&mut set);
        broken_promises(FILE_DESCRIPTOR_SET, &set.encode_to_vec())
    };
    let on_cost = |change: &dyn Fn(&mut DescriptorProto)| broken(&|set| message(set, "Cost", change));

    assert_eq!(broken(&|_| ()), Vec::<String>::new());
    let further = FieldDescriptorProto { number: Some(9), name: Some("new".into()), ..FieldDescriptorProto::default() };
    assert_eq!(on_cost(&|cost| cost.field.push(further.clone())), Vec::<String>::new());
    assert_eq!(
        on_cost(&|cost| drop(cost.field.remove(0))),
        ["retrybudget.v1.Cost field 1 was unit LABEL_OPTIONAL TYPE_STRING and is gone"]
    );
    assert_eq!(on_cost(&|cost| cost.field[0].number = Some(7)).len(), 1);
    assert_eq!(on_cost(&|cost| cost.field[0].name = Some("name".into())).len(), 1);
    assert_eq!(on_cost(&|cost| cost.field[1].set_type(field_descriptor_proto::Type::Int64)).len(), 1);
    assert_eq!(on_cost(&|cost| cost.field[1].set_label(field_descriptor_proto::Label::Repeated)).len(), 1);
    assert_eq!(broken(&|set| message(set, "Denied", &|denied| denied.field[1].proto3_optional = None)).len(), 1);
    assert_eq!(broken(&|set| drop(budget(set).enum_type[0].value.remove(1))).len(), 1);
    assert_eq!(broken(&|set| drop(budget(set).service[0].method.remove(0))).len(), 1);
    assert_eq!(broken(&|set| budget(set).service[0].method[0].server_streaming = Some(true)).len(), 1);
}
