//! What clients of a session ask about its files.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::*;
use crate::files::wire::{
    Arrived, CHANNELS_MAX, Changed, Info, Kind, List, MakeDir, Move, Partial, Place as Directory, Remove, Stat, Upload,
    Watch, What,
};

impl Client {
    fn ask(&mut self, request: Request) -> Result<Response, i32> {
        self.send(&request);
        match self.receive() {
            Response::Failed(failure) => Err(failure.errno),
            answer => Ok(answer),
        }
    }

    fn info(&mut self, request: Request) -> Result<Info, i32> {
        match self.ask(request)? {
            Response::Info(info) => Ok(info),
            other => panic!("{other:?}"),
        }
    }

    fn stat(&mut self, path: &str, sha256: bool) -> Result<Info, i32> {
        self.info(Request::Stat(Stat {
            path: path.into(),
            sha256,
            time_ms: 60_000,
        }))
    }

    fn page(&mut self, path: &str, depth: u32, after: Option<&[u8]>, max: u32) -> Result<(Vec<Vec<u8>>, bool), i32> {
        self.send(&Request::List(List {
            path: path.into(),
            depth,
            after: after.map(<[u8]>::to_vec),
            max,
            time_ms: 60_000,
        }));
        let mut paths = Vec::new();
        loop {
            match self.receive() {
                Response::Info(info) => paths.push(info.path),
                Response::Listed { more } => return Ok((paths, more)),
                Response::Failed(failure) => return Err(failure.errno),
                other => panic!("{other:?}"),
            }
        }
    }

    fn remove(&mut self, path: &str, recursive: bool, time_ms: u32) -> Result<(u64, bool), i32> {
        match self.ask(Request::Remove(Remove {
            path: path.into(),
            recursive,
            time_ms,
        }))? {
            Response::Removed { count, done } => Ok((count, done)),
            other => panic!("{other:?}"),
        }
    }

    fn rename(&mut self, from: &str, to: &str, overwrite: bool) -> Result<Info, i32> {
        self.info(Request::Move(Move {
            from: from.into(),
            to: to.into(),
            make_parents: false,
            overwrite,
        }))
    }

    /// Begins another conversation, which ends with the socket that this gives.
    fn open(&mut self) -> Result<UnixStream, i32> {
        let (near, far) = UnixStream::pair().unwrap();
        let frame = encode(&Request::Open(Directory::Home)).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [far.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&self.socket, &[IoSlice::new(&frame)], &mut control, SendFlags::empty()).unwrap();
        match self.receive() {
            Response::Opened => Ok(near),
            Response::Failed(failure) => Err(failure.errno),
            other => panic!("{other:?}"),
        }
    }

    fn watch(&mut self, recursive: bool) -> Result<(), i32> {
        let watch = Watch {
            path: Vec::new(),
            recursive,
            info: false,
        };
        assert_eq!(self.ask(Request::Watch(watch))?, Response::Watching);
        Ok(())
    }

    /// The changes up to that of a path.
    fn changes(&mut self, until: &str) -> Vec<(What, String)> {
        let mut seen = Vec::new();
        loop {
            match self.receive() {
                Response::Changed(Changed { what, path, .. }) => {
                    seen.push((what, text(&path)));
                    if path == until.as_bytes() {
                        return seen;
                    }
                }
                other => panic!("{other:?} after {seen:?}"),
            }
        }
    }
}

fn resumable(path: &str, name: u64, offset: u64) -> Upload {
    Upload {
        put: put_of(path, 1 << 20),
        exact: false,
        sha256: None,
        partial: Some(Partial { name, offset }),
    }
}

