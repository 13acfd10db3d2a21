//! Pages of lists: newest first, cut by number and by what fits a message.

use std::sync::Arc;

use brig_proto::sizes::{MESSAGE_MAX, PAGE_DEFAULT, PAGE_MAX};
use brig_proto::v1::Reason;
use prost::Message;

use crate::status::{FieldProblem, Problem};

/// A page of something, and the token for the next one; empty if this is the last.
#[derive(Debug, Default, PartialEq)]
pub struct Page<M> {
    pub shown: Vec<M>,
    pub next: String,
}

/// Which page is asked for, and how much fits it.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    pub size: u32,
    pub token: &'a str,
    /// Bytes of a page.
    pub bytes: usize,
}

/// What fits an answer of a service whose messages are not larger than others.
pub const BYTES: usize = MESSAGE_MAX - MESSAGE_MAX / 8;

/// Shows one page of those that fit. The token is the last id of the page before.
///
/// Errors: the token is of no page, or the item that it names is forgotten.
pub fn page<T, M: Message>(
    all: &[Arc<T>],
    asked: Asked<'_>,
    id: impl Fn(&T) -> &str,
    fits: impl Fn(&T) -> bool,
    show: impl Fn(&T) -> M,
) -> Result<Page<M>, Problem> {
    let size = match asked.size {
        0 => PAGE_DEFAULT,
        size => size.min(PAGE_MAX),
    };
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let from = match asked.token {
        "" => 0,
        token => 1 + all.iter().position(|item| id(item) == token).ok_or_else(bad_token)?,
    };
    let mut page = Page {
        shown: Vec::new(),
        next: String::new(),
    };
    let (mut bytes, mut last) = (0, "");
    for item in all[from..].iter().filter(|item| fits(item)) {
        let shown = show(item);
        bytes += shown.encoded_len();
        if !page.shown.is_empty() && (page.shown.len() == size || bytes > asked.bytes) {
            page.next = last.to_owned();
            break;
        }
        last = id(item);
        page.shown.push(shown);
    }
    Ok(page)
}

fn bad_token() -> Problem {
    Problem::Fields(vec![FieldProblem {
        field: "page_token".to_owned(),
        message: "is of no page, or its page is too old; begin again without it".to_owned(),
        reason: Reason::InvalidValue,
    }])
}
