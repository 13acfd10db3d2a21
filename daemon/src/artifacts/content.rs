//! What the beginning of a file shows: magic bytes, or text.

use brig_jailer::policy::Class;

pub(super) const XLSX: &str = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet";
const OCTETS: &str = "application/octet-stream";

/// What a file is by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    Empty,
    /// Text in UTF-8, or in an 8-bit encoding.
    Text {
        utf8: bool,
    },
    /// Text that begins as JSON does.
    Json,
    Svg,
    Html,
    /// Text whose first line names an interpreter.
    Script,
    Pdf,
    Image(&'static str),
    /// A ZIP archive with the parts of a workbook.
    Xlsx,
    /// Another office document.
    Office(&'static str),
    Parquet,
    Executable(&'static str),
    Archive(&'static str),
    /// Something else that has a name.
    Known(&'static str),
    Binary,
}

impl Content {
    /// Looks at a prefix. Text comes first: a table may well begin with the two letters of another format.
    pub(super) fn of(prefix: &[u8], whole: bool) -> Self {
        if prefix.is_empty() {
            return Self::Empty;
        }
        if prefix.starts_with(b"%PDF-") {
            return Self::Pdf;
        }
        match text(prefix, whole) {
            Some(utf8) => of_text(prefix, utf8),
            None => of_binary(prefix),
        }
    }

    /// The class, as far as the content alone can say.
    ///
    /// Text that doesn't have the name of a text may be code in any language.
    pub(super) fn class(self) -> Class {
        match self {
            Self::Image(_) => Class::Chart,
            Self::Xlsx | Self::Parquet => Class::Data,
            Self::Pdf => Class::Report,
            Self::Html | Self::Script => Class::Code,
            Self::Executable(_) => Class::Executable,
            Self::Archive(_) => Class::Archive,
            Self::Empty
            | Self::Text { .. }
            | Self::Json
            | Self::Svg
            | Self::Office(_)
            | Self::Known(_)
            | Self::Binary => Class::Other,
        }
    }

    pub(super) fn media_type(self) -> &'static str {
        match self {
            Self::Empty | Self::Text { .. } => "text/plain",
            Self::Json => "application/json",
            Self::Svg => "image/svg+xml",
            Self::Html => "text/html",
            Self::Script => "text/x-script",
            Self::Pdf => "application/pdf",
            Self::Xlsx => XLSX,
            Self::Parquet => "application/vnd.apache.parquet",
            Self::Image(name)
            | Self::Office(name)
            | Self::Executable(name)
            | Self::Archive(name)
            | Self::Known(name) => name,
            Self::Binary => OCTETS,
        }
    }

    pub(super) fn is_text(self) -> bool {
        matches!(self, Self::Empty | Self::Text { .. } | Self::Json | Self::Svg)
    }

    /// Whether opening it in its usual program can run something.
    pub(super) fn can_be_active(self) -> bool {
        matches!(self, Self::Svg | Self::Html | Self::Pdf | Self::Xlsx | Self::Office(_))
    }

    /// Whether a browser shows it as a document of its own.
    pub(super) fn is_markup(self) -> bool {
        matches!(self, Self::Svg | Self::Html)
    }

    pub(super) fn is_picture(self) -> bool {
        matches!(self, Self::Image(_))
    }

    /// Whether it is a binary format whose files don't contain the marks of others.
    pub(super) fn is_binary_document(self) -> bool {
        matches!(self, Self::Image(_) | Self::Pdf | Self::Parquet)
    }
}

/// Whether the prefix is text, and if so, whether it is UTF-8.
fn text(prefix: &[u8], whole: bool) -> Option<bool> {
    let control = |byte: u8| byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r' | 0x08 | 0x0c | 0x1b);
    if prefix.iter().any(|byte| control(*byte)) {
        return None;
    }
    match std::str::from_utf8(prefix) {
        Ok(_) => Some(true),
        // A character that the end of the prefix cuts in two.
        Err(error) if error.error_len().is_none() && !whole => Some(true),
        Err(_) => {
            let ascii = prefix.iter().filter(|byte| byte.is_ascii()).count();
            (ascii * 4 >= prefix.len() * 3).then_some(false)
        }
    }
}

fn of_text(prefix: &[u8], utf8: bool) -> Content {
    let text = prefix
        .strip_prefix(b"\xef\xbb\xbf")
        .unwrap_or(prefix)
        .trim_ascii_start();
    let rest = text.strip_prefix(b"#!").map(<[u8]>::trim_ascii_start);
    if rest.is_some_and(|rest| rest.starts_with(b"/")) {
        return Content::Script;
    }
    if text.starts_with(b"<") {
        return of_markup(text, utf8);
    }
    let json = text
        .first()
        .is_some_and(|first| b"{[\"-0123456789tfnNI".contains(first));
    if json && utf8 {
        Content::Json
    } else {
        Content::Text { utf8 }
    }
}

fn of_markup(text: &[u8], utf8: bool) -> Content {
    let lower = text.to_ascii_lowercase();
    let marks: [&[u8]; 7] = [
        b"<!doctype html",
        b"<html",
        b"<head",
        b"<body",
        b"<script",
        b"<iframe",
        b"<?php",
    ];
    if marks.iter().any(|mark| lower.starts_with(mark)) {
        return Content::Html;
    }
    let document = lower.starts_with(b"<svg") || lower.starts_with(b"<?xml") || lower.starts_with(b"<!");
    match (document, find(&lower, b"<svg"), find(&lower, b"<html")) {
        (true, Some(_), _) => Content::Svg,
        (true, None, Some(_)) => Content::Html,
        _ => Content::Text { utf8 },
    }
}

fn of_binary(prefix: &[u8]) -> Content {
    if prefix.starts_with(b"PAR1") {
        return Content::Parquet;
    }
    if prefix.starts_with(b"\x7fELF") {
        return Content::Executable("application/x-executable");
    }
    if prefix.starts_with(b"PK\x03\x04") {
        return of_zip(prefix);
    }
    // Magic numbers alone; the parsers of infer that go deeper are behind a feature that is off.
    let Some(kind) = infer::get(prefix) else {
        return Content::Binary;
    };
    let name = kind.mime_type();
    match kind.matcher_type() {
        infer::MatcherType::Image => Content::Image(name),
        infer::MatcherType::App => Content::Executable(name),
        infer::MatcherType::Archive if is_package(name) => Content::Executable(name),
        infer::MatcherType::Archive if is_no_archive(name) => Content::Known(name),
        infer::MatcherType::Archive => Content::Archive(name),
        infer::MatcherType::Doc => Content::Office(name),
        _ => Content::Known(name),
    }
}

fn is_package(name: &str) -> bool {
    matches!(
        name,
        "application/vnd.debian.binary-package" | "application/x-rpm" | "application/x-shockwave-flash"
    )
}

/// What infer sorts among archives and isn't one.
fn is_no_archive(name: &str) -> bool {
    matches!(
        name,
        "application/pdf"
            | "application/rtf"
            | "application/postscript"
            | "application/vnd.sqlite3"
            | "application/dicom"
            | "application/x-nintendo-nes-rom"
    )
}

/// Tells the kinds of ZIP files by the names of the first parts.
fn of_zip(prefix: &[u8]) -> Content {
    let names: Vec<&[u8]> = zip_names(prefix).collect();
    let has = |folder: &[u8]| names.iter().any(|name| name.starts_with(folder));
    let office = [
        b"[Content_Types].xml".as_slice(),
        b"_rels/",
        b"docProps/",
        b"xl/",
        b"word/",
        b"ppt/",
    ];
    let first_fits = names
        .first()
        .is_some_and(|first| office.iter().any(|part| first.starts_with(part)));
    if !first_fits {
        Content::Archive("application/zip")
    } else if has(b"word/") {
        Content::Office("application/vnd.openxmlformats-officedocument.wordprocessingml.document")
    } else if has(b"ppt/") {
        Content::Office("application/vnd.openxmlformats-officedocument.presentationml.presentation")
    } else if has(b"xl/") {
        Content::Xlsx
    } else {
        Content::Office("application/zip")
    }
}

/// Finds the names in the local headers that lie in the prefix. Source: APPNOTE.TXT 4.3.7.
fn zip_names(prefix: &[u8]) -> impl Iterator<Item = &[u8]> {
    let headers = prefix
        .windows(4)
        .enumerate()
        .filter(|(_, window)| *window == b"PK\x03\x04");
    headers.filter_map(|(at, _)| {
        let length = prefix.get(at + 26..at + 28)?;
        let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
        prefix.get(at + 30..at + 30 + length)
    })
}

/// Whether a binary document also carries the mark of another format, which some program may prefer.
pub(super) fn has_second_format(prefix: &[u8]) -> bool {
    let lower = prefix.to_ascii_lowercase();
    let later = lower.get(1..).unwrap_or_default();
    let marks: [&[u8]; 6] = [b"%pdf-", b"pk\x03\x04", b"<script", b"<html", b"<?php", b"\x7felf"];
    marks.iter().any(|mark| find(later, mark).is_some())
}

/// Whether the prefix of a document shows something that runs when it is opened.
pub(super) fn looks_active(prefix: &[u8]) -> bool {
    let lower = prefix.to_ascii_lowercase();
    let marks: [&[u8]; 11] = [
        b"<script",
        b"javascript:",
        b"<foreignobject",
        b"<iframe",
        b"<!entity",
        b"/javascript",
        b"/js ",
        b"/openaction",
        b"/launch",
        b"/embeddedfile",
        b"vbaproject",
    ];
    marks.iter().any(|mark| find(&lower, mark).is_some()) || has_event_handler(&lower)
}

/// Looks for an attribute such as ` onload=`.
fn has_event_handler(lower: &[u8]) -> bool {
    lower.windows(3).enumerate().any(|(at, window)| {
        let rest = lower.get(at + 3..).unwrap_or_default();
        let letters = rest.iter().take_while(|byte| byte.is_ascii_lowercase()).count();
        let after = rest.get(letters..).unwrap_or_default().trim_ascii_start();
        window[0].is_ascii_whitespace() && &window[1..] == b"on" && letters >= 2 && after.starts_with(b"=")
    })
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
