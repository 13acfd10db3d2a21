//! What the writer is asked for.

use std::sync::Arc;

use brig_jailer::ids::Id;

use super::Answer;
use super::entry::Entry;
use super::query::Filter;
use super::record::{
    Accept, ArtifactReviewed, Downloaded, Erased, Finish, OpenEnds, Record, Refused, Requested, Reviewed,
    SessionClosed, SessionOpened,
};
use super::removal::{Progress, Swept};

pub(super) enum Request {
    Accept(Box<Accept>, Answer<()>),
    Finish(Arc<Finish>, Answer<()>),
    Refused(Box<Refused>, Answer<()>),
    Opened(Box<SessionOpened>, Answer<()>),
    Closed(Arc<SessionClosed>, Answer<()>),
    Erased(Box<Erased>, Answer<()>),
    Reviewed(Box<Reviewed>, Answer<()>),
    ArtifactReviewed(Arc<ArtifactReviewed>, Answer<()>),
    Downloaded(Box<Downloaded>, Answer<()>),
    /// Removes some bodies and names, of entries after the one and up to the other.
    Erase(Box<Filter>, i64, i64, Answer<Progress>),
    /// Removes some of what may go at this time, in milliseconds since 1970.
    Sweep(i64, Answer<Swept>),
    /// Writes the database anew, so that no page has anything left in it that was removed.
    Rewrite(Answer<()>),
    /// Cuts the log; false if readers are in the way.
    Scrub(Answer<bool>),
    Settle(OpenEnds, Answer<()>),
    OpenEnds(Answer<OpenEnds>),
    Look(Look),
    Close(Answer<()>),
}

/// A question.
pub(super) enum Look {
    Get(Id, Answer<Option<Record>>),
    /// Of a tenant, a request.
    Requested(String, String, Answer<Option<Requested>>),
    /// Answered once all that was accepted is among the entries.
    Entered(Answer<()>),
}

/// What is to be removed.
pub(super) enum Removal {
    Erase(Box<Filter>, i64, i64, Answer<Progress>),
    Sweep(i64, Answer<Swept>),
    Rewrite(Answer<()>),
    Scrub(Answer<bool>),
}

/// Waiting requests by what they need.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) accepts: Vec<(Entry, Answer<()>)>,
    pub(super) finishes: Vec<(Entry, Answer<()>)>,
    pub(super) settles: Vec<(OpenEnds, Answer<()>)>,
    pub(super) removals: Vec<Removal>,
    pub(super) looks: Vec<Look>,
    pub(super) open_ends: Vec<Answer<OpenEnds>>,
}

impl Batch {
    pub(super) fn sort(requests: impl Iterator<Item = Request>, closing: &mut Vec<Answer<()>>) -> Self {
        let mut batch = Self::default();
        for request in requests {
            match request {
                Request::Accept(accept, answer) => batch.accepts.push((Entry::Accept(accept), answer)),
                Request::Refused(refused, answer) => batch.accepts.push((Entry::Refused(refused), answer)),
                Request::Finish(finish, answer) => batch.finishes.push((Entry::Finish(finish), answer)),
                Request::Opened(opened, answer) => batch.accepts.push((Entry::Opened(opened), answer)),
                Request::Closed(closed, answer) => batch.finishes.push((Entry::Closed(closed), answer)),
                Request::Erased(erased, answer) => batch.finishes.push((Entry::Erased(erased), answer)),
                Request::Reviewed(reviewed, answer) => batch.finishes.push((Entry::Reviewed(reviewed), answer)),
                Request::ArtifactReviewed(reviewed, answer) => {
                    batch.finishes.push((Entry::ArtifactReviewed(reviewed), answer));
                }
                Request::Downloaded(downloaded, answer) => {
                    batch.finishes.push((Entry::Downloaded(downloaded), answer));
                }
                Request::Erase(filter, after, last, answer) => {
                    batch.removals.push(Removal::Erase(filter, after, last, answer));
                }
                Request::Sweep(now_ms, answer) => batch.removals.push(Removal::Sweep(now_ms, answer)),
                Request::Rewrite(answer) => batch.removals.push(Removal::Rewrite(answer)),
                Request::Scrub(answer) => batch.removals.push(Removal::Scrub(answer)),
                Request::Settle(adopted, answer) => batch.settles.push((adopted, answer)),
                Request::OpenEnds(answer) => batch.open_ends.push(answer),
                Request::Look(look) => batch.looks.push(look),
                Request::Close(answer) => closing.push(answer),
            }
        }
        batch
    }

    /// Takes out the accept of an execution, if that is all there is.
    pub(super) fn take_single_accept(&mut self) -> Option<(Box<Accept>, Answer<()>)> {
        let others =
            self.finishes.len() + self.settles.len() + self.removals.len() + self.looks.len() + self.open_ends.len();
        if others > 0 || self.accepts.len() != 1 {
            return None;
        }
        match self.accepts.pop()? {
            (Entry::Accept(accept), answer) => Some((accept, answer)),
            other => {
                self.accepts.push(other);
                None
            }
        }
    }
}
