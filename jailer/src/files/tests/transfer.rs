use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;
use crate::files::wire::Time;

#[test]
fn a_file_comes_back_as_it_was_put() {
    let place = Place::new();
    let mut client = place.serve();
    let sizes = [0, 1, CHUNK_MAX - 1, CHUNK_MAX, 3 * CHUNK_MAX + 7];
    for size in sizes {
        let bytes: Vec<u8> = (0..size).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect();
        assert_eq!(
            client.put(put_of("data.bin", bytes.len() as u64), &bytes),
            Ok(sum_of(&bytes))
        );
        assert_eq!(client.get(get_of("data.bin")), Ok(bytes.clone()));
    }
    assert_eq!(
        std::fs::read_dir(&place.path).unwrap().count(),
        1,
        "no partial file is left"
    );
    client.hang_up().unwrap();
}

#[test]
fn mode_time_and_parents_are_as_asked() {
    let place = Place::new();
    let mut client = place.serve();
    let put = Put {
        mode: 0o4751,
        mtime: Some(Time {
            seconds: 1_700_000_000,
            nanoseconds: 5,
        }),
        make_parents: true,
        ..put_of("a/b/c.txt", 2)
    };
    client.put(put, b"hi").unwrap();
    let metadata = std::fs::metadata(place.join("a/b/c.txt")).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o751);
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (1_700_000_000, 5));
    assert_eq!(client.put(put_of("x/y", 0), b""), Err(libc::ENOENT));
    assert_eq!(
        client.put(
            Put {
                make_parents: true,
                ..put_of("a/b/c.txt/d", 0)
            },
            b""
        ),
        Err(libc::ENOTDIR)
    );
}

#[test]
fn an_existing_file_is_replaced_only_if_asked() {
    let place = Place::new();
    place.write("here", "old");
    let mut client = place.serve();
    assert_eq!(
        client.put(
            Put {
                overwrite: false,
                ..put_of("here", 3)
            },
            b"new"
        ),
        Err(libc::EEXIST)
    );
    assert_eq!(std::fs::read(place.join("here")).unwrap(), b"old");
    client.put(put_of("here", 3), b"new").unwrap();
    assert_eq!(std::fs::read(place.join("here")).unwrap(), b"new");
    assert_eq!(std::fs::read_dir(&place.path).unwrap().count(), 1);
}

#[test]
fn a_put_of_another_size_than_announced_leaves_nothing() {
    let place = Place::new();
    let mut client = place.serve();
    assert_eq!(client.put(put_of("long", 3), b"four"), Err(libc::EFBIG));
    assert_eq!(client.put(put_of("short", 5), b"four"), Err(libc::ECANCELED));
    assert_eq!(std::fs::read_dir(&place.path).unwrap().count(), 0);
    assert_eq!(client.put(put_of("right", 4), b"four"), Ok(sum_of(b"four")));
}

#[test]
fn a_part_of_a_file_is_sent_with_the_hash_of_that_part() {
    let place = Place::new();
    place.write("digits", "0123456789");
    let mut client = place.serve();
    let part = |offset, length| Get {
        offset,
        length,
        ..get_of("digits")
    };
    assert_eq!(client.get(part(3, Some(4))), Ok(b"3456".to_vec()));
    assert_eq!(client.get(part(8, Some(40))), Ok(b"89".to_vec()));
    assert_eq!(client.get(part(u64::MAX, Some(u64::MAX))), Ok(Vec::new()));
    assert_eq!(
        client.get(Get {
            max_bytes: 9,
            ..get_of("digits")
        }),
        Err(libc::EFBIG)
    );
    assert_eq!(client.get(get_of("nothing")), Err(libc::ENOENT));
    assert_eq!(client.get(get_of("digits/more")), Err(libc::ENOTDIR));
}

#[test]
fn names_are_bytes_up_to_the_limits_of_the_kernel() {
    let place = Place::new();
    let mut client = place.serve();
    let longest = "n".repeat(255);
    for name in [
        &b"\xff\xfe"[..],
        b"line\nbreak",
        b"\x1b[31mred",
        b" $(id);'\"",
        longest.as_bytes(),
        "\u{e9}".as_bytes(),
    ] {
        client.put(put_of(name, 1), b"x").unwrap();
        assert_eq!(client.get(get_of(name)).unwrap(), b"x");
    }
    assert_eq!(client.put(put_of("n".repeat(256), 0), b""), Err(libc::ENAMETOOLONG));
    assert_eq!(client.get(get_of("a/".repeat(2048) + "a")), Err(libc::ENAMETOOLONG));
    assert_eq!(client.collect(everything()).found.len(), 6);
}
