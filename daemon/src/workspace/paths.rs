//! Paths of the files of a session: checked, and brought into the form of the file helper.

use brig_jailer::files::wire::{Failure, Op, Place};
use brig_proto::v1::Reason;
use rustix::io::Errno;

use crate::run::fields::Fields;
use crate::run::inputs::unhex;
use crate::status::{FieldProblem, Problem};

/// The longest path, in bytes.
const PATH_MAX: usize = 4096;
/// A path that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) place: Place,
    /// Below the place, for the helper; empty for the place itself.
    pub(super) path: Vec<u8>,
    /// As it was asked for.
    pub(super) asked: Vec<u8>,
}

impl Target {
    /// The path of something that the helper names by its path below the place, in the form that was asked for.
    pub(super) fn shown(&self, path: &[u8]) -> Vec<u8> {
        if path == self.path {
            return self.asked.clone();
        }
        path.to_vec()
    }

    /// A path below the place of this one, as an error names it.
    pub(super) fn placed(&self, path: &[u8]) -> Vec<u8> {
        match self.place {
            Place::Home => path.to_vec(),
            Place::Tmp => [b"/tmp/", path].concat(),
        }
    }

    /// The path of something below this one.
    pub(super) fn below(&self, path: &[u8]) -> Vec<u8> {
        let end = self
            .asked
            .iter()
            .rposition(|byte| *byte != b'/')
            .map_or(0, |last| last + 1);
        match &self.asked[..end] {
            b"" | b"." => path.to_vec(),
            asked => [asked, b"/", path].concat(),
        }
    }
}

/// Checks the path of a file; with `may_be_place` it may also be one of the directories that all else lies in.
pub(super) fn target(field: &str, path: &str, raw_path: &[u8], may_be_place: bool) -> Result<Target, FieldProblem> {
    let wrong = |reason, message: &str| {
        Err(FieldProblem {
            field: field.to_owned(),
            message: message.to_owned(),
            reason,
        })
    };
    let asked = match (path, raw_path) {
        ("", []) => return wrong(Reason::MissingValue, "is empty: give the path of a file"),
        ("", raw_path) => raw_path,
        (path, []) => path.as_bytes(),
        _ => return wrong(Reason::NotApplicable, "is given twice: as text and as bytes"),
    };
    if asked.len() > PATH_MAX {
        return wrong(Reason::InvalidPath, "has more than 4,096 bytes");
    }
    if asked.contains(&0) {
        return wrong(Reason::InvalidPath, "contains a NUL character");
    }
    let parts: Vec<&[u8]> = asked
        .split(|byte| *byte == b'/')
        .filter(|part| !matches!(*part, b"" | b"."))
        .collect();
    if parts.contains(&b"..".as_slice()) {
        return wrong(Reason::InvalidPath, "contains `..`");
    }
    let (place, parts) = match (asked.first(), parts.as_slice()) {
        (Some(b'/'), [b"home", b"user", below @ ..]) => (Place::Home, below),
        (Some(b'/'), [b"tmp", below @ ..]) => (Place::Tmp, below),
        (Some(b'/'), _) => {
            return wrong(Reason::InvalidPath, "lies neither below /home/user nor below /tmp");
        }
        (_, below) => (Place::Home, below),
    };
    if parts.is_empty() && !may_be_place {
        return wrong(Reason::InvalidPath, "is the directory that all else lies in");
    }
    Ok(Target {
        place,
        path: parts.join(&b'/'),
        asked: asked.to_vec(),
    })
}

/// The same, for a request with no other field to check.
pub(super) fn one(field: &str, path: &str, raw_path: &[u8], may_be_place: bool) -> Result<Target, Problem> {
    target(field, path, raw_path, may_be_place).map_err(|problem| Problem::Fields(vec![problem]))
}

/// Checks the path of a directory: without one it is the working directory.
pub(super) fn directory(field: &str, path: &str, raw_path: &[u8]) -> Result<Target, FieldProblem> {
    if path.is_empty() && raw_path.is_empty() {
        return Ok(Target {
            place: Place::Home,
            path: Vec::new(),
            asked: Vec::new(),
        });
    }
    target(field, path, raw_path, true)
}

/// Checks permission bits.
pub(super) fn mode(mode: u32, fields: &mut Fields) -> u32 {
    if mode > 0o777 {
        fields.wrong("mode", Reason::InvalidValue, format!("{mode:o} is above 777 (octal)"));
    }
    mode
}

/// Reads the token of a page: the path that the page before ended with.
pub(super) fn after(token: &str) -> Result<Option<Vec<u8>>, FieldProblem> {
    let problem = || FieldProblem {
        field: "page_token".to_owned(),
        message: "is of no page; begin again without it".to_owned(),
        reason: Reason::InvalidValue,
    };
    if token.is_empty() {
        return Ok(None);
    }
    unhex(token)
        .filter(|path| path.len() <= PATH_MAX)
        .map(Some)
        .ok_or_else(problem)
}

/// A failure that was found out here.
pub(super) fn failure(target: &Target, errno: Errno) -> Failure {
    Failure {
        op: Op::Open,
        errno: errno.raw_os_error(),
        path: target.asked.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(path: &str) -> (Place, String) {
        let target = target("path", path, b"", true).unwrap();
        (target.place, String::from_utf8(target.path).unwrap())
    }

    #[test]
    fn paths_lead_into_the_two_directories_and_nowhere_else() {
        for (path, place, below) in [
            ("a/b", Place::Home, "a/b"),
            ("./a//b/", Place::Home, "a/b"),
            ("/home/user/a", Place::Home, "a"),
            ("/home/user", Place::Home, ""),
            ("//tmp/./x", Place::Tmp, "x"),
            ("tmp/x", Place::Home, "tmp/x"),
            ("/tmp/", Place::Tmp, ""),
            ("...", Place::Home, "..."),
        ] {
            assert_eq!(ok(path), (place, below.to_owned()), "{path}");
        }
        let reason = |path: &str, raw: &[u8]| target("path", path, raw, false).unwrap_err().reason;
        for path in [
            "/etc/passwd",
            "/",
            "/home",
            "/home/userx",
            "..",
            "a/../b",
            "/tmp/../etc",
            "a\0b",
            "/tmp",
            ".",
        ] {
            assert_eq!(reason(path, b""), Reason::InvalidPath, "{path}");
        }
        assert_eq!(reason(&"a/".repeat(2049), b""), Reason::InvalidPath);
        assert_eq!(reason("", b""), Reason::MissingValue);
        assert_eq!(reason("a", b"a"), Reason::NotApplicable);
        assert_eq!(target("path", "", b"\xff", false).unwrap().path, b"\xff");
    }

    #[test]
    fn names_are_shown_as_they_were_asked_for() {
        let below = |asked: &str| {
            let target = directory("path", asked, b"").unwrap();
            String::from_utf8(target.below(b"x/y")).unwrap()
        };
        assert_eq!(
            ["", ".", "a/", "/tmp", "/home/user/"].map(below),
            ["x/y", "x/y", "a/x/y", "/tmp/x/y", "/home/user/x/y"]
        );
    }

    #[test]
    fn tokens_and_digests_are_lower_case_digits() {
        assert_eq!(after("612f62").unwrap().unwrap(), b"a/b");
        for wrong in ["6", "6G", "6A", "é"] {
            assert!(after(wrong).is_err(), "{wrong}");
        }
        let mut fields = Fields::default();
        assert!(fields.sha256("sha256", &"ab".repeat(32)).is_some());
        assert!(fields.sha256("sha256", &"ab".repeat(31)).is_none());
        assert!(fields.done().is_err());
    }
}
