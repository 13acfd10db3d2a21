//! What a value or a style leads to, as a browser reads it.
//!
//! Source: the URL standard, 4.4; CSS Syntax Module Level 3, 4.3; XML 1.0, 4.1.
#![forbid(unsafe_code)]

use super::has;

/// Pictures within an address: nothing in them runs.
pub(super) const PICTURES: [&[u8]; 5] = [
    b"data:image/png",
    b"data:image/jpeg",
    b"data:image/jpg",
    b"data:image/gif",
    b"data:image/webp",
];

/// Attributes whose value is an address.
pub(super) fn is_locator(name: &[u8]) -> bool {
    let known: [&[u8]; 12] = [
        b"href",
        b"src",
        b"srcset",
        b"action",
        b"formaction",
        b"data",
        b"poster",
        b"background",
        b"ping",
        b"base",
        b"codebase",
        b"manifest",
    ];
    known.contains(&name)
}

/// Attributes whose values are put in the place of others.
pub(super) fn is_animated(name: &[u8]) -> bool {
    matches!(name, b"to" | b"from" | b"by" | b"values")
}

/// Whether an address leads out of the file: not to a part of it, nor data within it.
pub(super) fn is_outside(address: &[u8]) -> bool {
    !address.is_empty() && !address.starts_with(b"#") && !address.starts_with(b"data:")
}

/// Whether a document type names a file; that of the standards' own is known to readers.
pub(super) fn leads_outside(doctype: &[u8]) -> bool {
    let count = |part: &[u8]| doctype.windows(part.len()).filter(|window| *window == part).count();
    let addresses = count(b"://");
    if has(doctype, b"public") {
        addresses != 1 || count(b"http://www.w3.org/") != 1
    } else {
        has(doctype, b"system") || addresses > 0
    }
}

/// Whether a style loads something from outside.
pub(super) fn loads(style: &[u8]) -> bool {
    has(style, b"image-set(")
        || style
            .windows(4)
            .enumerate()
            .filter(|(_, window)| *window == b"url(")
            .any(|(at, _)| {
                let address = style[at + 4..].trim_ascii_start();
                let address = address
                    .strip_prefix(b"\"")
                    .or_else(|| address.strip_prefix(b"'"))
                    .unwrap_or(address);
                !address.starts_with(b"#") && !address.starts_with(b"data:")
            })
}

/// A value as a browser reads it: references resolved, control characters gone, in lower case.
pub(super) fn plain(value: &[u8]) -> Vec<u8> {
    let (mut plain, mut rest) = (Vec::new(), value);
    while let [first, after @ ..] = rest {
        let reference = (*first == b'&').then(|| reference(after)).flatten();
        let (byte, next) = reference.unwrap_or((*first, after));
        if !byte.is_ascii_control() || byte.is_ascii_whitespace() {
            plain.push(byte.to_ascii_lowercase());
        }
        rest = next;
    }
    plain
}

/// Resolves what follows an `&`, to one byte; what is not ASCII does not matter here.
fn reference(after: &[u8]) -> Option<(u8, &[u8])> {
    let named: [(&[u8], u8); 8] = [
        (b"colon;", b':'),
        (b"sol;", b'/'),
        (b"tab;", b'\t'),
        (b"newline;", b'\n'),
        (b"amp;", b'&'),
        (b"quot;", b'"'),
        (b"lt;", b'<'),
        (b"gt;", b'>'),
    ];
    if let Some((name, byte)) = named.iter().find(|(name, _)| after.starts_with(name)) {
        return Some((*byte, &after[name.len()..]));
    }
    let digits = after.strip_prefix(b"#")?;
    let (digits, radix) = digits.strip_prefix(b"x").map_or((digits, 10), |digits| (digits, 16));
    let end = digits
        .iter()
        .position(|byte| !char::from(*byte).is_digit(radix))
        .unwrap_or(digits.len());
    let code = u32::from_str_radix(std::str::from_utf8(&digits[..end]).ok()?, radix).ok()?;
    let rest = &digits[end..];
    Some((
        u8::try_from(code).unwrap_or(b'?'),
        rest.strip_prefix(b";").unwrap_or(rest),
    ))
}