#[test]
fn a_path_is_shown_as_it_is_and_links_are_not_followed() {
    let place = Place::new();
    place.write("file", "abc");
    std::fs::set_permissions(place.join("file"), PermissionsExt::from_mode(0o4750)).unwrap();
    symlink("/etc/passwd", place.join("link")).unwrap();
    std::fs::create_dir(place.join("real")).unwrap();
    symlink("real", place.join("through")).unwrap();
    place.write("real/x", "");
    let mut client = place.serve();
    let file = client.stat("file", true).unwrap();
    assert_eq!((file.kind, file.size, file.mode), (Kind::Regular, 3, 0o4750));
    assert_eq!(file.sha256, Some(sum_of(b"abc").sha256));
    assert_eq!(file.uid, place.join("file").metadata().unwrap().uid());
    let link = client.stat("link", true).unwrap();
    assert_eq!((link.kind, link.target), (Kind::Symlink, Some(b"/etc/passwd".to_vec())));
    assert_eq!(client.stat("", false).unwrap().kind, Kind::Directory);
    assert_eq!(client.stat("real", true).unwrap().sha256, None);
    assert_eq!(client.stat("through/x", false), Err(libc::ELOOP));
    assert_eq!(client.stat("nothing", false), Err(libc::ENOENT));
    assert_eq!(client.stat("file/x", false), Err(libc::ENOTDIR));
    assert_eq!(client.stat("../x", false), Err(libc::EINVAL));
    std::fs::hard_link(place.join("file"), place.join("again")).unwrap();
    assert_eq!(client.stat("again", true), Err(libc::EMLINK));
}

#[test]
fn pages_come_in_the_order_of_the_bytes_and_leave_nothing_out() {
    let place = Place::new();
    for directory in ["a", "a/b", "a-b", "z"] {
        std::fs::create_dir(place.join(directory)).unwrap();
    }
    for file in ["a/b/c", "a/x", "a b", "a.txt", "a-b/q", "z/1", ".brig-put-0123"] {
        place.write(file, "");
    }
    let odd = std::ffi::OsStr::from_bytes(b"a/\xff\n");
    std::fs::write(place.join(odd), "").unwrap();
    let expected: Vec<&[u8]> = vec![
        b"a",
        b"a b",
        b"a-b",
        b"a-b/q",
        b"a.txt",
        b"a/b",
        b"a/b/c",
        b"a/x",
        b"a/\xff\n",
        b"z",
        b"z/1",
    ];
    let mut client = place.serve();
    for size in 1..=12 {
        let (mut all, mut after) = (Vec::new(), None::<Vec<u8>>);
        loop {
            let (paths, more) = client.page("", 8, after.as_deref(), size).unwrap();
            after = paths.last().cloned();
            all.extend(paths);
            if !more {
                break;
            }
        }
        assert_eq!(all, expected, "pages of {size}");
    }
    assert_eq!(
        client.page("", 1, None, 100).unwrap().0,
        [&b"a"[..], b"a b", b"a-b", b"a.txt", b"z"]
    );
    assert_eq!(
        client.page("a", 1, None, 2).unwrap(),
        (vec![b"b".to_vec(), b"x".to_vec()], true)
    );
    assert_eq!(client.page("a.txt", 1, None, 2), Err(libc::ENOTDIR));
    assert_eq!(client.page("none", 1, None, 2), Err(libc::ENOENT));
}

#[test]
fn directories_are_made_with_their_mode_and_only_where_nothing_is() {
    let place = Place::new();
    let mut client = place.serve();
    let mut make = |path: &str, make_parents| {
        client.info(Request::MakeDir(MakeDir {
            path: path.into(),
            mode: 0o1731,
            make_parents,
        }))
    };
    assert_eq!(make("a/b", false), Err(libc::ENOENT));
    assert_eq!(make("a/b", true).unwrap().mode, 0o731);
    assert_eq!(make("a/b", true), Err(libc::EEXIST));
    assert_eq!(place.join("a").metadata().unwrap().mode() & 0o7777, 0o755);
    symlink("a", place.join("link")).unwrap();
    assert_eq!(make("link/c", true), Err(libc::ELOOP));
}

#[test]
fn a_name_is_moved_whatever_it_is_and_replaces_only_what_it_may() {
    let place = Place::new();
    std::fs::create_dir_all(place.join("to/directory")).unwrap();
    place.write("one", "1");
    place.write("two", "2");
    symlink("nowhere", place.join("link")).unwrap();
    let mut client = place.serve();
    assert_eq!(client.rename("one", "two", false), Err(libc::EEXIST));
    assert_eq!(client.rename("one", "to/directory", true), Err(libc::EISDIR));
    assert_eq!(client.rename("none", "two", true), Err(libc::ENOENT));
    assert_eq!(client.rename("to", "to/directory/x", false), Err(libc::EINVAL));
    assert_eq!(client.rename("one", "two", true).unwrap().path, b"two");
    assert_eq!(std::fs::read(place.join("two")).unwrap(), b"1");
    assert_eq!(client.rename("link", "to/link", false).unwrap().kind, Kind::Symlink);
    assert_eq!(
        client.rename("to/directory", "moved", false).unwrap().kind,
        Kind::Directory
    );
}

