//! Checking what is run: code, or a command.

use brig_jailer::api::Terminal;
use brig_jailer::plan::HOME;
use brig_jailer::policy::Policy;
use brig_proto::sizes;
use brig_proto::v1::execution_spec::Work as SpecWork;
use brig_proto::v1::{Code, Command, ExecutionSpec, Reason, TerminalSize};

use super::{Image, Work, or, short};
use crate::run::context::Language;
use crate::run::fields::Fields;
use crate::status::Problem;

/// The most columns, and rows, of a terminal.
const SIDE_MAX: u16 = 1000;

pub(super) fn check_work(
    spec: &mut ExecutionSpec,
    policy: Option<&Policy>,
    language: Language,
    fields: &mut Fields,
) -> Option<Work> {
    if spec.stdin.len() > sizes::STDIN_MAX {
        fields.wrong(
            "stdin",
            Reason::TooLarge,
            "has more than 1 MiB; give it as an input file",
        );
    }
    match &mut spec.work {
        Some(SpecWork::Code(code)) => check_code(code, policy, language, fields),
        Some(SpecWork::Command(command)) => check_command(command, fields),
        None => {
            fields.wrong("work", Reason::MissingValue, "give either code or command");
            None
        }
    }
}

fn check_code(code: &Code, policy: Option<&Policy>, language: Language, fields: &mut Fields) -> Option<Work> {
    let max = policy.map_or(sizes::CODE_MAX as u64, |policy| policy.limits.code_bytes.bytes());
    if code.source.len() as u64 > max {
        let message = format!(
            "has {} bytes, at most {max} are accepted; give data as input files",
            code.source.len()
        );
        fields.wrong("code.source", Reason::TooLarge, message);
    }
    if !code.language.is_empty() && code.language != language.name() {
        let message = format!("{:?} can't be run here; {} can", short(&code.language), language.name());
        fields.wrong("code.language", Reason::InvalidValue, message);
    }
    let filename = or(&code.filename, "main.py");
    if filename.len() > 255 || filename.contains(['/', '\0']) || filename.chars().any(char::is_control) {
        fields.wrong(
            "code.filename",
            Reason::InvalidPath,
            "is not a file name of at most 255 bytes without directories",
        );
    }
    let arguments: Vec<&[u8]> = code.arguments.iter().map(String::as_bytes).collect();
    check_arguments("code.arguments", &arguments, fields);
    Some(Work::Code {
        source: code.source.clone(),
        filename: filename.to_owned(),
        arguments: code.arguments.clone(),
    })
}

fn check_command(command: &Command, fields: &mut Fields) -> Option<Work> {
    let argv: Vec<Vec<u8>> = match (command.argv.is_empty(), command.raw_argv.is_empty()) {
        (false, true) => command
            .argv
            .iter()
            .map(|argument| argument.as_bytes().to_vec())
            .collect(),
        (true, false) => command.raw_argv.iter().map(|argument| argument.to_vec()).collect(),
        (true, true) => {
            fields.wrong("command.argv", Reason::MissingValue, "names no program");
            return None;
        }
        (false, false) => {
            fields.wrong(
                "command.raw_argv",
                Reason::InvalidValue,
                "must be empty where argv is given",
            );
            return None;
        }
    };
    if argv[0].is_empty() {
        fields.wrong("command.argv[0]", Reason::InvalidValue, "is empty: name a program");
    }
    check_arguments("command.argv", &argv, fields);
    if command.directory.len() > sizes::PATH_MAX || command.directory.contains('\0') {
        fields.wrong(
            "command.directory",
            Reason::InvalidPath,
            "has more than 4,096 bytes, or a NUL character",
        );
    }
    let directory = match command.directory.as_str() {
        "" => None,
        absolute if absolute.starts_with('/') => Some(absolute.to_owned()),
        relative => Some(format!("{HOME}/{relative}")),
    };
    let directory = directory.map(String::into_bytes);
    Some(Work::Command { argv, directory })
}

/// Checks how a program is talked to: code has neither a terminal nor input that comes later.
pub(super) fn check_terminal(spec: &ExecutionSpec, fields: &mut Fields) -> Option<Terminal> {
    match &spec.work {
        Some(SpecWork::Command(command)) => {
            let size = command.terminal.as_ref()?;
            check_size("command.terminal", size, fields)
        }
        _ => {
            if spec.stdin_open {
                let message = "is for commands; give code all of it in stdin";
                fields.wrong("stdin_open", Reason::NotApplicable, message);
            }
            None
        }
    }
}

/// Checks the size of a terminal; a side that was not told has its default.
pub fn check_size(field: &str, size: &TerminalSize, fields: &mut Fields) -> Option<Terminal> {
    let mut side = |name: &str, asked: u32, default: u16| match u16::try_from(asked) {
        Ok(0) => Some(default),
        Ok(side) if side <= SIDE_MAX => Some(side),
        _ => {
            let message = format!("{asked} is too large: at most {SIDE_MAX} is accepted");
            fields.wrong(&format!("{field}.{name}"), Reason::TooLarge, message);
            None
        }
    };
    let (columns, rows) = (side("columns", size.columns, 80), side("rows", size.rows, 24));
    Some(Terminal {
        columns: columns?,
        rows: rows?,
    })
}

