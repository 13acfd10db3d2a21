//! What kept sessions take while nothing runs in them.

use std::time::Duration;

use brig_tests::services::Service;

use crate::context::context;
use crate::memory::own;
use crate::ours::Ours;
use crate::samples::{Measurement, Unit, mebibytes};

/// Until what was started is at rest.
const REST: Duration = Duration::from_secs(1);

/// Measures sessions without a context, then some with one, where there are contexts.
pub(crate) fn idle(
    ours: &Ours,
    sessions: usize,
    contexts: usize,
    left_out: &mut Vec<String>,
) -> anyhow::Result<Vec<Measurement>> {
    let mut measured = measure(ours, sessions, "without a context", |_| Ok(()))?;
    match measure(ours, contexts, "with a context", |session| {
        context(ours, session).map(drop)
    }) {
        Ok(more) => measured.extend(more),
        Err(error) => left_out.push(format!("idle sessions with a context: {error:#}")),
    }
    Ok(measured)
}

fn measure(
    ours: &Ours,
    count: usize,
    which: &str,
    prepare: impl Fn(&str) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<Measurement>> {
    let of = |what: &str| Measurement::new(format!("idle session {which}, {what}"), Unit::Mebibytes);
    let mut private = of("memory of its processes");
    let mut charged = of("charged to its control group");
    let mut daemons = of("growth of the daemons");

    let before = daemons_private(ours)?;
    let mut sessions = Vec::new();
    let mut prepared = Ok(());
    for _ in 0..count {
        let session = ours.keep("data");
        prepared = prepare(&session);
        sessions.push(session);
        if prepared.is_err() {
            break;
        }
    }
    if prepared.is_ok() {
        std::thread::sleep(REST);
        for (processes, bytes) in ours.groups().memory_of(&sessions)?.into_values() {
            let sum: anyhow::Result<u64> = processes.into_iter().map(own).sum();
            private.ours.push(mebibytes(sum?));
            charged.ours.push(mebibytes(bytes));
        }
        let growth = daemons_private(ours)?.saturating_sub(before);
        daemons.ours.push(mebibytes(growth / sessions.len().max(1) as u64));
    }
    for session in &sessions {
        ours.services().close(session);
    }
    prepared.map(|()| vec![private, charged, daemons])
}

fn daemons_private(ours: &Ours) -> anyhow::Result<u64> {
    let both = [Service::Jailer, Service::Daemon];
    both.map(|service| own(ours.process(service).pid)).into_iter().sum()
}
