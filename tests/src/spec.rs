//! Short ways to say what is to be run. Tests add to them by `..code("...")`.

use std::time::Duration;

use brig_proto::v1::execution_spec::Work;
use brig_proto::v1::input_source::Source;
use brig_proto::v1::{Code, Command, ExecutionSpec, InputSource, Limits};
use prost::Message;

use crate::slow;

/// Python code.
pub fn code(source: &str) -> ExecutionSpec {
    let work = Code {
        source: source.to_owned(),
        ..Code::default()
    };
    ExecutionSpec {
        work: Some(Work::Code(work)),
        limits: patience(),
        ..ExecutionSpec::default()
    }
}

/// A program with its arguments.
pub fn command(argv: &[&str]) -> ExecutionSpec {
    let work = Command {
        argv: argv.iter().map(|part| (*part).to_owned()).collect(),
        ..Command::default()
    };
    ExecutionSpec {
        work: Some(Work::Command(work)),
        limits: patience(),
        ..ExecutionSpec::default()
    }
}

/// A shell script, in the small image, which starts faster.
pub fn sh(script: &str) -> ExecutionSpec {
    ExecutionSpec {
        template: "base".to_owned(),
        ..command(&["sh", "-c", script])
    }
}

/// Python code in the small image.
pub fn small(source: &str) -> ExecutionSpec {
    ExecutionSpec {
        template: "base".to_owned(),
        ..code(source)
    }
}

/// An input file whose content goes with the request.
pub fn input(name: &str, data: &[u8]) -> InputSource {
    InputSource {
        name: name.to_owned(),
        source: Some(Source::Data(data.to_vec().into())),
        mode: None,
    }
}

/// An input file whose content is in a record.
pub fn record(name: &str, id: &str) -> InputSource {
    InputSource {
        name: name.to_owned(),
        source: Some(Source::InputId(id.to_owned())),
        mode: None,
    }
}

/// A span as the API has it.
pub fn span(span: Duration) -> prost_types::Duration {
    span.try_into().unwrap()
}

/// Where everything takes longer, what has no limits of its own has more time than the policy gives by default.
fn patience() -> Option<Limits> {
    if slow() == 1 {
        return None;
    }
    timeout((30_000 * u64::from(slow())).min(300_000))
}

/// Limits with this timeout alone.
pub fn timeout(millis: u64) -> Option<Limits> {
    Some(Limits {
        timeout: Some(span(Duration::from_millis(millis))),
        ..Limits::default()
    })
}

/// As much time as the policies give at most: for what lives as long as its test.
pub fn long() -> Option<Limits> {
    timeout(300_000)
}

/// With the time to start that the policies give, or more on a slow machine: for many that wait for each other.
pub fn patient(spec: ExecutionSpec) -> ExecutionSpec {
    let limits = Limits {
        start_timeout: Some(span(Duration::from_secs(10) * crate::slow())),
        ..Limits::default()
    };
    with_limits(limits, spec)
}

/// Adds limits to those that are there; both may not set the same one.
pub fn with_limits(limits: Limits, spec: ExecutionSpec) -> ExecutionSpec {
    let there = spec.limits.unwrap_or_default();
    let both = [there.encode_to_vec(), limits.encode_to_vec()].concat();
    ExecutionSpec {
        limits: Some(Limits::decode(both.as_slice()).unwrap()),
        ..spec
    }
}
