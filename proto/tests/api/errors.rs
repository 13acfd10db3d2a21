//! `docs/errors.md` has a row for each reason, with its code, and no other.

use brig_proto::{reason::code_name, v1::Reason};

use crate::descriptors::enums;

const PAGE: &str = include_str!("../../../docs/errors.md");

fn reasons() -> Vec<Reason> {
    let list = enums()
        .into_iter()
        .find(|list| list.name() == "Reason")
        .expect("errors.proto has it");
    let numbers = list.value.iter().map(prost_types::EnumValueDescriptorProto::number);
    numbers
        .filter(|number| *number != 0)
        .map(|number| Reason::try_from(number).expect("it is of the list"))
        .collect()
}

/// Rows of the page's tables as (reason, code, meaning, what to do).
fn rows() -> Vec<[String; 4]> {
    let lines = PAGE.lines().filter(|line| line.starts_with("| `"));
    lines
        .map(|line| {
            let cells: Vec<String> = line
                .trim_matches('|')
                .split('|')
                .map(|cell| cell.trim().to_owned())
                .collect();
            cells.try_into().unwrap_or_else(|_| panic!("not four cells: {line}"))
        })
        .collect()
}

#[test]
fn the_page_lists_every_reason_with_its_code_in_the_order_of_the_proto() {
    let listed: Vec<(String, String)> = rows().into_iter().map(|[reason, code, ..]| (reason, code)).collect();
    let expected: Vec<(String, String)> = reasons()
        .into_iter()
        .map(|reason| (format!("`{}`", reason.name()), code_name(reason.code()).to_owned()))
        .collect();
    assert_eq!(listed, expected);
}

#[test]
fn every_row_says_what_it_means_and_what_to_do() {
    for [reason, _, meaning, remedy] in rows() {
        assert!(meaning.ends_with('.') && remedy.ends_with('.'), "{reason}");
    }
}

#[test]
fn names_lead_back_to_reasons() {
    for reason in reasons() {
        assert_eq!(Reason::from_name(reason.name()), reason);
    }
    assert_eq!(Reason::from_name("OF_TOMORROW"), Reason::Unspecified);
}
