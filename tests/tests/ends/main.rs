//! How executions end: one table of causes, each provoked in every way in which work can be run.
//!
//! The lists of statuses and of causes are closed; [`every_status_and_every_cause_has_a_row`] fails when the API gets one
//! that nothing here provokes.
#![cfg(test)]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod first;
mod matrix;
mod reviews;
mod rows;
mod singles;

use std::collections::BTreeSet;

use brig_proto::v1::{CauseKind, ExecutionStatus as Status};

#[test]
fn every_status_and_every_cause_has_a_row() {
    let table = rows::all().into_iter().map(|row| (row.end.status, row.end.cause));
    let ends: Vec<_> = table
        .chain(singles::ENDS.iter().copied())
        .chain(reviews::ENDS.iter().copied())
        .collect();
    let statuses: BTreeSet<i32> = ends.iter().map(|(status, _)| *status as i32).collect();
    let causes: BTreeSet<i32> = ends.iter().filter_map(|(_, cause)| Some((*cause)? as i32)).collect();
    // Numbers of an enum begin at 0, which stands for none, and have no gaps: the first that is unknown is the end.
    let known = |number: &i32| Status::try_from(*number).is_ok();
    let all_statuses: BTreeSet<i32> = (1..).take_while(known).collect();
    assert_eq!(statuses, all_statuses);
    let known = |number: &i32| CauseKind::try_from(*number).is_ok();
    let all_causes: BTreeSet<i32> = (1..).take_while(known).collect();
    assert_eq!(causes, all_causes);
}
