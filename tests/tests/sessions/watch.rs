//! What a client is told that watches sessions.

use std::collections::BTreeMap;

use brig_proto::v1::sessions_watch_response::Event;
use brig_proto::v1::{
    Session, SessionCloseReason, SessionState, SessionsCreateRequest, SessionsUpdateRequest, SessionsWatchRequest,
    SessionsWatchResponse,
};
use brig_tests::spec::command;
use brig_tests::{Daemon, Refused, daemon};
use tonic::Streaming;

use super::{Kept, named};

/// Somebody who watches.
pub(super) struct Watcher<'d> {
    daemon: &'d brig_tests::Client,
    stream: Streaming<SessionsWatchResponse>,
}

impl<'d> Watcher<'d> {
    pub(super) fn start(daemon: &'d brig_tests::Client, request: SessionsWatchRequest) -> Result<Self, Refused> {
        let stream = daemon.ask(daemon.sessions().watch(request))?;
        Ok(Self { daemon, stream })
    }

    pub(super) fn next(&mut self) -> Event {
        let message = self.daemon.wait(self.stream.message()).unwrap().unwrap();
        assert!(message.time.is_some());
        message.event.unwrap()
    }

    pub(super) fn session(&mut self) -> Session {
        match self.next() {
            Event::Session(session) => session,
            other => panic!("{other:?}"),
        }
    }

    /// The sessions that are there, by id.
    pub(super) fn first(&mut self) -> BTreeMap<String, Session> {
        let mut first = BTreeMap::new();
        loop {
            match self.next() {
                Event::Session(session) => drop(first.insert(session.session_id.clone(), session)),
                Event::Ready(_) => return first,
                Event::Overflow(_) => panic!("overflow"),
            }
        }
    }

    /// The next session that is not being made or closed.
    fn settled(&mut self) -> (String, SessionState) {
        loop {
            let session = self.session();
            if !matches!(session.state(), SessionState::Creating | SessionState::Closing) {
                return (session.session_id.clone(), session.state());
            }
        }
    }
}

fn labelled(id: &str, label: &str) -> SessionsCreateRequest {
    SessionsCreateRequest {
        labels: [("kind".to_owned(), label.to_owned())].into(),
        ..named(id)
    }
}

fn relabel(daemon: &Daemon, id: &str, labels: BTreeMap<String, String>) {
    let request = SessionsUpdateRequest {
        session_id: id.to_owned(),
        update_mask: Some(prost_types::FieldMask {
            paths: vec!["labels".to_owned()],
        }),
        labels,
        ..SessionsUpdateRequest::default()
    };
    daemon.ask(daemon.sessions().update(request)).unwrap();
}

fn all() -> SessionsWatchRequest {
    SessionsWatchRequest::default()
}

#[test]
fn a_watcher_is_told_what_is_there_and_then_each_change() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    kept.create(named("before"));
    kept.create(named("gone"));
    kept.close("gone");
    let mut watcher = Watcher::start(&daemon, all()).unwrap();
    let first = watcher.first();
    assert_eq!(first.keys().collect::<Vec<_>>(), ["before"], "closed ones are not told");
    let settled = |id: &str, state| (id.to_owned(), state);
    kept.create(named("mine"));
    assert_eq!(watcher.settled(), settled("mine", SessionState::Running));
    kept.pause("mine");
    assert_eq!(watcher.settled(), settled("mine", SessionState::Paused));
    kept.resume("mine");
    assert_eq!(watcher.settled(), settled("mine", SessionState::Running));
    kept.execute("mine", "e1", command(&["true"])).expect_success();
    let used = watcher.session();
    assert!(used.has_state && used.usage.is_none(), "{used:?}");
    kept.close("mine");
    assert_eq!(watcher.session().state(), SessionState::Closing);
    let closed = watcher.session();
    assert_eq!(
        (closed.state(), closed.close_reason()),
        (SessionState::Closed, SessionCloseReason::Asked)
    );
    // Who asks for it by name is told that it is closed.
    let by_name = SessionsWatchRequest {
        session_ids: vec!["gone".to_owned(), "never".to_owned()],
        ..all()
    };
    let first = Watcher::start(&daemon, by_name).unwrap().first();
    let states = first
        .values()
        .map(|session| (session.session_id.clone(), session.state()));
    assert_eq!(states.collect::<Vec<_>>(), [settled("gone", SessionState::Closed)]);
}

#[test]
fn only_what_matches_is_told_and_that_it_does_not_any_more() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    kept.create(labelled("a", "wanted"));
    kept.create(labelled("b", "other"));
    let request = SessionsWatchRequest {
        labels: [("kind".to_owned(), "wanted".to_owned())].into(),
        ..all()
    };
    let mut watcher = Watcher::start(&daemon, request).unwrap();
    assert_eq!(watcher.first().keys().collect::<Vec<_>>(), ["a"]);
    kept.pause("b");
    relabel(&daemon, "b", labelled("", "wanted").labels);
    let now = watcher.session();
    assert_eq!((now.session_id.as_str(), now.state()), ("b", SessionState::Paused));
    relabel(&daemon, "a", BTreeMap::new());
    let last = watcher.session();
    assert_eq!((last.session_id.as_str(), last.labels.len()), ("a", 0));
    kept.pause("a");
    kept.resume("b");
    let next = watcher.session();
    assert_eq!((next.session_id.as_str(), next.state()), ("b", SessionState::Running));
}

#[test]
fn who_does_not_read_loses_changes_and_is_told_so() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    kept.create(named("mine"));
    let mut watcher = Watcher::start(&daemon, all()).unwrap();
    assert_eq!(watcher.first().len(), 1);
    let labels = |number: usize| {
        let label = |key: usize| (format!("key{key}"), format!("{number:0>250}"));
        (0..60).map(label).collect::<BTreeMap<_, _>>()
    };
    // Far more than any window between here and there holds.
    let changes = 600;
    (0..changes).for_each(|number| relabel(&daemon, "mine", labels(number)));
    let mut told = 0;
    while let Event::Session(_) = watcher.next() {
        told += 1;
    }
    assert!(told < changes, "{told}");
    // What comes then is told again.
    kept.pause("mine");
    while watcher.session().state() != SessionState::Paused {}
}

#[test]
fn watchers_are_bounded_and_make_room_when_they_go() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    kept.create(named("mine"));
    for _ in 0..50 {
        let mut watcher = Watcher::start(&daemon, all()).unwrap();
        assert_eq!(watcher.first().len(), 1);
    }
    let mut watchers: Vec<Watcher> = Vec::new();
    let refused = loop {
        match Watcher::start(&daemon, all()) {
            Ok(mut watcher) => {
                watcher.first();
                watchers.push(watcher);
            }
            Err(refused) => break refused,
        }
        assert!(watchers.len() <= 16);
    };
    assert_eq!(refused.reason, "WATCH_QUOTA");
    let bad = SessionsWatchRequest {
        session_ids: vec!["a".to_owned(), "A".to_owned()],
        ..all()
    };
    let refused = Watcher::start(&daemon, bad).err().unwrap();
    assert_eq!(refused.fields, ["session_ids[1]"]);
    kept.pause("mine");
    for watcher in &mut watchers {
        assert_eq!(watcher.session().state(), SessionState::Paused);
    }
}
