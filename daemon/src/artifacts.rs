//! What an execution left: stored, looked at, and judged by the policy.
//!
//! A file's bytes go into the [`spool`](Spool) first; everything after looks only at what was stored. From name, size
//! and the first 4 KiB a [`Guess`] is made: what the file claims to be, what its content is, and the stricter class of
//! the two where they disagree. The files helper may then look deeper, inside the jail; what it says is a claim, and
//! can make the judgement stricter, never milder, but for two things: an SVG, PDF or office document leaves without
//! review only if the helper saw all of it and found nothing active, and a picture is previewed only if the helper saw
//! its size. What it looks at are the stored bytes, by SHA-256.

mod content;
mod extension;
mod spool;

use brig_jailer::files::wire::{Detail, Flag, Inspected, Verdict};
use brig_jailer::policy::{Artifacts, Class, Found, Handling};
use brig_proto::v1::ReviewState;

use content::Content;
use extension::{Claimed, Fits};
pub use spool::{READ_MAX, Spool, SpoolError, Spooled, Stored};

/// How much of a file's beginning is looked at, in bytes.
pub const PREFIX_MAX: usize = 4096;
/// The most details of one artifact, and the longest of their texts in bytes.
const DETAILS_MAX: usize = 16;
const DETAIL_TEXT_MAX: usize = 64;

/// The review of an artifact: it may leave, or not, or not yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Review {
    NotNeeded,
    /// Its bytes are handed to nobody but a reviewer.
    Pending,
    Approved,
    /// A reviewer, or the policy whoever would approve.
    Rejected,
    /// Nobody decided in time, which counts as no.
    Expired,
}

/// What a scanner says of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scan {
    Clean,
    Found,
    /// It gave no answer.
    Failed,
}

impl Review {
    /// All states.
    pub const ALL: [Self; 5] = [
        Self::NotNeeded,
        Self::Pending,
        Self::Approved,
        Self::Rejected,
        Self::Expired,
    ];

    /// The name as results and the ledger show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotNeeded => "not_needed",
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
        }
    }

    /// Finds a state by its name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|review| review.name() == name)
    }

    /// The state in the form of the API.
    pub fn shown(self) -> ReviewState {
        match self {
            Self::NotNeeded => ReviewState::NotNeeded,
            Self::Pending => ReviewState::Pending,
            Self::Approved => ReviewState::Approved,
            Self::Rejected => ReviewState::Rejected,
            Self::Expired => ReviewState::Expired,
        }
    }
}

/// What a file seems to be, by name and beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guess {
    pub class: Class,
    /// By content; by name where the content fits it. Also what the files helper is asked to look for.
    pub media_type: &'static str,
    flags: Vec<&'static str>,
    size: u64,
    /// The class where the content turns out not to be what it is taken for.
    fallback: Class,
    can_be_active: bool,
    /// Whether a link out of the file is followed as soon as it is shown.
    is_markup: bool,
    is_picture: bool,
    active: bool,
}

/// What becomes of an artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    pub class: Class,
    pub media_type: &'static str,
    pub handling: Handling,
    pub review: Review,
    /// Words for people and programs: `name_mismatch`, `active_content`, `too_large`, ...
    pub flags: Vec<&'static str>,
    /// What the files helper counted, as a claim.
    pub details: Vec<(String, Detail)>,
}

impl Guess {
    /// Looks at a stored file; `prefix` is its beginning, at most [`PREFIX_MAX`] bytes of it.
    pub fn new(rules: &Artifacts, path: &[u8], prefix: &[u8], size: u64) -> Self {
        let name = file_name(path);
        let content = Content::of(prefix, size <= prefix.len() as u64);
        let claimed = Claimed::of(rules, &name);
        let fits = claimed.fits(&content);
        let mut flags = Vec::new();
        let fallback = stricter(rules, claimed.class, content.class());
        let class = match fits {
            Fits::Yes => claimed.class,
            Fits::NothingClaimed => fallback,
            Fits::No => {
                flags.push("name_mismatch");
                fallback
            }
        };
        let polyglot = content.is_binary_document() && content::has_second_format(prefix);
        let class = if polyglot {
            stricter(rules, class, Class::Other)
        } else {
            class
        };
        flags.extend(polyglot.then_some("polyglot"));
        flags.extend((content == Content::Empty).then_some("empty"));
        flags.extend((content == Content::Text { utf8: false }).then_some("not_utf8"));
        flags.extend(is_odd(path).then_some("odd_name"));
        flags.extend(claimed.is_unlisted.then_some("unlisted_name"));
        let can_be_active = content.can_be_active();
        let active = can_be_active && content::looks_active(prefix);
        let media_type = claimed
            .media_type
            .filter(|_| fits == Fits::Yes)
            .unwrap_or(content.media_type());
        Self {
            class,
            media_type,
            flags,
            size,
            fallback,
            can_be_active,
            is_markup: content.is_markup(),
            is_picture: content.is_picture(),
            active,
        }
    }

