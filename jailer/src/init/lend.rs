//! What pid 1 lends to whoever starts a program in its place: a zygote, which forks one that has its packages already.

use std::os::fd::{BorrowedFd, OwnedFd};

use brig_fork::order::{self, REPORT};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};

use super::jail::{Jail, ruleset};
use super::program::{Near, Started, failed, streams};
use crate::plan::Program;
use crate::step::{At, Step, StepError, SysError};

/// Links of /proc/self/ns in the order of [`order::NAMESPACES`].
const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];

/// What pid 1 keeps of a program that is being started elsewhere.
#[derive(Debug)]
pub(super) struct Lent {
    /// Never waited for: who has the other end may hold it open.
    report: OwnedFd,
    far_ends: Vec<OwnedFd>,
}

impl Lent {
    pub(super) fn started(self, pid: i32) -> Started {
        Started {
            pid,
            report: self.report,
            is_forked: true,
            far_ends: self.far_ends,
        }
    }
}

/// Makes the streams and rules of a program; gives the descriptors of [`crate::plan::FromInit::Lent`].
pub(super) fn lend(jail: &Jail, program: &Program) -> Result<(Lent, Vec<OwnedFd>), StepError> {
    let mut fds = NAMESPACES
        .map(open_namespace)
        .into_iter()
        .collect::<Result<Vec<_>, _>>()
        .at(Step::Fork)?;
    let (near, far_ends) = streams(program).at(Step::Streams)?;
    let Near {
        stdin,
        stdout,
        stderr,
        kernel: Some((requests, frames)),
        ..
    } = near
    else {
        let error = SysError::new("lend(a program that is no kernel)", libc::EINVAL);
        return Err(error).at(Step::Streams);
    };
    fds.extend([stdin, stdout, stderr, requests, frames]);
    let rules: Option<OwnedFd> = ruleset(&jail.guest.paths).at(Step::Landlock)?.into();
    let rules = rules.ok_or_else(|| SysError::new("landlock: nothing is enforced", libc::EOPNOTSUPP));
    fds.push(rules.at(Step::Landlock)?);
    let (report, report_in) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
        .map_err(|e| failed("pipe2()", e))
        .at(Step::Streams)?;
    fds.push(report_in);
    Ok((Lent { report, far_ends }, fds))
}

pub(super) fn open_namespace(name: &str) -> Result<OwnedFd, SysError> {
    let path = format!("/proc/self/ns/{name}");
    rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| failed(format!("open({path:?})"), e))
}

/// Reads the report of a fork; nothing means that the child is sealed. One that says nothing has ended before.
pub(super) fn read_report(report: BorrowedFd<'_>) -> Option<StepError> {
    let mut bytes = [0; REPORT];
    let read = rustix::io::read(report, &mut bytes);
    let [a, b, c, d, errno @ ..] = bytes;
    let number = u32::from_le_bytes([a, b, c, d]);
    match (read, number) {
        (Ok(REPORT), 0) => None,
        (Ok(REPORT), number) => Some(step_error(number, i32::from_le_bytes(errno))),
        _ => Some(StepError {
            step: Step::Fork,
            source: SysError::new("fork(): the child ended before it was sealed", libc::ESRCH),
        }),
    }
}

/// What comes from a child that a zygote has made is looked at, not believed.
fn step_error(number: u32, errno: i32) -> StepError {
    use order::Step as Forked;
    let known = Forked::ALL.into_iter().find(|step| *step as u32 == number);
    let step = match known {
        Some(Forked::JoinLeaf) => Step::JoinLeaf,
        Some(Forked::CgroupNamespace) => Step::CgroupNamespace,
        Some(Forked::Setsid) => Step::Setsid,
        Some(Forked::Streams) => Step::Streams,
        Some(Forked::DropPrivileges) => Step::DropPrivileges,
        Some(Forked::Directory) => Step::Directory,
        Some(Forked::NoNewPrivs) => Step::NoNewPrivs,
        Some(Forked::Landlock) => Step::Landlock,
        Some(Forked::Seccomp) => Step::Seccomp,
        Some(Forked::Dumpable) | None => Step::Fork,
    };
    let errno = Some(errno)
        .filter(|errno| (1..4096).contains(errno))
        .unwrap_or(libc::EPROTO);
    StepError {
        step,
        source: SysError::new("in the child of a zygote", errno),
    }
}
