//! Trees and files made to cost much.

use std::time::Instant;

use super::*;
use crate::files::wire::{Limit, SKIPPED_MAX};

#[test]
fn a_full_disk_is_reported_and_the_part_removed() {
    let place = Place::tmpfs("1M", "100");
    let mut client = place.serve();
    let bytes = vec![1; 3 << 20];
    assert_eq!(
        client.put(put_of("large", bytes.len() as u64), &bytes),
        Err(libc::ENOSPC)
    );
    assert_eq!(std::fs::read_dir(&place.path).unwrap().count(), 0);
    client.put(put_of("fits", 512 << 10), &bytes[..512 << 10]).unwrap();
}

#[test]
fn no_inode_left_is_reported() {
    let place = Place::tmpfs("1M", "4");
    let mut client = place.serve();
    let ends: Vec<_> = (0..5)
        .map(|at| client.put(put_of(format!("f{at}"), 0), b"").err())
        .collect();
    assert_eq!(ends, [None, None, None, Some(libc::ENOSPC), Some(libc::ENOSPC)]);
    assert_eq!(client.snapshot(), 3, "works without room for anything");
}

#[test]
fn the_space_of_the_whole_file_system_is_told_whatever_is_found_in_it() {
    let place = Place::tmpfs("1M", "8");
    let mut client = place.serve();
    let space = |client: &mut Client| client.collect(everything()).totals.space;
    let empty = space(&mut client);
    assert_eq!((empty.used_bytes, empty.total_bytes), (0, 1 << 20));
    assert_eq!((empty.used_inodes, empty.total_inodes), (1, 8), "the directory itself");
    std::fs::File::create(place.join("sparse"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    // Nobody is told of a file in an ignored directory, but it takes up space like any other.
    std::fs::create_dir(place.join(".cache")).unwrap();
    place.write(".cache/hidden", vec![1; 300 << 10]);
    let used = space(&mut client);
    assert_eq!((used.used_bytes, used.used_inodes), (300 << 10, 4));
    assert!(std::fs::write(place.join("rest"), vec![1; 1 << 20]).is_err());
    assert_eq!(space(&mut client).used_bytes, 1 << 20);
    for at in 0..3 {
        place.write(&format!("empty{at}"), "");
    }
    let full = space(&mut client);
    assert_eq!(full.used_inodes, full.total_inodes);
}

#[test]
fn a_sparse_file_of_a_terabyte_is_seen_for_what_it_is() {
    let place = Place::tmpfs("1M", "100");
    std::fs::File::create(place.join("sparse"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    let mut client = place.serve();
    let found = client.collect(everything()).found;
    assert_eq!((found[0].size, found[0].allocated), (1 << 40, 0));
    let collection = client.collect(Collect {
        since: None,
        max_bytes_each: Some(50 << 20),
        ..everything()
    });
    assert_eq!(collection.skipped, [("sparse".to_owned(), Skip::TooLarge)]);
    assert_eq!(client.get(get_of("sparse")), Err(libc::EFBIG));
    let last = Get {
        offset: (1 << 40) - 2,
        ..get_of("sparse")
    };
    assert_eq!(client.get(last).unwrap(), [0, 0]);
}

#[test]
fn a_hundred_thousand_names_are_walked_within_the_bounds() {
    let place = Place::tmpfs("8M", "200000");
    let tail = "n".repeat(250);
    for at in 0..100_000 {
        let made = std::fs::File::create(place.join(format!("{at:05}{}", if at % 50 == 0 { &tail } else { "" })));
        made.unwrap();
    }
    let mut client = place.serve();
    let started = Instant::now();
    assert_eq!(client.snapshot(), 100_000);
    assert_eq!(client.collect(everything()).totals.changed, 0);
    assert!(started.elapsed().as_secs() < 10, "{:?}", started.elapsed());
    client.send(&Request::Snapshot(Walk { max_entries: 1, ..WALK }));
    assert_eq!(
        client.receive(),
        Response::Snapshotted {
            files: 1,
            truncated: Some(Limit::Entries)
        }
    );
    let collection = client.collect(Collect {
        max_files: 10,
        ..everything()
    });
    assert_eq!(
        (collection.found.len(), collection.skipped.len() as u64),
        (10, SKIPPED_MAX)
    );
    assert_eq!((collection.totals.changed, collection.totals.skipped), (99_999, 99_989));
}

#[test]
fn a_tree_deeper_than_any_path_is_left_alone_below_the_bound() {
    let place = Place::tmpfs("8M", "20000");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut at = rustix::fs::open(&place.path, flags, Mode::empty()).unwrap();
    let name = "d".repeat(100);
    for _ in 0..3_000 {
        rustix::fs::mkdirat(&at, &*name, Mode::from_raw_mode(0o755)).unwrap();
        at = rustix::fs::openat(&at, &*name, flags, Mode::empty()).unwrap();
    }
    let mut client = place.serve();
    let collection = client.collect(everything());
    assert_eq!(collection.totals.examined, 41, "a path has 4095 bytes");
    assert_eq!(
        collection.skipped.iter().map(|skip| skip.1).collect::<Vec<_>>(),
        [Skip::TooDeep]
    );
    let walk = Walk { max_depth: 8, ..WALK };
    assert_eq!(client.collect(Collect { walk, ..everything() }).totals.examined, 8);
    // A tree of this depth takes long to remove by path, so that the test does not try.
}

#[test]
fn a_file_that_grows_while_it_is_sent_ends_where_it_ended_at_first() {
    let place = Place::new();
    place.write("growing", vec![1; 4 * CHUNK_MAX]);
    let mut client = place.serve();
    client.send(&Request::Get(get_of("growing")));
    let Response::Data(first) = client.receive() else {
        panic!("no data")
    };
    place.write("more", vec![2; 4 * CHUNK_MAX]);
    let mut file = std::fs::File::options()
        .append(true)
        .open(place.join("growing"))
        .unwrap();
    file.write_all(&std::fs::read(place.join("more")).unwrap()).unwrap();
    let mut size = first.len();
    loop {
        match client.receive() {
            Response::Data(bytes) => size += bytes.len(),
            Response::End { size: told } => break assert_eq!((told, size), (4 * CHUNK_MAX as u64, 4 * CHUNK_MAX)),
            other => panic!("{other:?}"),
        }
    }
}
