//! The rules of `proto/README.md`, as far as a machine can check them.

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto};

use crate::descriptors::{enums, files, message, messages};

/// Calls that change something, but have no request_id of their own, and why.
const ID_ELSEWHERE: [(&str, &str); 8] = [
    ("Executions.Run", "in the spec"),
    ("Executions.Execute", "in the spec"),
    ("Executions.Input", "offset does it"),
    ("Inputs.Create", "in the spec"),
    ("Files.Upload", "in the spec"),
    (
        "Artifacts.Link",
        "it changes nothing: the second link is another one to the same artifact",
    ),
    (
        "Artifacts.Sweep",
        "what is gone is gone: the second time nothing is left to do",
    ),
    (
        "Ledger.Sweep",
        "what is gone is gone: the second time nothing is left to do",
    ),
];

const READING: [&str; 9] = [
    "Get", "List", "Watch", "Attach", "Stat", "Download", "Follow", "Export", "Verify",
];

fn calls() -> Vec<(String, MethodDescriptorProto)> {
    let services = files().into_iter().flat_map(|file| file.service);
    services
        .flat_map(|service| {
            let name = service.name().to_owned();
            service.method.into_iter().map(move |method| (name.clone(), method))
        })
        .collect()
}

#[test]
fn the_services_are_those_of_the_contract() {
    let calls: Vec<String> = calls()
        .iter()
        .map(|(service, call)| format!("{service}.{}", call.name()))
        .collect();
    let contract = "
        Sessions Create Get List Update Pause Resume Fork Close Watch
        Contexts Create List Reset Close
        Executions Run Execute Input CloseInput Signal Resize Interrupt Cancel Attach Get List Approve Reject
        Inputs Create Get List Delete
        Files Upload Download Stat List MakeDir Move Remove Watch
        Artifacts List Get Download Link Approve Reject Save Watch Sweep
        Templates List Get
        Packages List Install
        Ledger List Follow Export Verify Erase Sweep
        Host Get";
    let mut expected: Vec<String> = Vec::new();
    for line in contract.lines().filter(|line| !line.is_empty()) {
        let mut words = line.split_whitespace();
        let service = words.next().expect("a line has words");
        expected.extend(words.map(|call| format!("{service}.{call}")));
    }
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    assert_eq!(sorted(calls), sorted(expected));
}

#[test]
fn messages_are_named_after_their_call() {
    for (service, call) in calls() {
        let full = format!(".brig.v1.{service}{}", call.name());
        let short = format!(".brig.v1.{}", call.name());
        let name = if ["Run", "Execute"].contains(&call.name()) {
            &short
        } else {
            &full
        };
        assert_eq!(call.input_type(), format!("{name}Request"));
        if ["Run", "Execute", "Attach"].contains(&call.name()) {
            assert_eq!(call.output_type(), ".brig.v1.ExecutionEvent");
        } else {
            assert_eq!(call.output_type(), format!("{name}Response"));
        }
    }
}

#[test]
fn calls_that_change_something_can_be_repeated() {
    for (service, call) in calls() {
        let name = format!("{service}.{}", call.name());
        if READING.contains(&call.name()) || ID_ELSEWHERE.iter().any(|(other, _)| *other == name) {
            continue;
        }
        let request = message(call.input_type().trim_start_matches(".brig.v1."));
        assert_eq!(
            request.field.first().map(|field| field.name()),
            Some("request_id"),
            "{name}"
        );
    }
    for spec in ["ExecutionSpec", "InputSpec", "UploadSpec"] {
        assert_eq!(
            message(spec).field.first().map(|field| field.name()),
            Some("request_id"),
            "{spec}"
        );
    }
}

#[test]
fn lists_are_paged_in_one_way() {
    for (service, call) in calls().into_iter().filter(|(_, call)| call.name() == "List") {
        let request = message(&format!("{service}ListRequest"));
        let fields: Vec<_> = request
            .field
            .iter()
            .take(2)
            .map(|field| (field.name(), field.number()))
            .collect();
        assert_eq!(
            fields,
            [("page_size", 1), ("page_token", 2)],
            "{service}.{}",
            call.name()
        );
        let response = message(&format!("{service}ListResponse"));
        assert_eq!(response.field[0].label(), Label::Repeated, "{service}");
        assert_eq!(response.field[1].name(), "next_page_token", "{service}");
    }
}

