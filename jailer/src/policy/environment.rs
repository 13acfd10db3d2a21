//! Which variables a caller may set in a jail.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

/// The longest name of a variable, in bytes.
const NAME_MAX: usize = 128;

/// Names that no policy can allow; a trailing `*` stands for any rest.
///
/// They decide which program, which code or which identity runs, before the caller's code does: they are the
/// template's and the jail's own. Code that wants them sets them itself, for its children.
const RESERVED: &[&str] = &[
    "LD_*",
    "GLIBC_TUNABLES",
    "GCONV_PATH",
    "LOCPATH",
    "PYTHON*",
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PWD",
    "ENV",
    "BASH_*",
    "IFS",
    "PS4",
    "SHELLOPTS",
    "BRIG_*",
];

/// Variables that a caller may set beside the template's own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Environment {
    /// Names; a `*` at the end stands for any rest, as in `LC_*`.
    pub allow: Vec<String>,
}

impl Environment {
    /// Tells whether a caller may set the variable with this name.
    pub fn allows(&self, name: &[u8]) -> bool {
        let Ok(name) = std::str::from_utf8(name) else {
            return false;
        };
        is_name(name)
            && !RESERVED.iter().any(|pattern| matches(pattern, name))
            && self.allow.iter().any(|pattern| matches(pattern, name))
    }
}

/// Says what is wrong with a pattern of a policy, if anything.
pub(super) fn pattern_problem(pattern: &str) -> Option<String> {
    let stem = pattern.strip_suffix('*').unwrap_or(pattern);
    if !is_name(stem) {
        return Some(format!(
            "{pattern:?} is not a name: a letter or _ first, then letters, digits and _, with at most one * at the end"
        ));
    }
    let reserved = RESERVED.iter().find(|reserved| matches(reserved, stem))?;
    Some(format!(
        "{pattern:?} can't be allowed: {reserved} belongs to the template and the jail"
    ))
}

fn is_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    (1..=NAME_MAX).contains(&bytes.len())
        && !bytes[0].is_ascii_digit()
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(stem) => name.starts_with(stem),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_names_are_allowed() {
        let environment = Environment {
            allow: vec!["TZ".into(), "LC_*".into()],
        };
        let asked: [&[u8]; 9] = [
            b"TZ", b"LC_ALL", b"LC_", b"TZX", b"LC", b"LANG", b"", b"LC_=x", b"LC_\xff",
        ];
        let allowed = [true, true, true, false, false, false, false, false, false];
        assert_eq!(asked.map(|name| environment.allows(name)), allowed);
    }

    #[test]
    fn no_pattern_reaches_a_reserved_name() {
        let environment = Environment {
            allow: vec!["L*".into(), "P*".into(), "PATH".into(), "H*".into(), "B*".into()],
        };
        let asked: [&[u8]; 7] = [
            b"LD_PRELOAD",
            b"LD_LIBRARY_PATH",
            b"PYTHONPATH",
            b"PYTHONSTARTUP",
            b"PATH",
            b"HOME",
            b"BASH_ENV",
        ];
        assert_eq!(asked.map(|name| environment.allows(name)), [false; 7]);
        assert!(environment.allows(b"LANG"));
    }

    #[test]
    fn patterns_that_mean_nothing_or_too_much_are_explained() {
        let wrong = [
            "",
            "*",
            "A*B",
            "1A",
            "A B",
            "LD_PRELOAD",
            "LD_*",
            "PYTHONPATH",
            "PYTHON*",
            "PATH",
            "BRIG_X*",
        ];
        assert_eq!(wrong.map(|pattern| pattern_problem(pattern).is_some()), [true; 11]);
        assert_eq!(
            ["TZ", "LC_*", "OMP_NUM_THREADS", "L*"].map(pattern_problem),
            [None, None, None, None]
        );
        assert_eq!(
            pattern_problem("LD_PRELOAD").unwrap(),
            "\"LD_PRELOAD\" can't be allowed: LD_* belongs to the template and the jail"
        );
    }
}
