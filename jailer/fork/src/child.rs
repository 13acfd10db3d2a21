//! The child of a fork: it seals itself, step by step as every program of a session is sealed (docs/jail.md).

#![allow(unsafe_code, reason = "the filter is read where the order lies")]

use crate::order::{DIRECTORY_MAX, NAMESPACES, PROGRAMS_MAX, STREAMS, Step};
use crate::sys;

/// The user of guest programs, and its group.
const GUEST_UID: u32 = 1000;
/// Where the rules and the report are while the streams are put in place.
const RULES: i32 = 5;
const REPORT: i32 = 6;

/// What a child needs, by descriptor.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) cgroup_namespace: i32,
    pub(crate) tasks: [i32; 3],
    pub(crate) tasks_count: usize,
    pub(crate) streams: [i32; STREAMS],
    pub(crate) rules: i32,
    pub(crate) report: i32,
    pub(crate) directory: [u8; DIRECTORY_MAX + 1],
    /// Where each program of the filter lies in the order, and how long it is.
    pub(crate) programs: [(*const u8, usize); PROGRAMS_MAX],
}

struct Failed(Step, i32);

trait At<T> {
    fn at(self, step: Step) -> Result<T, Failed>;
}

impl<T> At<T> for sys::Result<T> {
    fn at(self, step: Step) -> Result<T, Failed> {
        self.map_err(|errno| Failed(step, errno))
    }
}

impl Child {
    /// Becomes a sealed process of the session, and says so, or which step failed. The failed one ends.
    pub(crate) fn seal(&self) {
        if let Err(failed) = self.enter() {
            tell(self.report, &failed);
        }
        if let Err(failed) = self.close_in() {
            tell(REPORT, &failed);
        }
        if sys::write(REPORT, &[0; crate::order::REPORT]).is_err() {
            sys::exit(126);
        }
        sys::close(REPORT);
    }

    fn enter(&self) -> Result<(), Failed> {
        for tasks in &self.tasks[..self.tasks_count] {
            sys::write(*tasks, b"0").at(Step::JoinLeaf)?;
        }
        sys::setns(self.cgroup_namespace, NAMESPACES[6]).at(Step::CgroupNamespace)?;
        sys::setsid().at(Step::Setsid)?;
        self.place_streams().at(Step::Streams)
    }

    fn close_in(&self) -> Result<(), Failed> {
        sys::drop_capabilities().at(Step::DropPrivileges)?;
        sys::become_user(GUEST_UID).at(Step::DropPrivileges)?;
        sys::give_up_capabilities().at(Step::DropPrivileges)?;
        sys::change_directory(&self.directory).at(Step::Directory)?;
        sys::set_no_new_privs().at(Step::NoNewPrivs)?;
        sys::restrict_files(RULES).at(Step::Landlock)?;
        sys::close(RULES);
        for (program, length) in self.programs {
            if length > 0 {
                // SAFETY: it is part of the order, which lies in memory of this process that nobody changes.
                let program = unsafe { core::slice::from_raw_parts(program, length) };
                sys::filter(program).at(Step::Seccomp)?;
            }
        }
        // A change of uid took it away. Last, since another process of the same user could trace this one from here on.
        sys::set_dumpable().at(Step::Dumpable)
    }

    /// All of them have numbers above those that they are put at.
    fn place_streams(&self) -> sys::Result<()> {
        for (number, stream) in (0..).zip(self.streams) {
            sys::place(stream, number)?;
        }
        sys::place(self.rules, RULES)?;
        sys::place(self.report, REPORT)?;
        sys::close_from(REPORT + 1)
    }
}

fn tell(report: i32, Failed(step, errno): &Failed) -> ! {
    let mut bytes = [0; crate::order::REPORT];
    bytes[..4].copy_from_slice(&(*step as u32).to_le_bytes());
    bytes[4..].copy_from_slice(&errno.to_le_bytes());
    let _pid_1_is_gone = sys::write(report, &bytes);
    sys::exit(126)
}
