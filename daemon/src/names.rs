//! Names and paths that callers give: made safe, or refused with the field's name.
//!
//! An input's name is only a wish: the file gets a name that needs no quoting anywhere, and the result tells which.
//! A path of an expected output is meant exactly, so it is checked and never changed in meaning.
//!
//! Letters and digits of every script are kept (a Japanese name stays readable); combining marks are dropped, since
//! two spellings of one name must not become two files; everything else becomes `_`.

use std::collections::HashSet;
use std::fmt;

/// The longest name that an input file gets, in bytes of UTF-8.
pub const INPUT_NAME_MAX: usize = 100;
/// The longest path below the working directory, in bytes.
pub const PATH_MAX: usize = 1024;
/// The longest part of a path, in bytes. Source: limits.h, `NAME_MAX`.
pub const PART_MAX: usize = 255;

/// A name or path that can't be used, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {value:?} {problem}")]
pub struct NameError {
    /// The field as the caller knows it, such as `expected_outputs[2].path`.
    pub field: String,
    /// The refused text, cut to a length that fits a message.
    pub value: String,
    pub problem: Problem,
}

/// What is wrong with a name or path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    Empty,
    Nul,
    Control,
    Absolute,
    Leaves,
    Directory,
    TooLong,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("is empty: give a file name such as summary.json"),
            Self::Nul => f.write_str("contains a NUL character"),
            Self::Control => f.write_str("contains a control character"),
            Self::Absolute => f.write_str("is absolute: give a path below the working directory"),
            Self::Leaves => f.write_str("contains `..`: give a path below the working directory"),
            Self::Directory => f.write_str("names a directory: give the path of a file"),
            Self::TooLong => write!(f, "is too long: at most {PATH_MAX} bytes, {PART_MAX} in one part"),
        }
    }
}

/// A path of a file below the working directory: relative, without `.`, `..`, empty parts and control characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelativePath(String);

impl RelativePath {
    /// Checks a path; `./` and doubled slashes are tolerated and left out.
    pub fn parse(field: &str, path: &str) -> Result<Self, NameError> {
        let refuse = |problem| Err(refusal(field, path, problem));
        if let Some(problem) = forbidden(path) {
            return refuse(problem);
        }
        if path.chars().any(char::is_control) {
            return refuse(Problem::Control);
        }
        if path.ends_with('/') || path.ends_with("/.") {
            return refuse(Problem::Directory);
        }
        let parts: Vec<&str> = path
            .split('/')
            .filter(|part| !part.is_empty() && *part != ".")
            .collect();
        if parts.is_empty() {
            return refuse(Problem::Empty);
        }
        if path.len() > PATH_MAX || parts.iter().any(|part| part.len() > PART_MAX) {
            return refuse(Problem::TooLong);
        }
        Ok(Self(parts.join("/")))
    }

    /// Gives the text back.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Counts the parts: 1 for a file of the working directory itself.
    pub fn depth(&self) -> usize {
        self.0.split('/').count()
    }
}

impl fmt::Display for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Finds a safe name for each input, in order; `field` names the list, such as `input_files`.
///
/// A name of ASCII letters, digits, `.`, `_` and `-` that doesn't begin with `.` or `-` is kept as it is. Others lose
/// their directories and are written small with `_` for whatever is not a letter or digit. Where two become the same,
/// later ones get a number; names that were safe from the start come first, so that they never change for another's
/// sake.
///
/// Errors: a name that is empty, absolute, holds NUL or a part `..`, or is longer than a path may be, is refused.
pub fn input_names(field: &str, names: &[&str]) -> Result<Vec<String>, NameError> {
    let mut taken = HashSet::new();
    let mut found: Vec<Option<String>> = vec![None; names.len()];
    for (index, name) in names.iter().enumerate() {
        if let Some(problem) = forbidden(name) {
            return Err(refusal(&format!("{field}[{index}].name"), name, problem));
        }
        if is_safe(name) && taken.insert((*name).to_owned()) {
            found[index] = Some((*name).to_owned());
        }
    }
    let names = names.iter().zip(found).map(|(name, found)| {
        found.unwrap_or_else(|| {
            let free = first_free(&sanitise(name), &taken);
            taken.insert(free.clone());
            free
        })
    });
    Ok(names.collect())
}

/// Checks a name that an input shall have one day.
pub fn check_input_name(field: &str, name: &str) -> Result<(), NameError> {
    forbidden(name).map_or(Ok(()), |problem| Err(refusal(field, name, problem)))
}

/// What is refused in both kinds of names.
fn forbidden(path: &str) -> Option<Problem> {
    if path.is_empty() {
        Some(Problem::Empty)
    } else if path.contains('\0') {
        Some(Problem::Nul)
    } else if path.starts_with('/') {
        Some(Problem::Absolute)
    } else if path.split('/').any(|part| part == "..") {
        Some(Problem::Leaves)
    } else if path.len() > 4 * PATH_MAX {
        Some(Problem::TooLong)
    } else {
        None
    }
}

fn refusal(field: &str, value: &str, problem: Problem) -> NameError {
    NameError {
        field: field.to_owned(),
        value: value.chars().take(80).collect(),
        problem,
    }
}

fn is_safe(name: &str) -> bool {
    name.len() <= INPUT_NAME_MAX
        && !name.starts_with(['.', '-'])
        && !name.ends_with('.')
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// Writes a name so that it needs no quoting; a name with nothing usable in it becomes `input`.
fn sanitise(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).find(|part| !part.is_empty()).unwrap_or("");
    if is_safe(last) {
        return last.to_owned();
    }
    let (stem, extension) = split_extension(last);
    let stem = slug(stem);
    let stem = if stem.is_empty() { "input" } else { stem.as_str() };
    let extension = slug(extension);
    shorten(stem, "", &extension)
}

/// Splits at the last dot; a leading dot (a hidden file) is no extension, nor is a long tail.
fn split_extension(name: &str) -> (&str, &str) {
    match name.trim_end().rsplit_once('.') {
        Some((stem, extension)) if !stem.is_empty() && extension.chars().count() <= 12 => (stem, extension),
        _ => (name, ""),
    }
}

fn slug(text: &str) -> String {
    let mut slug = String::new();
    for character in text.chars().flat_map(char::to_lowercase) {
        match character {
            '\u{300}'..='\u{36f}' => {}
            '.' | '-' if !slug.is_empty() => slug.push(character),
            _ if character.is_alphanumeric() => slug.push(character),
            _ if slug.is_empty() || slug.ends_with('_') => {}
            _ => slug.push('_'),
        }
    }
    slug.trim_end_matches(['_', '.', '-']).to_owned()
}

/// Joins the parts of a name, cutting the stem on a character so that the whole fits.
fn shorten(stem: &str, number: &str, extension: &str) -> String {
    let tail = if extension.is_empty() {
        number.to_owned()
    } else {
        format!("{number}.{extension}")
    };
    let stem = crate::output::cut_text(stem, INPUT_NAME_MAX - tail.len());
    format!("{}{tail}", stem.trim_end_matches(['_', '.', '-']))
}

fn first_free(name: &str, taken: &HashSet<String>) -> String {
    if !taken.contains(name) {
        return name.to_owned();
    }
    let (stem, extension) = split_extension(name);
    // One of the first `taken + 1` numbers must be free; the range only keeps the loop from being endless.
    (2..)
        .map(|number: u64| shorten(stem, &format!("_{number}"), extension))
        .find(|name| !taken.contains(name))
        .expect("a set holds finitely many names")
}

#[cfg(test)]
#[path = "names/tests.rs"]
mod tests;
