//! The cases of a hostile tree: links, special files, names that lead out, and swaps while the helper works.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::fs::{CWD, FileType, RenameFlags};

use super::*;

const CANARY: &[u8] = b"canary: not the session's";

/// A place with a file outside of it.
fn place_with_canary() -> (Place, tempfile::TempDir, PathBuf) {
    let outside = tempfile::tempdir().unwrap();
    let canary = outside.path().join("canary");
    std::fs::write(&canary, CANARY).unwrap();
    (Place::new(), outside, canary)
}

#[test]
fn links_out_of_the_directory_are_not_followed() {
    let (place, outside, canary) = place_with_canary();
    symlink(&canary, place.join("file")).unwrap();
    symlink(outside.path(), place.join("directory")).unwrap();
    symlink("/proc/self/root", place.join("magic")).unwrap();
    std::fs::create_dir(place.join("real")).unwrap();
    symlink("real", place.join("inner")).unwrap();
    let mut client = place.serve();
    for path in ["file", "directory/canary", "magic/etc/passwd", "inner/x"] {
        assert_eq!(client.get(get_of(path)), Err(libc::ELOOP), "{path}");
    }
    for path in ["directory/canary", "directory/new", "inner/x"] {
        assert_eq!(client.put(put_of(path, 1), b"x"), Err(libc::ELOOP), "{path}");
        let put = Put {
            make_parents: true,
            ..put_of(path, 1)
        };
        assert_eq!(client.put(put, b"x"), Err(libc::ELOOP), "{path}");
    }
    // Writing to a link replaces the link, not what it names.
    client.put(put_of("file", 4), b"mine").unwrap();
    assert!(place.join("file").symlink_metadata().unwrap().is_file());
    assert_eq!(std::fs::read(&canary).unwrap(), CANARY);
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn paths_that_leave_the_directory_are_refused() {
    let (place, _outside, canary) = place_with_canary();
    let mut client = place.serve();
    let absolute = canary.to_str().unwrap().to_owned();
    for path in [
        absolute.as_str(),
        "../canary",
        "..",
        "a/../../canary",
        "",
        ".",
        "a\0b",
        "a/",
        "/",
    ] {
        assert_eq!(client.get(get_of(path)), Err(libc::EINVAL), "{path:?}");
        let put = Put {
            make_parents: true,
            ..put_of(path, 1)
        };
        assert_eq!(client.put(put, b"x"), Err(libc::EINVAL), "{path:?}");
    }
    assert_eq!(std::fs::read_dir(&place.path).unwrap().count(), 0);
}

#[test]
fn what_is_no_file_of_its_own_is_neither_read_nor_waited_for() {
    let place = Place::tmpfs("1M", "100");
    let make = |name, kind, device| {
        rustix::fs::mknodat(CWD, place.join(name), kind, Mode::from_raw_mode(0o666), device).unwrap();
    };
    make("fifo", FileType::Fifo, 0);
    make("zero", FileType::CharacterDevice, rustix::fs::makedev(1, 5));
    make("disk", FileType::BlockDevice, rustix::fs::makedev(7, 0));
    let _listener = UnixListener::bind(place.join("socket")).unwrap();
    place.write("one", "1");
    std::fs::hard_link(place.join("one"), place.join("two")).unwrap();
    std::fs::create_dir(place.join("directory")).unwrap();
    symlink("one", place.join("link")).unwrap();
    let mut client = place.serve();
    for (path, errno) in [
        ("fifo", libc::EOPNOTSUPP),
        ("zero", libc::EOPNOTSUPP),
        ("disk", libc::EOPNOTSUPP),
        ("socket", libc::EOPNOTSUPP),
        ("one", libc::EMLINK),
        ("two", libc::EMLINK),
        ("directory", libc::EISDIR),
        ("link", libc::ELOOP),
    ] {
        assert_eq!(client.get(get_of(path)), Err(errno), "{path}");
    }
    let collection = client.collect(everything());
    assert_eq!(collection.paths(), Vec::<String>::new());
    let expected = [
        ("disk", Skip::Device),
        ("fifo", Skip::Fifo),
        ("link", Skip::Symlink),
        ("one", Skip::HardLink),
        ("socket", Skip::Socket),
        ("two", Skip::HardLink),
        ("zero", Skip::Device),
    ];
    assert_eq!(collection.skipped, expected.map(|(path, why)| (path.to_owned(), why)));
}

#[test]
fn a_file_under_a_lease_fails_at_once() {
    let place = Place::tmpfs("1M", "100");
    place.write("leased", "x");
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(place.join("leased"))
        .unwrap();
    let taken = nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_GETFL).unwrap();
    assert!(taken >= 0);
    // A write lease makes another open() wait for 45 s, without O_NONBLOCK. Python has the call, Rust's safe crates not.
    let script = "import fcntl,sys,os\nf=os.open(sys.argv[1],os.O_WRONLY)\nfcntl.fcntl(f,fcntl.F_SETLEASE,fcntl.F_WRLCK)\n\
                  print('held',flush=True)\nsys.stdin.read()";
    drop(file);
    let shared = format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        place.path.file_name().unwrap().to_str().unwrap()
    );
    let mut holder = std::process::Command::new("python3")
        .args(["-c", script, &format!("{shared}/leased")])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0; 5];
    holder.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    let started = std::time::Instant::now();
    assert_eq!(place.serve().get(get_of("leased")), Err(libc::EAGAIN));
    assert!(started.elapsed().as_secs() < 5);
    drop(holder.stdin.take());
    holder.wait().unwrap();
}

