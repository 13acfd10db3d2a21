//! What was published stays: `proto/baseline.txt` has a line for each field, value and call.

use std::collections::BTreeSet;

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto};

use crate::descriptors::{files, read_committed};

const BASELINE: &str = include_str!("../../baseline.txt");

/// Type, label and place of a field: all that decides whether old and new programs understand each other.
fn field_line(message: &DescriptorProto, name: &str, field: &FieldDescriptorProto) -> String {
    let kind = match field.r#type() {
        Type::Message | Type::Enum => field.type_name().trim_start_matches('.').to_owned(),
        scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    };
    let entry = message.nested_type.iter().find(|nested| name_of(name, nested) == kind);
    let (label, kind) = match (entry, field.label()) {
        (Some(entry), _) => ("map", map_kind(entry)),
        (None, Label::Repeated) => ("repeated", kind),
        (None, _) if field.proto3_optional() => ("optional", kind),
        (None, _) => ("singular", kind),
    };
    let place = match field.oneof_index {
        Some(index) if !field.proto3_optional() => {
            let index = usize::try_from(index).expect("an index is not negative");
            format!(" in {}", message.oneof_decl[index].name())
        }
        _ => String::new(),
    };
    format!("field {name}.{} {} {label} {kind}{place}", field.name(), field.number())
}

fn name_of(parent: &str, nested: &DescriptorProto) -> String {
    format!("{parent}.{}", nested.name())
}

fn map_kind(entry: &DescriptorProto) -> String {
    let parts: Vec<String> = entry.field.iter().map(|field| field_line(entry, "", field)).collect();
    let kinds: Vec<&str> = parts.iter().filter_map(|line| line.rsplit(' ').next()).collect();
    format!("<{}>", kinds.join(","))
}

fn message_lines(package: &str, message: &DescriptorProto) -> Vec<String> {
    let name = format!("{package}.{}", message.name());
    let fields = message.field.iter().map(|field| field_line(message, &name, field));
    [format!("message {name}")].into_iter().chain(fields).collect()
}

fn enum_lines(package: &str, list: &EnumDescriptorProto) -> Vec<String> {
    let name = format!("{package}.{}", list.name());
    let values = list
        .value
        .iter()
        .map(|value| format!("value {name}.{} {}", value.name(), value.number()));
    [format!("enum {name}")].into_iter().chain(values).collect()
}

fn service_lines(file: &FileDescriptorProto) -> Vec<String> {
    let stream = |flag: bool| if flag { "stream " } else { "" };
    let mut lines = Vec::new();
    for service in &file.service {
        for method in &service.method {
            lines.push(format!(
                "call {}.{}.{} ({}{}) returns ({}{})",
                file.package(),
                service.name(),
                method.name(),
                stream(method.client_streaming()),
                method.input_type().trim_start_matches('.'),
                stream(method.server_streaming()),
                method.output_type().trim_start_matches('.'),
            ));
        }
    }
    lines
}

fn current() -> Vec<String> {
    let mut lines = Vec::new();
    for file in files() {
        let package = file.package().to_owned();
        lines.extend(service_lines(&file));
        lines.extend(
            file.message_type
                .iter()
                .flat_map(|message| message_lines(&package, message)),
        );
        lines.extend(file.enum_type.iter().flat_map(|list| enum_lines(&package, list)));
    }
    lines
}

/// Lines of the baseline that are not there any more: clients that know them would break.
fn broken<'a>(baseline: &'a str, current: &[String]) -> Vec<&'a str> {
    let current: BTreeSet<&str> = current.iter().map(String::as_str).collect();
    baseline.lines().filter(|line| !current.contains(line)).collect()
}

#[test]
fn nothing_published_is_removed_renumbered_or_retyped() {
    let broken = broken(BASELINE, &current());
    assert!(
        broken.is_empty(),
        "v1 is only added to; these are gone or changed:\n{}",
        broken.join("\n")
    );
    // Only what passed above is ever written: BRIG_UPDATE=1 takes additions and nothing else.
    let expected = current().join("\n") + "\n";
    let committed = read_committed("baseline.txt", &expected);
    assert!(
        committed == expected,
        "there is something new; BRIG_UPDATE=1 cargo test -p brig-proto adds it"
    );
}

#[test]
fn a_removed_renumbered_or_retyped_field_is_noticed() {
    let now = |line: &str| vec!["message brig.v1.A".to_owned(), line.to_owned()];
    let baseline = "message brig.v1.A\nfield brig.v1.A.x 1 singular uint64\n";
    let gone = vec!["field brig.v1.A.x 1 singular uint64"];
    assert_eq!(
        broken(baseline, &now("field brig.v1.A.x 1 singular uint64")),
        Vec::<&str>::new()
    );
    assert_eq!(broken(baseline, &now("field brig.v1.A.y 1 singular uint64")), gone);
    assert_eq!(broken(baseline, &now("field brig.v1.A.x 2 singular uint64")), gone);
    assert_eq!(broken(baseline, &now("field brig.v1.A.x 1 optional uint64")), gone);
    assert_eq!(
        broken(baseline, &now("field brig.v1.A.x 1 singular uint64 in part")),
        gone
    );
}

#[test]
fn lines_show_presence_maps_and_oneofs() {
    let current = current();
    for line in [
        "call brig.v1.Executions.Run (stream brig.v1.RunRequest) returns (stream brig.v1.ExecutionEvent)",
        "field brig.v1.RunRequest.spec 1 singular brig.v1.ExecutionSpec in part",
        "field brig.v1.Limits.memory_bytes 2 optional uint64",
        "field brig.v1.ExecutionResult.labels 29 map <string,string>",
        "field brig.v1.ExecutionResult.artifacts 4 repeated brig.v1.Artifact",
        "value brig.v1.ExecutionStatus.EXECUTION_STATUS_SUCCESS 1",
    ] {
        assert!(current.iter().any(|other| other == line), "{line}");
    }
}
