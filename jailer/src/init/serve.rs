//! The life of pid 1: starts what the jailer asks for, reaps what ends, waits for nobody in particular.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, WaitId, WaitIdOptions, WaitOptions, WaitStatus, kill_process, kill_process_group, wait, waitid,
};

use super::jail::Jail;
use super::lend::{self, Lent};
use super::program::{self, Started};
use crate::faults::{Point, point};
use crate::ids::Id;
use crate::plan::{FromInit, ToInit};
use crate::step::{At, Step, StepError, SysError};
use crate::wire;

/// The children that the jailer knows by name.
#[derive(Default)]
struct Children {
    /// Not yet at their exec.
    starting: HashMap<i32, (Id, Started)>,
    running: HashMap<i32, Id>,
    /// Those that somebody else starts, until they are children.
    lent: HashMap<Id, Lent>,
    /// How others ended meanwhile: a child may be gone before anybody says what it was.
    gone: HashMap<i32, WaitStatus>,
}

/// The most ends that are remembered while something is lent.
const GONE_MAX: usize = 64;

/// Serves until the jailer is gone.
pub(super) fn serve(control: &OwnedFd, jail: Jail) -> Result<(), StepError> {
    let child_ended = child_signals().at(Step::Shed)?;
    let mut children = Children::default();
    loop {
        let (control_ready, child_ready, reports) = wait_for_something(control, &child_ended, &children);
        for pid in reports {
            started(control, &mut children, pid)?;
        }
        if child_ready {
            while let Ok(Some(_)) = child_ended.read_signal() {}
            reap(control, &mut children)?;
        }
        if control_ready {
            match wire::receive::<ToInit>(control.as_fd()) {
                Ok(Some((message, fds))) => obey(control, &jail, &mut children, message, &fds)?,
                _ => return Ok(()),
            }
        }
    }
}

/// SIGCHLD as a descriptor.
fn child_signals() -> Result<SignalFd, SysError> {
    let refused = |error: nix::Error| SysError::new("signalfd(SIGCHLD)", error as i32);
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    mask.thread_block().map_err(refused)?;
    SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map_err(refused)
}

fn wait_for_something(control: &OwnedFd, child_ended: &SignalFd, children: &Children) -> (bool, bool, Vec<i32>) {
    let starting: Vec<(i32, BorrowedFd<'_>)> = children
        .starting
        .iter()
        .map(|(pid, (_, started))| (*pid, started.report.as_fd()))
        .collect();
    let mut fds = vec![
        PollFd::from_borrowed_fd(control.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(child_ended.as_fd(), PollFlags::IN),
    ];
    fds.extend(
        starting
            .iter()
            .map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN)),
    );
    if poll(&mut fds, None).is_err() {
        return (false, false, Vec::new());
    }
    let ready = |index: usize| !fds[index].revents().is_empty();
    let reports = starting
        .iter()
        .enumerate()
        .filter(|(i, _)| ready(i + 2))
        .map(|(_, (pid, _))| *pid)
        .collect();
    (ready(0), ready(1), reports)
}

fn obey(
    control: &OwnedFd,
    jail: &Jail,
    children: &mut Children,
    message: ToInit,
    fds: &[OwnedFd],
) -> Result<(), StepError> {
    match message {
        ToInit::Spawn(program) => {
            let execution = program.execution.clone();
            point(Point::InitBeforeClone);
            match program::start(jail, &program, fds) {
                Ok(started) => drop(children.starting.insert(started.pid, (execution, started))),
                Err(error) => send(control, &FromInit::SpawnFailed { execution, error }, &[])?,
            }
        }
        ToInit::Lend(program) => {
            let execution = program.execution.clone();
            match lend::lend(jail, &program) {
                Ok((lent, near)) => {
                    let near: Vec<BorrowedFd<'_>> = near.iter().map(AsFd::as_fd).collect();
                    children.lent.insert(execution.clone(), lent);
                    send(control, &FromInit::Lent { execution }, &near)?;
                }
                Err(error) => send(control, &FromInit::SpawnFailed { execution, error }, &[])?,
            }
        }
        ToInit::Adopt { execution, pid } => adopt(control, children, execution, pid)?,
        ToInit::TakeBack { execution, error } => {
            if children.lent.remove(&execution).is_some() {
                send(control, &FromInit::SpawnFailed { execution, error }, &[])?;
            }
            children.forget_gone();
        }
        ToInit::Signal {
            execution,
            signal,
            group,
        } => {
            let pid = children
                .running
                .iter()
                .find(|(_, id)| **id == execution)
                .map(|(pid, _)| *pid);
            // A child that was not reaped yet keeps its number, so that this can't hit another process.
            if let (Some(pid), Some(signal)) = (pid.and_then(Pid::from_raw), named_signal(signal)) {
                // It leads a process group of its own (setsid).
                let _already_gone = if group {
                    kill_process_group(pid, signal)
                } else {
                    kill_process(pid, signal)
                };
            }
        }
        ToInit::Files => {
            let socket = program::start_files_helper(&jail.files_program, fds)?;
            send(control, &FromInit::Files, &[socket.as_fd()])?;
        }
        ToInit::Mapped | ToInit::Plan(_) => {}
    }
    Ok(())
}

