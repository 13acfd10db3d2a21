//! A group file: system calls, each with the reason why a guest may make it.
#![forbid(unsafe_code)]

use std::path::Path;

use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition};
use serde::Deserialize;

use super::constants;
use super::names::{self, Number};
use crate::policy::{Document, Problem, nearest};

/// The entries of a group file, by the numbers of this architecture.
#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    pub(super) allow: Vec<Rule>,
}

/// The number of a call, and what must hold of its arguments.
pub(super) type Rule = (i64, Vec<Condition>);

/// An argument that must have a value for the call to be allowed.
///
/// Arguments are compared in 32 bits, as the kernel reads those that are worth comparing (int, unsigned int): in 64
/// bits, a value with any high bit set would pass for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Condition {
    index: u8,
    op: Op,
    mask: u32,
    value: u32,
}

/// How an argument is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Op {
    Eq,
    Ne,
    /// The bits under the mask equal the value.
    MaskedEq,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    allow: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    syscall: String,
    why: String,
    #[serde(default)]
    args: Vec<Arg>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arg {
    index: u8,
    op: Op,
    mask: Option<Value>,
    value: Value,
}

/// A number, or names of constants joined by `|`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Number(u32),
    Names(String),
}

impl Group {
    pub(super) fn parse(file: &Path, text: &str) -> Result<Self, Vec<Problem>> {
        let (parsed, document): (File, _) = Document::parse(file, text).map_err(|problem| vec![problem])?;
        let mut group = Self::default();
        let mut problems = Vec::new();
        for (index, entry) in parsed.allow.iter().enumerate() {
            let wrong = |(key, message): (&str, String)| document.problem(&format!("allow[{index}].{key}"), message);
            match entry.read() {
                Ok(Some(rule)) => group.allow.push(rule),
                Ok(None) => {}
                Err(error) => problems.push(wrong(error)),
            }
        }
        if problems.is_empty() { Ok(group) } else { Err(problems) }
    }
}

impl Entry {
    /// Gives the number and the conditions; nothing if the call is another architecture's.
    fn read(&self) -> Result<Option<Rule>, (&'static str, String)> {
        let number = names::number(&self.syscall);
        let number = number.ok_or_else(|| ("syscall", unknown("system call", &self.syscall, names::names())))?;
        if self.why.trim().is_empty() {
            return Err(("why", format!("{} needs a reason", self.syscall)));
        }
        let conditions: Result<Vec<_>, _> = self.args.iter().map(Arg::read).collect();
        let mut conditions = conditions.map_err(|message| ("args", format!("{}: {message}", self.syscall)))?;
        conditions.sort_unstable();
        conditions.dedup();
        Ok(match number {
            Number::Here(number) => Some((number, conditions)),
            Number::Elsewhere => None,
        })
    }
}

impl Arg {
    fn read(&self) -> Result<Condition, String> {
        if self.index > 5 {
            return Err(format!("index {} is not an argument, accepted: 0 to 5", self.index));
        }
        let mask = match (self.op, &self.mask) {
            (Op::MaskedEq, Some(mask)) => mask.read()?,
            (Op::MaskedEq, None) => return Err("masked_eq needs a mask".to_owned()),
            (_, Some(_)) => return Err("a mask has no effect without masked_eq".to_owned()),
            (_, None) => u32::MAX,
        };
        let value = self.value.read()?;
        if value & !mask != 0 {
            return Err(format!(
                "value {value:#x} has bits outside the mask {mask:#x} and would never match"
            ));
        }
        Ok(Condition {
            index: self.index,
            op: self.op,
            mask,
            value,
        })
    }
}

impl Value {
    fn read(&self) -> Result<u32, String> {
        match self {
            Value::Number(number) => Ok(*number),
            Value::Names(names) => names.split('|').map(str::trim).try_fold(0, |all, name| {
                let value = constants::constant(name);
                value
                    .map(|value| all | value)
                    .ok_or_else(|| unknown("constant", name, constants::names()))
            }),
        }
    }
}

fn unknown(what: &str, name: &str, known: impl Iterator<Item = &'static str>) -> String {
    let meant = nearest(name, known)
        .map(|found| format!(", did you mean {found:?}?"))
        .unwrap_or_default();
    format!("{name:?} is not a known {what}{meant}")
}

impl Condition {
    pub(super) fn compiled(self) -> Result<SeccompCondition, seccompiler::BackendError> {
        let op = match self.op {
            Op::Eq => SeccompCmpOp::Eq,
            Op::Ne => SeccompCmpOp::Ne,
            Op::MaskedEq => SeccompCmpOp::MaskedEq(self.mask.into()),
        };
        SeccompCondition::new(self.index, SeccompCmpArgLen::Dword, op, self.value.into())
    }
}