#[test]
fn trees_are_removed_however_deep_and_what_links_name_stays() {
    let place = Place::new();
    place.write("kept", "x");
    let mut deep = PathBuf::from("tree");
    std::fs::create_dir(place.join(&deep)).unwrap();
    let top = rustix::fs::open(place.join("tree"), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut at = top;
    for _ in 0..1200 {
        rustix::fs::mkdirat(&at, "d", Mode::from_raw_mode(0o755)).unwrap();
        rustix::fs::symlinkat("/", &at, "link").unwrap();
        at = rustix::fs::openat(&at, "d", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    drop(at);
    deep.push("file");
    place.write("tree/file", "x");
    symlink("../kept", place.join("tree/kept")).unwrap();
    let mut client = place.serve();
    assert_eq!(client.remove("tree", false, 1000), Err(libc::ENOTEMPTY));
    // No time is time for nothing: asking again goes on.
    assert!(!client.remove("tree", true, 0).unwrap().1);
    let mut count = 0;
    loop {
        let (removed, done) = client.remove("tree", true, 20).unwrap();
        count += removed;
        if done {
            break;
        }
    }
    assert_eq!(count, 1 + 2 * 1200 + 2);
    assert_eq!(client.remove("tree", true, 1000), Err(libc::ENOENT));
    assert_eq!(std::fs::read(place.join("kept")).unwrap(), b"x");
    assert_eq!(std::fs::read_dir(&place.path).unwrap().count(), 1);
}

#[test]
fn an_upload_that_broke_off_is_gone_on_with() {
    let place = Place::new();
    let mut first = place.serve();
    first.send(&Request::Upload(resumable("file", 7, 0)));
    first.send(&Request::Data(b"0123456789".to_vec()));
    assert!(first.hang_up().is_err());
    let mut client = place.serve();
    let arrived = |client: &mut Client| {
        let path = b"file".to_vec();
        client.ask(Request::Arrived(Arrived { path, name: 7 })).unwrap()
    };
    assert_eq!(arrived(&mut client), Response::Arrived { size: 10 });
    let go_on = |client: &mut Client, upload: Upload, bytes: &[u8]| {
        client.send(&Request::Upload(upload));
        client.send(&Request::Data(bytes.to_vec()));
        client.send(&Request::End);
        match client.receive() {
            Response::Stored(sum) => Ok(sum),
            Response::Failed(failure) => Err(failure.errno),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(go_on(&mut client, resumable("file", 7, 11), b""), Err(libc::ERANGE));
    // What lies beyond the offset is thrown away, and what was there counts in the digest.
    assert_eq!(
        go_on(&mut client, resumable("file", 7, 8), b"xyz"),
        Ok(sum_of(b"01234567xyz"))
    );
    assert_eq!(std::fs::read(place.join("file")).unwrap(), b"01234567xyz");
    assert_eq!(arrived(&mut client), Response::Arrived { size: 0 });
    let other_digest = Upload {
        sha256: Some(sum_of(b"other").sha256),
        ..resumable("second", 8, 0)
    };
    assert_eq!(go_on(&mut client, other_digest, b"this"), Err(libc::EBADMSG));
    assert_eq!(std::fs::read_dir(&place.path).unwrap().count(), 1);
}

#[test]
fn a_read_says_what_the_file_is_before_its_bytes() {
    let place = Place::new();
    place.write("file", "0123456789");
    let mut client = place.serve();
    client.send(&Request::Read(Get {
        offset: 3,
        length: Some(4),
        ..get_of("file")
    }));
    assert!(matches!(
        client.receive(),
        Response::Info(Info {
            size: 10,
            kind: Kind::Regular,
            ..
        })
    ));
    assert_eq!(client.receive(), Response::Data(b"3456".to_vec()));
    assert_eq!(client.receive(), Response::End { size: 4 });
}

#[test]
fn conversations_do_not_wait_for_each_other_and_are_counted() {
    let place = Place::new();
    place.write("large", vec![1; 8 << 20]);
    let mut client = place.serve();
    let mut slow = client.open().unwrap();
    // Nobody reads the answer.
    slow.write_all(&encode(&Request::Get(get_of("large"))).unwrap())
        .unwrap();
    assert_eq!(client.stat("large", false).unwrap().size, 8 << 20);
    let mut others: Vec<_> = (1..CHANNELS_MAX).map(|_| client.open().unwrap()).collect();
    assert_eq!(client.open().err(), Some(libc::EUSERS));
    others.pop();
    while client.open().is_err() {
        std::thread::yield_now();
    }
    assert!(client.hang_up().is_ok());
}

#[test]
fn what_is_made_in_a_new_directory_is_told_once() {
    let place = Place::tmpfs("4M", "4000");
    let mut client = place.serve();
    client.watch(true).unwrap();
    for number in 0..100 {
        std::fs::create_dir_all(place.join(format!("{number}/a/b"))).unwrap();
        place.write(&format!("{number}/a/b/file"), "");
    }
    place.write("end", "");
    let mut seen = client.changes("end");
    // Those that came late are told after it.
    while seen.len() < 401 {
        match client.receive() {
            Response::Changed(changed) => seen.push((changed.what, text(&changed.path))),
            other => panic!("{other:?}"),
        }
    }
    let mut created: Vec<_> = seen.iter().filter(|(what, _)| *what == What::Created).collect();
    created.sort_by(|one, other| one.1.cmp(&other.1));
    let count = created.len();
    created.dedup();
    assert_eq!((count, created.len()), (401, 401));
}

#[test]
fn changes_are_told_by_kind_and_moves_are_followed() {
    let place = Place::tmpfs("4M", "400");
    std::fs::create_dir(place.join("d")).unwrap();
    let mut client = place.serve();
    client.watch(true).unwrap();
    place.write("d/file", "x");
    std::fs::set_permissions(place.join("d/file"), PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::rename(place.join("d"), place.join("e")).unwrap();
    std::fs::remove_file(place.join("e/file")).unwrap();
    std::fs::remove_dir(place.join("e")).unwrap();
    place.write(".brig-put-1", "");
    place.write("end", "");
    let seen = client.changes("end");
    let has = |what, path: &str| seen.contains(&(what, path.to_owned()));
    assert!(has(What::Created, "d/file") && has(What::Written, "d/file"), "{seen:?}");
    assert!(has(What::Attributes, "d/file"), "{seen:?}");
    assert!(has(What::Renamed, "d") && has(What::Created, "e"), "{seen:?}");
    assert!(has(What::Removed, "e"), "{seen:?}");
    assert!(!seen.iter().any(|(_, path)| path.starts_with(".brig-put-")), "{seen:?}");
}

#[test]
fn a_watch_of_too_many_directories_is_refused_and_a_client_that_is_gone_ends_it() {
    let place = Place::tmpfs("4M", "4000");
    for number in 0..1100 {
        std::fs::create_dir(place.join(number.to_string())).unwrap();
    }
    let mut client = place.serve();
    assert_eq!(client.watch(true), Err(libc::EUSERS));
    client.watch(false).unwrap();
    assert!(client.hang_up().is_err());
}

#[test]
fn a_directory_that_is_swapped_for_a_link_leads_nowhere() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("x"), "canary").unwrap();
    std::fs::create_dir(outside.path().join("below")).unwrap();
    let place = Place::new();
    std::fs::create_dir(place.join("real")).unwrap();
    place.write("real/x", "mine");
    symlink(outside.path(), place.join("link")).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let swapper = scope.spawn(|| {
            let mut swaps = 0_u32;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) || swaps < 1000 {
                rustix::fs::renameat_with(
                    rustix::fs::CWD,
                    place.join("real"),
                    rustix::fs::CWD,
                    place.join("link"),
                    rustix::fs::RenameFlags::EXCHANGE,
                )
                .unwrap();
                swaps += 1;
            }
        });
        let mut client = place.serve();
        for _ in 0..3000 {
            if let Ok(info) = client.stat("real/x", true) {
                assert_eq!(info.sha256, Some(sum_of(b"mine").sha256));
            }
            let _swapped = client.rename("real/x", "real/y", true);
            let _swapped = client.rename("real/y", "real/x", true);
            let _swapped = client.remove("real/below", true, 1000);
            let (paths, _) = client.page("", 8, None, 100).unwrap();
            assert!(!paths.iter().any(|path| path.ends_with(b"below")));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        swapper.join().unwrap();
    });
    assert_eq!(std::fs::read(outside.path().join("x")).unwrap(), b"canary");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 2);
}
