//! Checking the files that go in, and those that should come out.

use brig_jailer::policy::{Policy, Resolved};
use brig_proto::sizes;
use brig_proto::v1::input_source::Source as SpecSource;
use brig_proto::v1::{ExecutionSpec, InputSource, Reason};

use super::{Content, Expected, Input};
use crate::names::{self, RelativePath};
use crate::run::fields::Fields;

pub(in crate::run) fn check_expected(spec: &ExecutionSpec, fields: &mut Fields) -> Vec<Expected> {
    fields.at_most(
        "expected_outputs",
        spec.expected_outputs.len(),
        sizes::EXPECTED_OUTPUTS_MAX,
    );
    let mut expected = Vec::new();
    for (index, output) in spec.expected_outputs.iter().enumerate() {
        let field = format!("expected_outputs[{index}]");
        if output.max_bytes == Some(0) {
            fields.wrong(
                &format!("{field}.max_bytes"),
                Reason::InvalidValue,
                "0 is not a limit; leave it out for the default",
            );
        }
        if output.r#type.len() > 255 {
            fields.wrong(&format!("{field}.type"), Reason::TooLarge, "has more than 255 bytes");
        }
        match RelativePath::parse(&format!("{field}.path"), &output.path) {
            Ok(path) => expected.push(Expected {
                path,
                media_type: (!output.r#type.is_empty()).then(|| output.r#type.clone()),
                max_bytes: output.max_bytes,
            }),
            Err(error) => fields.name(&error),
        }
    }
    expected
}

pub(super) fn check_inputs(
    spec: &mut ExecutionSpec,
    policy: Option<&Policy>,
    limits: Option<&Resolved>,
    fields: &mut Fields,
) -> Vec<Input> {
    fields.at_most("inputs", spec.inputs.len(), sizes::INPUTS_MAX);
    if spec.inputs.iter().map(|input| input.name.len()).sum::<usize>() > sizes::NAMES_MAX {
        fields.wrong("inputs", Reason::TooLarge, "the names have more than 64 KiB in all");
    }
    let names: Vec<&str> = spec.inputs.iter().map(name).collect();
    let paths = match names::input_names("inputs", &names) {
        Ok(paths) => paths,
        Err(error) => {
            fields.name(&error);
            vec![String::new(); spec.inputs.len()]
        }
    };
    let sizes = spec.inputs.iter().map(announced_size).fold(0_u64, u64::saturating_add);
    let disk = limits.map_or(u64::MAX, |limits| limits.disk_bytes);
    let upload = policy.map_or(u64::MAX, |policy| policy.limits.upload_bytes.bytes());
    if sizes > disk.min(upload) {
        let message = format!("have {sizes} bytes in all, more than the {} that fit", disk.min(upload));
        fields.wrong("inputs", Reason::TooLarge, message);
    }
    let inputs = std::mem::take(&mut spec.inputs);
    let named = inputs.into_iter().zip(paths).enumerate();
    named
        .filter_map(|(index, (input, path))| check_input(&format!("inputs[{index}]"), input, path, fields))
        .collect()
}

fn check_input(field: &str, input: InputSource, path: String, fields: &mut Fields) -> Option<Input> {
    let mode = input.mode.unwrap_or(0o644);
    if mode > 0o777 {
        fields.wrong(
            &format!("{field}.mode"),
            Reason::InvalidValue,
            format!("{mode:o} is above 777 (octal)"),
        );
    }
    let content = match input.source {
        Some(SpecSource::Data(data)) if data.len() > sizes::INLINE_FILE_MAX => {
            fields.wrong(
                &format!("{field}.data"),
                Reason::TooLarge,
                "has more than 512 KiB; use streamed",
            );
            return None;
        }
        Some(SpecSource::Data(data)) => Content::Given(data),
        Some(SpecSource::Streamed(streamed)) => {
            let sha256 = (!streamed.sha256.is_empty()).then_some(streamed.sha256);
            Content::Streamed {
                size: streamed.size_bytes,
                sha256,
            }
        }
        Some(SpecSource::InputId(id)) if id.is_empty() => {
            let message = "names no record; Inputs.List shows them";
            fields.wrong(&format!("{field}.input_id"), Reason::MissingValue, message);
            return None;
        }
        Some(SpecSource::InputId(id)) => Content::Named(fields.id(&format!("{field}.input_id"), &id)?),
        None => {
            fields.wrong(field, Reason::MissingValue, "give data, input_id or streamed");
            return None;
        }
    };
    Some(Input {
        name: input.name,
        path,
        mode,
        content,
    })
}

