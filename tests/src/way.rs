//! The ways in which a program comes to be. `BRIG_WAY` says which one the tests take wherever there is a choice: `cold`,
//! where it is started in a session that was made for it, `forked`, where a zygote forks it, `pooled`, where it has waited.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use brig_proto::v1::execution_spec::Work;
use brig_proto::v1::{ExecutionSpec, RunRequest, StartKind, run_request};

use crate::{Client, eventually, slow};

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Cold,
    Forked,
    Pooled,
}

/// The one that is taken.
pub static WAY: LazyLock<Way> = LazyLock::new(|| match std::env::var("BRIG_WAY").as_deref() {
    Err(_) | Ok("cold") => Way::Cold,
    Ok("forked") => Way::Forked,
    Ok("pooled") => Way::Pooled,
    Ok(other) => panic!("BRIG_WAY: {other:?} is none of cold, forked, pooled"),
});

/// What the configuration of a brigd says about it.
pub fn pool() -> &'static str {
    match *WAY {
        // What is counted is what a test asked for.
        Way::Cold => "sessions = 0\n",
        _ => "sessions = 8\nshare = \"all\"\nready = [{ policy = \"data\", template = \"base\" }]\n",
    }
}

/// What a brigd has below it when nothing runs: its jailer, and where something is kept ready a zygote and what waits, each
/// with pid 1 and the file helper of its session.
pub fn processes_at_rest() -> usize {
    match *WAY {
        Way::Cold => 1,
        _ => 7,
    }
}

/// How a result says that plain code came to be.
pub fn start_word() -> &'static str {
    match *WAY {
        Way::Cold => "cold",
        Way::Forked => "forked",
        Way::Pooled => "pool",
    }
}

/// How often a session that waited must have been found, and how often one was: another request may have been faster.
#[derive(Debug, Default)]
pub(crate) struct Finds {
    /// Whether one has waited yet.
    began: AtomicBool,
    expected: AtomicU64,
    found: AtomicU64,
}

impl Finds {
    /// Checks how the program of a run came to be.
    pub(crate) fn check(&self, expected: StartKind, start: StartKind) {
        if expected == StartKind::Pool {
            self.expected.fetch_add(1, Ordering::Relaxed);
            self.found
                .fetch_add(u64::from(start == StartKind::Pool), Ordering::Relaxed);
        }
        let is_right = start == expected || (expected, start) == (StartKind::Pool, StartKind::Forked);
        assert!(is_right, "{start:?} in place of {expected:?}");
    }
}

impl Drop for Finds {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let (found, expected) = (*self.found.get_mut(), *self.expected.get_mut());
            assert!(
                2 * found >= expected,
                "{found} of {expected} found a session that waited"
            );
        }
    }
}

/// Prepares a call so that its program comes to be in that way, and says how it must have.
pub(crate) fn prepare(client: &Client, finds: &Finds, call: &mut [RunRequest]) -> Option<StartKind> {
    if *WAY == Way::Cold {
        return None;
    }
    let Some(run_request::Part::Spec(spec)) = call.first_mut().and_then(|message| message.part.as_mut()) else {
        return None;
    };
    let expected = expected(spec);
    // Tests count processes: what is kept ready is there before anything is asked for.
    if expected.is_some() || !finds.began.load(Ordering::Relaxed) {
        await_waiting(client);
        finds.began.store(true, Ordering::Relaxed);
    }
    let expected = expected?;
    if *WAY == Way::Forked && spec.execution_id.is_empty() {
        // What is sent twice must be the same.
        if !spec.request_id.is_empty() {
            return None;
        }
        static COUNT: AtomicU64 = AtomicU64::new(0);
        spec.execution_id = format!("named{}", COUNT.fetch_add(1, Ordering::Relaxed));
    }
    Some(expected)
}

/// Waits until a session waits, and so there is a zygote; or until brigd is gone, which the test finds out itself.
pub fn await_waiting(client: &Client) {
    eventually("a session waits", Duration::from_secs(60) * slow(), || {
        match client.ask_host().map(|host| host.load.unwrap().waiting) {
            Ok(0) => {
                // What is made ahead has only the time that those who ask leave.
                std::thread::sleep(Duration::from_millis(100));
                Err("none")
            }
            _ => Ok(()),
        }
    });
}

/// How the program of a request comes to be at best; none where it must be started.
fn expected(spec: &ExecutionSpec) -> Option<StartKind> {
    let limits = spec.limits.unwrap_or_default();
    let is_plain = matches!(spec.work, Some(Work::Code(_)))
        && spec.template == "base"
        && matches!(spec.policy.as_str(), "" | "data")
        && (spec.environment.is_empty() && spec.stdin.is_empty() && !spec.merge_stderr)
        && (limits.cpus.is_none() && limits.open_files.is_none() && limits.cpu_time.is_none())
        && !spec.inputs.iter().any(|input| input.name.ends_with(".py"));
    let is_usual = limits.memory_bytes.is_none()
        && (limits.pids.is_none() && limits.disk_bytes.is_none() && limits.inodes.is_none());
    let has_names = !spec.session_id.is_empty() || !spec.execution_id.is_empty();
    is_plain.then_some(if *WAY == Way::Pooled && is_usual && !has_names {
        StartKind::Pool
    } else {
        StartKind::Forked
    })
}