#[test]
fn another_file_system_below_the_directory_is_not_entered() {
    let other = Place::tmpfs("1M", "100");
    other.write("secret", CANARY);
    let inner = other.path.clone();
    // The mount is made in a mount namespace of this thread's own.
    std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS | nix::sched::CloneFlags::CLONE_FS).unwrap();
        let private = nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE;
        nix::mount::mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
        let place = Place::new();
        std::fs::create_dir(place.join("mounted")).unwrap();
        std::fs::write(place.join("bound"), "").unwrap();
        let tmpfs = Some("tmpfs");
        let none = nix::mount::MsFlags::empty();
        nix::mount::mount(tmpfs, &place.join("mounted"), tmpfs, none, Some("size=1M")).unwrap();
        std::fs::write(place.join("mounted/secret"), CANARY).unwrap();
        let bind = nix::mount::MsFlags::MS_BIND;
        nix::mount::mount(
            Some(&place.join("mounted/secret")),
            &place.join("bound"),
            None::<&str>,
            bind,
            None::<&str>,
        )
        .unwrap();
        let mut client = place.serve();
        assert_eq!(client.get(get_of("mounted/secret")), Err(libc::EXDEV));
        assert_eq!(client.get(get_of("bound")), Err(libc::EXDEV));
        let put = Put {
            make_parents: true,
            ..put_of("mounted/new/x", 1)
        };
        assert_eq!(client.put(put, b"x"), Err(libc::EXDEV));
        let collection = client.collect(everything());
        let other = Skip::OtherFileSystem;
        assert_eq!(
            collection.skipped,
            [("bound".to_owned(), other), ("mounted".to_owned(), other)]
        );
        nix::mount::umount(&place.join("bound")).unwrap();
        nix::mount::umount(&place.join("mounted")).unwrap();
    })
    .join()
    .unwrap();
    assert_eq!(std::fs::read(inner.join("secret")).unwrap(), CANARY);
}

/// Swaps pairs of names as fast as it goes, until told to stop.
struct Swapper {
    stop: std::sync::Arc<AtomicBool>,
    swaps: std::sync::Arc<AtomicU32>,
    thread: std::thread::JoinHandle<()>,
}

impl Swapper {
    fn start(pairs: Vec<(PathBuf, PathBuf)>) -> Self {
        let (stop, swaps) = (
            std::sync::Arc::new(AtomicBool::new(false)),
            std::sync::Arc::new(AtomicU32::new(0)),
        );
        let (stopped, counted) = (stop.clone(), swaps.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                for (a, b) in &pairs {
                    let _ = rustix::fs::renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE);
                }
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { stop, swaps, thread }
    }

    fn finish(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.swaps.load(Ordering::Relaxed)
    }
}

#[test]
fn swaps_during_requests_never_reach_a_file_outside() {
    let (place, outside, canary) = place_with_canary();
    std::fs::create_dir(place.join("dir")).unwrap();
    place.write("dir/canary", "inside");
    symlink(outside.path(), place.join("dir.link")).unwrap();
    place.write("file", "inside");
    symlink(&canary, place.join("file.link")).unwrap();
    let swapper = Swapper::start(vec![
        (place.join("dir"), place.join("dir.link")),
        (place.join("file"), place.join("file.link")),
    ]);
    let mut client = place.serve();
    let (mut rounds, mut read) = (0, 0);
    while swapper.swaps.load(Ordering::Relaxed) < 100_000 || rounds < 2_000 {
        rounds += 1;
        for path in ["dir/canary", "file"] {
            match client.get(get_of(path)) {
                Ok(bytes) => {
                    assert_ne!(bytes, CANARY, "{path}");
                    read += 1;
                }
                Err(errno) => assert_eq!(errno, libc::ELOOP, "{path}"),
            }
        }
        let put = client.put(
            Put {
                make_parents: rounds % 2 == 0,
                ..put_of("dir/new", 3)
            },
            b"new",
        );
        assert!(matches!(put, Ok(_) | Err(libc::ELOOP)), "{put:?}");
        if rounds % 100 == 0 {
            let collection = client.collect(Collect {
                expected: vec![b"file".to_vec()],
                ..everything()
            });
            assert!(collection.found.iter().all(|found| found.size != CANARY.len() as u64));
        }
    }
    let swaps = swapper.finish();
    assert!(
        swaps >= 100_000 && read > 0,
        "{swaps} swaps, {read} of {rounds} rounds read something"
    );
    assert_eq!(std::fs::read(&canary).unwrap(), CANARY);
    assert_eq!(
        std::fs::read_dir(outside.path()).unwrap().count(),
        1,
        "nothing was written outside"
    );
}

#[test]
fn a_partial_file_that_was_swapped_is_reported() {
    let (place, _outside, canary) = place_with_canary();
    let mut client = place.serve();
    client.send(&Request::Put(put_of("mine", 4)));
    client.send(&Request::Data(b"mine".to_vec()));
    let partial = std::iter::repeat_with(|| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        std::fs::read_dir(&place.path)
            .unwrap()
            .next()
            .map(|entry| entry.unwrap().path())
    })
    .flatten()
    .next()
    .unwrap();
    std::fs::remove_file(&partial).unwrap();
    symlink(&canary, &partial).unwrap();
    client.send(&Request::End);
    match client.receive() {
        Response::Failed(failure) => assert_eq!(failure.errno, libc::ESTALE),
        other => panic!("{other:?}"),
    }
    assert_eq!(std::fs::read(&canary).unwrap(), CANARY);
    assert_eq!(client.get(get_of("mine")), Err(libc::ELOOP));
}