/// Takes a child that somebody else has started. Who named it may lie: it must be a child, and say itself that it is
/// sealed.
fn adopt(control: &OwnedFd, children: &mut Children, execution: Id, pid: i32) -> Result<(), StepError> {
    let Some(lent) = children.lent.remove(&execution) else {
        return Ok(());
    };
    let ended = children.gone.remove(&pid);
    children.forget_gone();
    let is_child = ended.is_some()
        || Pid::from_raw(pid).is_some_and(|pid| {
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            waitid(WaitId::Pid(pid), look).is_ok()
        });
    let is_free = !children.starting.contains_key(&pid) && !children.running.contains_key(&pid);
    if !is_child || !is_free {
        let error = StepError {
            step: Step::Fork,
            source: SysError::new(format!("waitid({pid})"), libc::ECHILD),
        };
        return send(control, &FromInit::SpawnFailed { execution, error }, &[]);
    }
    children.starting.insert(pid, (execution, lent.started(pid)));
    match ended {
        None => Ok(()),
        Some(status) => reaped(control, children, pid, status),
    }
}

impl Children {
    fn forget_gone(&mut self) {
        if self.lent.is_empty() {
            self.gone.clear();
        }
    }
}

fn named_signal(number: i32) -> Option<rustix::process::Signal> {
    rustix::process::Signal::from_named_raw(number)
}

/// A child reached its exec, or says why it did not.
fn started(control: &OwnedFd, children: &mut Children, pid: i32) -> Result<(), StepError> {
    let Some((execution, started)) = children.starting.remove(&pid) else {
        return Ok(());
    };
    match started.failure() {
        Some(error) => send(control, &FromInit::SpawnFailed { execution, error }, &[]),
        None => {
            point(Point::InitBeforeSpawned);
            let far_ends: Vec<BorrowedFd<'_>> = started.far_ends.iter().map(AsFd::as_fd).collect();
            let number = pid.cast_unsigned();
            send(
                control,
                &FromInit::Spawned {
                    execution: execution.clone(),
                    pid: number,
                },
                &far_ends,
            )?;
            children.running.insert(pid, execution);
            Ok(())
        }
    }
}

/// Takes leave of every child that ended, whosever it was.
fn reap(control: &OwnedFd, children: &mut Children) -> Result<(), StepError> {
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        let pid = pid.as_raw_nonzero().get();
        let is_known = children.starting.contains_key(&pid) || children.running.contains_key(&pid);
        if !is_known && !children.lent.is_empty() && children.gone.len() < GONE_MAX {
            children.gone.insert(pid, status);
        }
        reaped(control, children, pid, status)?;
    }
    Ok(())
}

/// Tells the end of a child, if it is one that the jailer knows.
fn reaped(control: &OwnedFd, children: &mut Children, pid: i32, status: WaitStatus) -> Result<(), StepError> {
    if children.starting.contains_key(&pid) {
        started(control, children, pid)?;
    }
    if let Some(execution) = children.running.remove(&pid) {
        point(Point::InitReaped);
        send(
            control,
            &FromInit::Exited {
                execution,
                status: status_number(status),
            },
            &[],
        )?;
    }
    Ok(())
}

fn status_number(status: WaitStatus) -> i32 {
    status
        .exit_status()
        .or_else(|| status.terminating_signal().map(|signal| -signal))
        .unwrap_or(-libc::SIGKILL)
}

fn send(control: &OwnedFd, message: &FromInit, fds: &[BorrowedFd<'_>]) -> Result<(), StepError> {
    wire::send(control.as_fd(), message, fds)
        .map_err(|error| super::from_io("sendmsg(control)", &error))
        .at(Step::Exec)
}