    /// Judges by the policy, with what the files helper saw, if it looked.
    pub fn judge(&self, rules: &Artifacts, inspected: Option<&Inspected>) -> Judgement {
        let mut flags = self.flags.clone();
        let invalid = inspected.is_some_and(|inspected| inspected.verdict == Verdict::Invalid);
        let class = if invalid && self.media_type == content::XLSX {
            // A workbook that is none is just an archive.
            flags.push("name_mismatch");
            stricter(rules, self.class, stricter(rules, self.fallback, Class::Archive))
        } else {
            self.class
        };
        let rule = rules.rule(class);
        let mut handling = rule.handling_of(self.size);
        flags.extend((handling != rule.handling).then_some("too_large_to_preview"));
        if rule.max_bytes.is_some_and(|max| self.size > max.bytes()) {
            flags.push("too_large");
            handling = Handling::Review;
        }
        if invalid {
            // What is broken for one reader is whole for another.
            flags.push("not_readable");
            let floor = if self.can_be_active {
                Handling::Review
            } else {
                Handling::Download
            };
            handling = at_least(handling, floor);
        }
        handling = at_least(handling, self.judge_activity(inspected, &mut flags));
        flags.dedup();
        let review = if handling == Handling::Review {
            Review::Pending
        } else {
            Review::NotNeeded
        };
        let details = inspected.map(bounded_details).unwrap_or_default();
        Judgement {
            class,
            media_type: self.media_type,
            handling,
            review,
            flags,
            details,
        }
    }

    /// The mildest handling that what the file may do when it is opened allows.
    fn judge_activity(&self, inspected: Option<&Inspected>, flags: &mut Vec<&'static str>) -> Handling {
        let mut seen: Vec<Flag> = inspected.map(|inspected| inspected.flags.clone()).unwrap_or_default();
        seen.sort_unstable();
        seen.dedup();
        let acts = self.active || seen.iter().any(|flag| self.acts(*flag));
        let hides = seen.iter().any(|flag| hides(*flag));
        flags.extend(acts.then_some("active_content"));
        flags.extend(seen.iter().map(|flag| flag.name()));
        let looked_deeper = inspected.is_some_and(|seen| !seen.partial && seen.verdict != Verdict::Unknown);
        let unchecked = (self.can_be_active || self.is_picture) && !looked_deeper;
        let cut = inspected.is_some_and(|seen| seen.partial);
        flags.extend((unchecked || cut).then_some("not_fully_checked"));
        if acts || hides || (unchecked && self.can_be_active) {
            Handling::Review
        } else if unchecked || !seen.is_empty() {
            Handling::Download
        } else {
            Handling::Preview
        }
    }

    /// Whether opening the file runs or fetches something. A link in a document does not, before somebody follows it.
    fn acts(&self, flag: Flag) -> bool {
        match flag {
            Flag::Script
            | Flag::EventHandler
            | Flag::ForeignObject
            | Flag::Entity
            | Flag::Macro
            | Flag::EmbeddedFile
            | Flag::Formula => true,
            Flag::ExternalReference => self.is_markup,
            Flag::Bomb | Flag::Encrypted | Flag::EscapingName => false,
        }
    }
}

/// Whether a file does harm without doing anything, or can't be looked into.
fn hides(flag: Flag) -> bool {
    matches!(flag, Flag::Bomb | Flag::Encrypted | Flag::EscapingName)
}

impl Judgement {
    /// Takes what the policy's scanner said into account. A file that was not scanned waits for review.
    pub fn scanned(&mut self, scan: Scan, found: Found) {
        let (flag, review) = match (scan, found) {
            (Scan::Clean, _) => return,
            (Scan::Found, Found::Review) => ("scanner_found", Review::Pending),
            (Scan::Found, Found::Refuse) => ("scanner_found", Review::Rejected),
            (Scan::Failed, _) => ("not_scanned", Review::Pending),
        };
        self.flags.push(flag);
        self.handling = Handling::Review;
        self.review = review;
    }
}

/// Picks the class that the policy treats more strictly; between equals, the one that is worse by nature.
fn stricter(rules: &Artifacts, a: Class, b: Class) -> Class {
    let rank = |class: Class| (severity(rules.rule(class).handling), danger(class));
    if rank(b) > rank(a) { b } else { a }
}

fn at_least(handling: Handling, floor: Handling) -> Handling {
    if severity(floor) > severity(handling) {
        floor
    } else {
        handling
    }
}

fn severity(handling: Handling) -> u8 {
    match handling {
        Handling::Preview => 0,
        Handling::Download => 1,
        Handling::Review => 2,
    }
}

fn danger(class: Class) -> u8 {
    match class {
        Class::Chart => 0,
        Class::Report => 1,
        Class::Data => 2,
        Class::Other => 3,
        Class::Code => 4,
        Class::Archive => 5,
        Class::Executable => 6,
    }
}

fn file_name(path: &[u8]) -> String {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

/// Whether a name may show as something else than it is: control characters, marks that turn the direction of writing.
fn is_odd(path: &[u8]) -> bool {
    let turns = |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    match std::str::from_utf8(path) {
        Ok(path) => path.chars().any(|c| c.is_control() || turns(c)),
        Err(_) => true,
    }
}

/// What was counted. Of a look that did not come to its end only what a file says of itself at the start.
fn bounded_details(inspected: &Inspected) -> Vec<(String, Detail)> {
    let bounded = |text: &str| crate::output::cut_text(text, DETAIL_TEXT_MAX).to_owned();
    let is_known = |name: &str| !inspected.partial || matches!(name, "width" | "height");
    let details = inspected
        .details
        .iter()
        .filter(|(name, _)| is_known(name))
        .take(DETAILS_MAX);
    let details = details.map(|(name, detail)| match detail {
        Detail::Number(number) => (bounded(name), Detail::Number(*number)),
        Detail::Text(text) => (bounded(name), Detail::Text(bounded(text))),
    });
    details.collect()
}

#[cfg(test)]
mod tests;
