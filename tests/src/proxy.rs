//! A Unix socket between a client and brigd that breaks: each connection is cut after so many bytes of one direction.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;

/// Where a connection is cut: after so many bytes to the daemon, or from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    Never,
    Up(usize),
    Down(usize),
}

/// The socket, and how its connections end.
#[derive(Debug)]
pub struct Proxy {
    directory: TempDir,
    next: Arc<Mutex<Vec<Cut>>>,
    cuts: Arc<AtomicUsize>,
}

impl Proxy {
    /// Listens, and passes on to this socket.
    pub fn start(to: &Path) -> Self {
        let directory = tempfile::Builder::new().prefix("brig-test-").tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("socket")).unwrap();
        let proxy = Self {
            directory,
            next: Arc::default(),
            cuts: Arc::default(),
        };
        let (to, next, cuts) = (to.to_owned(), Arc::clone(&proxy.next), Arc::clone(&proxy.cuts));
        // It ends with the process.
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(daemon)) = (client, UnixStream::connect(&to)) else {
                    continue;
                };
                let cut = next.lock().unwrap().pop().unwrap_or(Cut::Never);
                let limit = |wanted: fn(Cut) -> Option<usize>| wanted(cut).unwrap_or(usize::MAX);
                let up = limit(|cut| if let Cut::Up(bytes) = cut { Some(bytes) } else { None });
                let down = limit(|cut| if let Cut::Down(bytes) = cut { Some(bytes) } else { None });
                pass(&client, &daemon, up, &cuts);
                pass(&daemon, &client, down, &cuts);
            }
        });
        proxy
    }

    /// Where clients connect to.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// How the next connections end; those after them are not cut.
    pub fn cut(&self, mut cuts: Vec<Cut>) {
        cuts.reverse();
        *self.next.lock().unwrap() = cuts;
    }

    /// How many connections were cut so far.
    pub fn cuts(&self) -> usize {
        self.cuts.load(Ordering::SeqCst)
    }
}

/// Passes bytes on until one end goes, or there were so many.
fn pass(from: &UnixStream, to: &UnixStream, mut left: usize, cuts: &Arc<AtomicUsize>) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    let cuts = Arc::clone(cuts);
    std::thread::spawn(move || {
        let mut bytes = [0; 16 << 10];
        loop {
            if left == 0 {
                cuts.fetch_add(1, Ordering::SeqCst);
                break;
            }
            let most = bytes.len().min(left);
            match from.read(&mut bytes[..most]) {
                Ok(length @ 1..) if to.write_all(&bytes[..length]).is_ok() => left -= length,
                _ => break,
            }
        }
        for end in [&from, &to] {
            let _gone_already = end.shutdown(Shutdown::Both);
        }
    });
}

/// Numbers that look random and are the same for the same seed.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// The seed of `BRIG_SEED`, or one of the clock's; it is printed, so that a failure can be repeated.
    pub fn seeded() -> Self {
        let seed = std::env::var("BRIG_SEED").map_or_else(
            |_| {
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                u64::from(now.unwrap().subsec_nanos())
            },
            |seed| seed.parse().unwrap(),
        );
        eprintln!("BRIG_SEED={seed}");
        Self(seed)
    }

    /// A number below this one. Source: Steele et al., Fast splittable pseudorandom number generators, 2014.
    pub fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % most as u64).unwrap()
    }

    /// Up to three cuts, after at most so many bytes to the daemon or from it.
    pub fn cuts(&mut self, up: usize, down: usize) -> Vec<Cut> {
        let cut = |random: &mut Self| match random.below(2) {
            0 => Cut::Up(random.below(up)),
            _ => Cut::Down(random.below(down)),
        };
        (0..=self.below(3)).map(|_| cut(self)).collect()
    }
}