fn check_arguments(field: &str, arguments: &[impl AsRef<[u8]>], fields: &mut Fields) {
    fields.at_most(field, arguments.len(), sizes::ARGUMENTS_MAX);
    if arguments.iter().map(|argument| argument.as_ref().len()).sum::<usize>() > sizes::ARGUMENT_BYTES_MAX {
        fields.wrong(field, Reason::TooLarge, "has more than 128 KiB in all");
    }
    if let Some(index) = arguments.iter().position(|argument| argument.as_ref().contains(&0)) {
        fields.wrong(
            &format!("{field}[{index}]"),
            Reason::InvalidValue,
            "contains a NUL character",
        );
    }
}

pub(super) fn check_interpreter(work: &Work, template: &Image) -> Result<(), Problem> {
    let mut fields = Fields::default();
    if matches!(work, Work::Code { .. }) && !template.runs_code {
        let message = format!("{} has no interpreter for code; it runs commands", template.id);
        fields.wrong("template", Reason::NotApplicable, message);
    }
    fields.done()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields that are wrong with a piece of work, and the reason of the first.
    fn wrong(work: SpecWork) -> (Vec<String>, Option<Reason>) {
        let mut fields = Fields::default();
        let mut spec = ExecutionSpec {
            work: Some(work),
            ..ExecutionSpec::default()
        };
        check_work(&mut spec, None, Language::Python, &mut fields);
        match fields.done() {
            Err(Problem::Fields(problems)) => {
                let reason = problems.first().map(|problem| problem.reason);
                (problems.into_iter().map(|problem| problem.field).collect(), reason)
            }
            _ => (Vec::new(), None),
        }
    }

    fn code(change: impl FnOnce(&mut Code)) -> SpecWork {
        let mut code = Code {
            source: "print(1)".to_owned(),
            ..Code::default()
        };
        change(&mut code);
        SpecWork::Code(code)
    }

    fn command(argv: &[&str]) -> SpecWork {
        let argv = argv.iter().map(|argument| (*argument).to_owned()).collect();
        SpecWork::Command(Command {
            argv,
            ..Command::default()
        })
    }

    fn one(field: &str, reason: Reason) -> (Vec<String>, Option<Reason>) {
        (vec![field.to_owned()], Some(reason))
    }

    #[test]
    fn code_is_at_most_a_mebibyte_of_python_in_a_plain_file() {
        assert_eq!(
            wrong(code(|code| code.source = "x".repeat(1 << 20))),
            (Vec::new(), None)
        );
        assert_eq!(
            wrong(code(|code| code.source = "x".repeat((1 << 20) + 1))),
            one("code.source", Reason::TooLarge)
        );
        let perl = wrong(code(|code| code.language = "perl".to_owned()));
        assert_eq!(perl, one("code.language", Reason::InvalidValue));
        for name in ["../x.py", "a/b", "a\0", "a\n"] {
            let named = wrong(code(|code| code.filename = name.to_owned()));
            assert_eq!(named, one("code.filename", Reason::InvalidPath), "{name:?}");
        }
    }

    #[test]
    fn arguments_are_bounded_and_have_no_nul() {
        assert_eq!(
            wrong(command(&["ls", "a\0b"])),
            one("command.argv[1]", Reason::InvalidValue)
        );
        assert_eq!(wrong(command(&["x"; 1025])), one("command.argv", Reason::TooLarge));
        let long = "x".repeat(128 * 1024);
        assert_eq!(wrong(command(&["x", &long])), one("command.argv", Reason::TooLarge));
    }

    #[test]
    fn a_terminal_has_a_size_and_code_has_none() {
        let check = |spec: &ExecutionSpec| {
            let mut fields = Fields::default();
            let terminal = check_terminal(spec, &mut fields);
            let problem = fields.done().err().map(|problem| problem.field().to_owned());
            (terminal.map(|terminal| (terminal.columns, terminal.rows)), problem)
        };
        let sized = |columns: u32, rows: u32| ExecutionSpec {
            work: Some(SpecWork::Command(Command {
                terminal: Some(TerminalSize { columns, rows }),
                ..Command::default()
            })),
            stdin_open: true,
            ..ExecutionSpec::default()
        };
        assert_eq!(check(&sized(0, 0)), (Some((80, 24)), None));
        assert_eq!(check(&sized(1000, 1)), (Some((1000, 1)), None));
        assert_eq!(
            check(&sized(80, 1001)),
            (None, Some("command.terminal.rows".to_owned()))
        );
        assert_eq!(
            check(&sized(70_000, 24)),
            (None, Some("command.terminal.columns".to_owned()))
        );
        let open = ExecutionSpec {
            work: Some(code(|_| {})),
            stdin_open: true,
            ..ExecutionSpec::default()
        };
        assert_eq!(check(&open), (None, Some("stdin_open".to_owned())));
    }

    #[test]
    fn a_command_names_a_program_in_one_of_two_ways() {
        assert_eq!(wrong(command(&[])), one("command.argv", Reason::MissingValue));
        assert_eq!(wrong(command(&[""])), one("command.argv[0]", Reason::InvalidValue));
        let both = Command {
            argv: vec!["a".to_owned()],
            raw_argv: vec!["b".into()],
            ..Command::default()
        };
        assert_eq!(
            wrong(SpecWork::Command(both)),
            one("command.raw_argv", Reason::InvalidValue)
        );
    }
}