#[test]
fn units_are_types_or_stand_in_the_name() {
    for message in messages() {
        for field in &message.field {
            let place = format!("{}.{}", message.name(), field.name());
            if field.name().ends_with("_bytes") {
                assert_eq!(field.r#type(), Type::Uint64, "{place}");
            }
            if field.name().ends_with("_time") && field.type_name() != ".google.protobuf.Duration" {
                assert_eq!(field.type_name(), ".google.protobuf.Timestamp", "{place}");
            }
            for suffix in ["_ms", "_seconds", "_kb", "_mb", "_size_limit"] {
                assert!(
                    !field.name().ends_with(suffix),
                    "{place}: spans are Durations, sizes are bytes"
                );
            }
            assert!(
                ![Type::Int64, Type::Float, Type::Group].contains(&field.r#type()),
                "{place}"
            );
        }
    }
}

#[test]
fn every_limit_has_presence() {
    for field in message("Limits").field {
        let present = field.proto3_optional();
        assert!(present, "Limits.{}: absent is the default, 0 is refused", field.name());
    }
}

#[test]
fn enums_begin_unspecified_and_carry_their_name() {
    for list in enums() {
        let mut prefix = String::new();
        for letter in list.name().chars() {
            if letter.is_uppercase() && !prefix.is_empty() {
                prefix.push('_');
            }
            prefix.push(letter.to_ascii_uppercase());
        }
        assert_eq!(list.value[0].name(), format!("{prefix}_UNSPECIFIED"));
        assert_eq!(list.value[0].number(), 0);
        for value in &list.value {
            assert!(value.name().starts_with(&format!("{prefix}_")), "{}", value.name());
        }
    }
}

#[test]
fn the_descriptor_set_has_all_that_its_files_import() {
    let set = FileDescriptorSet::decode(brig_proto::FILE_DESCRIPTOR_SET).unwrap();
    let names: Vec<&str> = set.file.iter().map(FileDescriptorProto::name).collect();
    let missing: Vec<&String> = set
        .file
        .iter()
        .flat_map(|file| &file.dependency)
        .filter(|name| !names.contains(&name.as_str()))
        .collect();
    assert_eq!(missing, Vec::<&String>::new());
}

/// The path of each service, call, message, field, enum and value in the descriptor of a file.
fn paths(file: &FileDescriptorProto) -> Vec<(String, Vec<i32>)> {
    let at = |index: usize| i32::try_from(index).expect("a file is not that long");
    let mut paths = Vec::new();
    for (i, message) in file.message_type.iter().enumerate() {
        paths.push((message.name().to_owned(), vec![4, at(i)]));
        let fields = message.field.iter().enumerate();
        paths.extend(fields.map(|(j, f)| (format!("{}.{}", message.name(), f.name()), vec![4, at(i), 2, at(j)])));
    }
    for (i, list) in file.enum_type.iter().enumerate() {
        paths.push((list.name().to_owned(), vec![5, at(i)]));
        let values = list.value.iter().enumerate();
        paths.extend(values.map(|(j, v)| (v.name().to_owned(), vec![5, at(i), 2, at(j)])));
    }
    for (i, service) in file.service.iter().enumerate() {
        paths.push((service.name().to_owned(), vec![6, at(i)]));
        let calls = service.method.iter().enumerate();
        paths.extend(calls.map(|(j, c)| (format!("{}.{}", service.name(), c.name()), vec![6, at(i), 2, at(j)])));
    }
    paths
}

#[test]
fn everything_has_a_comment_that_is_a_sentence() {
    for file in files() {
        let source = file.source_code_info.as_ref().expect("the build script keeps comments");
        for (name, path) in paths(&file) {
            let location = source.location.iter().find(|location| location.path == path);
            let comment = location
                .map(|location| location.leading_comments())
                .unwrap_or_default()
                .trim();
            assert!(comment.ends_with(['.', ')']), "{}: {name}: {comment:?}", file.name());
        }
    }
}
