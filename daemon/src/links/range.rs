//! Conditions and ranges of a request. Source: RFC 9110, sections 13 and 14.

use std::ops::Range;

use axum::http::{HeaderMap, HeaderName, Method, header};

/// What a request is answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    Whole,
    Part(Range<u64>),
    /// The client has it already.
    NotModified,
    /// The client wants another one than there is.
    PreconditionFailed,
    /// No such part is there.
    Unsatisfiable,
}

impl Wanted {
    /// Reads what is wanted of something that has a size and an entity tag.
    ///
    /// Something is never modified but replaced, so that it has no dates. A range that is not understood, or several at
    /// one time, are passed over, as they may be: all of it is sent.
    pub(super) fn read(method: &Method, headers: &HeaderMap, etag: &str, size: u64) -> Self {
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let lists = |name: HeaderName| headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        if headers.contains_key(header::IF_MATCH) && !lists(header::IF_MATCH).any(|list| has(list, etag, false)) {
            return Self::PreconditionFailed;
        }
        if lists(header::IF_NONE_MATCH).any(|list| has(list, etag, true)) {
            return Self::NotModified;
        }
        let if_range = text(header::IF_RANGE).is_none_or(|wanted| wanted.trim() == etag);
        match text(header::RANGE).filter(|_| *method == Method::GET && if_range) {
            Some(range) => part(range, size).unwrap_or(Self::Whole),
            None => Self::Whole,
        }
    }
}

/// Whether a list of entity tags has this one. A weak tag stands for it only where `weak` ones do.
fn has(list: &str, etag: &str, weak: bool) -> bool {
    list.split(',').map(str::trim).any(|tag| {
        let strong = tag.strip_prefix("W/").filter(|_| weak).unwrap_or(tag);
        tag == "*" || strong == etag
    })
}

/// One part of a size; none if that is not what is asked for.
fn part(range: &str, size: u64) -> Option<Wanted> {
    let (unit, range) = range.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (first, last) = range.trim().split_once('-')?;
    let asked = match (number(first)?, number(last)?) {
        (None, None) => return None,
        (None, Some(length)) => size.saturating_sub(length)..size,
        (Some(first), None) => first..size,
        (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(size),
        (Some(_), Some(_)) => return None,
    };
    if asked.start < asked.end {
        Some(Wanted::Part(asked))
    } else {
        Some(Wanted::Unsatisfiable)
    }
}

/// Reads a number, which may be absent; none if it is something else. One that is too large is as good as the largest.
fn number(text: &str) -> Option<Option<u64>> {
    match text {
        "" => Some(None),
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => Some(Some(digits.parse().unwrap_or(u64::MAX))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETAG: &str = "\"ab\"";

    fn wanted(method: Method, headers: &[(HeaderName, &str)], size: u64) -> Wanted {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.clone(), value.parse().unwrap()));
        Wanted::read(&method, &headers.collect(), ETAG, size)
    }

    #[test]
    fn one_range_is_a_part_and_what_is_no_range_is_passed_over() {
        use Wanted::{Part, Unsatisfiable, Whole};
        for (range, size, expected) in [
            ("bytes=0-0", 10, Part(0..1)),
            ("bytes=3-", 10, Part(3..10)),
            ("bytes=3-100", 10, Part(3..10)),
            ("bytes=-4", 10, Part(6..10)),
            ("bytes=-40", 10, Part(0..10)),
            ("Bytes = 1-2", 10, Part(1..3)),
            ("bytes=9-9", 10, Part(9..10)),
            ("bytes=0-18446744073709551615", 10, Part(0..10)),
            ("bytes=0-99999999999999999999999", 10, Part(0..10)),
            ("bytes=10-", 10, Unsatisfiable),
            ("bytes=99999999999999999999999-", 10, Unsatisfiable),
            ("bytes=-0", 10, Unsatisfiable),
            ("bytes=0-", 0, Unsatisfiable),
            ("bytes=-5", 0, Unsatisfiable),
            ("bytes=5-3", 10, Whole),
            ("bytes=-", 10, Whole),
            ("bytes=0-1,3-4", 10, Whole),
            ("bytes=+1-2", 10, Whole),
            ("bytes=1 -2", 10, Whole),
            ("lines=1-2", 10, Whole),
            ("bytes", 10, Whole),
        ] {
            assert_eq!(
                wanted(Method::GET, &[(header::RANGE, range)], size),
                expected,
                "{range}"
            );
        }
        assert_eq!(wanted(Method::HEAD, &[(header::RANGE, "bytes=0-0")], 10), Whole);
    }

    #[test]
    fn a_range_of_another_version_is_all_of_this_one() {
        let range = (header::RANGE, "bytes=0-0");
        let with = |if_range| wanted(Method::GET, &[range.clone(), (header::IF_RANGE, if_range)], 10);
        assert_eq!(with(ETAG), Wanted::Part(0..1));
        // A weak tag is not enough here, and there is no date.
        for other in ["\"cd\"", "W/\"ab\"", "Wed, 21 Oct 2015 07:28:00 GMT", "*"] {
            assert_eq!(with(other), Wanted::Whole, "{other}");
        }
    }

    #[test]
    fn what_the_client_has_is_not_sent_again() {
        for (list, expected) in [
            (ETAG, Wanted::NotModified),
            ("*", Wanted::NotModified),
            ("W/\"ab\"", Wanted::NotModified),
            ("\"x\", \"ab\"", Wanted::NotModified),
            ("\"x\"", Wanted::Whole),
            ("ab", Wanted::Whole),
        ] {
            for method in [Method::GET, Method::HEAD] {
                assert_eq!(wanted(method, &[(header::IF_NONE_MATCH, list)], 10), expected, "{list}");
            }
        }
        for (list, expected) in [
            (ETAG, Wanted::Whole),
            ("*", Wanted::Whole),
            ("W/\"ab\"", Wanted::PreconditionFailed),
            ("\"x\"", Wanted::PreconditionFailed),
        ] {
            assert_eq!(wanted(Method::GET, &[(header::IF_MATCH, list)], 10), expected, "{list}");
        }
    }
}