/// The name of an input; that of a record stands in for it until the record is found.
fn name(input: &InputSource) -> &str {
    match &input.source {
        Some(SpecSource::InputId(id)) if input.name.is_empty() => id,
        _ => &input.name,
    }
}

fn announced_size(input: &InputSource) -> u64 {
    match &input.source {
        Some(SpecSource::Data(data)) => data.len() as u64,
        Some(SpecSource::Streamed(streamed)) => streamed.size_bytes.unwrap_or(0),
        Some(SpecSource::InputId(_)) | None => 0,
    }
}

#[cfg(test)]
mod tests {
    use brig_proto::v1::{ExpectedOutput, StreamedInput};

    use crate::status::Problem;

    use super::*;

    fn problems(fields: Fields) -> Vec<(String, Reason)> {
        match fields.done() {
            Err(Problem::Fields(problems)) => problems.into_iter().map(|p| (p.field, p.reason)).collect(),
            _ => Vec::new(),
        }
    }

    fn wrong_inputs(inputs: Vec<InputSource>) -> Vec<(String, Reason)> {
        let mut fields = Fields::default();
        let mut spec = ExecutionSpec {
            inputs,
            ..ExecutionSpec::default()
        };
        let text = "template = \"t\"\n[syscalls]\ngroups = [\"base\"]\n[limits]\nupload_bytes = 1000";
        check_inputs(&mut spec, Some(&Policy::parse("p", text).unwrap()), None, &mut fields);
        problems(fields)
    }

    fn input(name: &str, source: Option<SpecSource>) -> InputSource {
        InputSource {
            name: name.to_owned(),
            source,
            mode: None,
        }
    }

    fn data(size: usize) -> Option<SpecSource> {
        Some(SpecSource::Data(vec![0; size].into()))
    }

    #[test]
    fn inputs_that_leave_the_directory_or_have_no_content_are_refused() {
        let left = wrong_inputs(vec![input("a", data(1)), input("../b", data(1))]);
        assert_eq!(left, [("inputs[1].name".to_owned(), Reason::InvalidPath)]);
        assert_eq!(
            wrong_inputs(vec![input("a", None)]),
            [("inputs[0]".to_owned(), Reason::MissingValue)]
        );
        let kept = |id: &str| input("", Some(SpecSource::InputId(id.to_owned())));
        assert_eq!(
            wrong_inputs(vec![kept("i1"), kept("no id")]),
            [("inputs[1].input_id".to_owned(), Reason::InvalidId)]
        );
        let open = InputSource {
            mode: Some(0o4755),
            ..input("a", data(1))
        };
        assert_eq!(
            wrong_inputs(vec![open]),
            [("inputs[0].mode".to_owned(), Reason::InvalidValue)]
        );
    }

    #[test]
    fn inputs_over_the_limit_are_refused_by_what_is_announced() {
        assert_eq!(wrong_inputs(vec![input("a", data(600)), input("b", data(400))]), []);
        let too_much = [("inputs".to_owned(), Reason::TooLarge)];
        assert_eq!(
            wrong_inputs(vec![input("a", data(600)), input("b", data(401))]),
            too_much
        );
        let streamed = StreamedInput {
            size_bytes: Some(u64::MAX),
            sha256: String::new(),
        };
        let streamed = input("a", Some(SpecSource::Streamed(streamed)));
        assert_eq!(wrong_inputs(vec![streamed.clone(), streamed]), too_much);
    }

    #[test]
    fn expected_outputs_are_paths_of_files_below_the_directory() {
        let mut fields = Fields::default();
        let output = |path: &str| ExpectedOutput {
            path: path.to_owned(),
            ..ExpectedOutput::default()
        };
        let none = ExpectedOutput {
            max_bytes: Some(0),
            ..output("ok")
        };
        let expected_outputs = ["a/b.png", "../x", "/etc/passwd", "a\0", "d/"]
            .map(output)
            .into_iter()
            .chain([none]);
        let spec = ExecutionSpec {
            expected_outputs: expected_outputs.collect(),
            ..ExecutionSpec::default()
        };
        check_expected(&spec, &mut fields);
        let names: Vec<_> = problems(fields).into_iter().map(|(field, _)| field).collect();
        let paths = [1, 2, 3, 4].map(|index| format!("expected_outputs[{index}].path"));
        let expected: Vec<_> = paths
            .into_iter()
            .chain(["expected_outputs[5].max_bytes".to_owned()])
            .collect();
        assert_eq!(names, expected);
    }
}
