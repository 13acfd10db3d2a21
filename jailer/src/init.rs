//! brig-init: pid 1 of a jail.
//!
//! It is started in its namespaces as root of the session's user namespace, mounts what the plan says, gives up what
//! it does not need any more, starts the file helper, and from then on starts programs for the jailer and reaps
//! whatever ends. It reads from nothing but its control socket (descriptor 3) and trusted children before their exec;
//! no byte of a guest is ever parsed here.
//!
//! When the jailer is gone (end of the control socket) it exits, and the kernel kills all that is left in the jail.

mod jail;
mod lend;
mod mounts;
mod program;
mod serve;

use std::os::fd::OwnedFd;

use crate::faults::{Point, point};
use crate::plan::{FromInit, ToInit};
use crate::step::{At, Step, StepError, SysError};
use crate::{sys, wire};

/// The control socket's number at the start of the program.
pub const CONTROL_FD: i32 = 3;
/// The number of the memory file that holds the file helper's program.
pub const FILES_FD: i32 = 4;

/// Runs pid 1 until the jailer is gone. The result is the exit status.
pub fn run() -> i32 {
    let (Ok(control), Ok(files)) = (sys::inherited(CONTROL_FD), sys::inherited(FILES_FD)) else {
        return 64; // Not started by the jailer: there is nobody to tell.
    };
    // A program that is run from a memory file has no name of its own.
    let _nameless = rustix::thread::set_name(c"brig-init");
    let outcome = start(&control, files).and_then(|jail| serve::serve(&control, jail));
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            // If the jailer is gone too, nobody is left who could be told.
            drop(wire::send(
                std::os::fd::AsFd::as_fd(&control),
                &FromInit::Failed(error),
                &[],
            ));
            1
        }
    }
}

/// Brings the jail up. Each line is one step of docs/jail.md, same order, same names.
fn start(control: &OwnedFd, files_program: OwnedFd) -> Result<jail::Jail, StepError> {
    die_with_the_jailer().at(Step::CgroupNamespace)?;
    point(Point::InitStarted);
    let (plan, leaf) = receive_plan(control).at(Step::CgroupNamespace)?;

    let jail = jail::Privileged::new();
    jail.lower_user_limits(&plan.user_limits).at(Step::UserLimits)?;
    point(Point::InitBeforeMounts);
    jail.make_mounts_private().at(Step::PrivateMounts)?;
    jail.mount_all(&plan.mounts).at(Step::Mounts)?;
    point(Point::InitBeforePivot);
    let jail = jail.pivot_into_root().at(Step::PivotRoot)?;
    point(Point::InitAfterPivot);
    jail.set_hostname(&plan.hostname).at(Step::Hostname)?;
    jail.bring_loopback_up().at(Step::Loopback)?;
    let jail = jail.shed(&plan.init_filter).at(Step::Shed)?;
    let (jail, files) = jail.start_files_helper(files_program, leaf, plan.guest)?;

    point(Point::InitBeforeReady);
    let ready = FromInit::Ready {
        landlock_abi: sys::landlock_abi().unwrap_or(0),
    };
    wire::send(
        std::os::fd::AsFd::as_fd(control),
        &ready,
        &[std::os::fd::AsFd::as_fd(&files)],
    )
    .map_err(|error| from_io("sendmsg(ready)", &error))
    .at(Step::FilesHelper)?;
    Ok(jail)
}

/// The parent is in another pid namespace, so that its death can't be seen by getppid; the control socket tells it.
fn die_with_the_jailer() -> Result<(), SysError> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|error| SysError::new("prctl(PR_SET_PDEATHSIG, SIGKILL)", error.raw_os_error()))
}

fn receive_plan(control: &OwnedFd) -> Result<(crate::plan::Plan, Vec<OwnedFd>), SysError> {
    match wire::receive(std::os::fd::AsFd::as_fd(control)) {
        Ok(Some((ToInit::Plan(plan), leaf))) => Ok((*plan, leaf)),
        Ok(_) => Err(SysError::new("recvmsg(plan): another message", libc::EPROTO)),
        Err(error) => Err(from_io("recvmsg(plan)", &error)),
    }
}

/// Keeps the errno of an I/O error.
fn from_io(call: &str, error: &std::io::Error) -> SysError {
    SysError::new(call, error.raw_os_error().unwrap_or(libc::EIO))
}
