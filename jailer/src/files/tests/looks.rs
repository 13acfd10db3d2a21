//! Looks into files that change, that are large, or that leave no room.

use super::*;
use crate::files::wire::{Inspect, Inspected, Op, Verdict};

/// Above it the helper's copy is a file.
const LARGE: usize = 5 << 20;

impl Client {
    fn look(&mut self, inspect: Inspect) -> Result<Inspected, (Op, i32)> {
        self.send(&Request::Inspect(inspect));
        match self.receive() {
            Response::Inspected(seen) => Ok(seen),
            Response::Failed(failure) => Err((failure.op, failure.errno)),
            other => panic!("{other:?}"),
        }
    }
}

/// Asks about a text with these bytes.
fn text_of(path: &str, bytes: &[u8]) -> Inspect {
    let sum = sum_of(bytes);
    Inspect {
        path: path.into(),
        media_type: "text/plain".to_owned(),
        size: sum.size,
        sha256: sum.sha256,
        max_bytes: u64::MAX,
        time_ms: 60_000,
    }
}

#[test]
fn only_the_bytes_that_were_asked_for_are_looked_at() {
    let place = Place::new();
    let mut client = place.serve();
    place.write("a", "one\n");
    assert_eq!(client.look(text_of("a", b"one\n")).unwrap().verdict, Verdict::Valid);
    for now in ["two\n", "one\nand more", "one", ""] {
        place.write("a", now);
        let refused = client.look(text_of("a", b"one\n"));
        assert_eq!(refused, Err((Op::Read, libc::EBADMSG)), "{now:?}");
    }
    std::fs::remove_file(place.join("a")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", place.join("a")).unwrap();
    assert_eq!(client.look(text_of("a", b"one\n")), Err((Op::Open, libc::ELOOP)));
}

#[test]
fn a_large_file_is_copied_beside_the_others_and_leaves_nothing() {
    let place = Place::tmpfs("12M", "10");
    let mut client = place.serve();
    let bytes = b"line\n".repeat(LARGE / 5);
    place.write("a", &bytes);
    let seen = client.look(text_of("a", &bytes)).unwrap();
    assert_eq!(seen.verdict, Verdict::Valid);
    let space = client.collect(everything()).totals.space;
    assert_eq!(space.used_inodes, 2, "the directory and the file");
    place.write("b", vec![0; 4 << 20]);
    assert_eq!(client.look(text_of("a", &bytes)), Err((Op::Read, libc::ENOSPC)));
    place.write("c", "x\n");
    assert_eq!(client.look(text_of("c", b"x\n")).unwrap().verdict, Verdict::Valid);
}

#[test]
fn a_copy_takes_no_longer_than_it_may() {
    let place = Place::new();
    let mut client = place.serve();
    place.write("a", "one\n");
    let late = Inspect {
        time_ms: 0,
        ..text_of("a", b"one\n")
    };
    assert_eq!(client.look(late), Err((Op::Read, libc::ETIMEDOUT)));
}
