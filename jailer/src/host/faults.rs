//! Makes one step fail, or one protection miss, to show that it is noticed. Compiled in for tests only.
//!
//! `BRIG_FAULT=STEP` spoils the data of that step, so that the kernel itself refuses it; `BRIG_FAULT=off:STEP` leaves
//! the protection out, so that a test of it must fail.

use crate::plan::{Access, Guest, MountOp, Plan, Rlimit};
use crate::step::{Step, SysError};

/// Whether this fault is asked for.
fn asked(name: &str) -> bool {
    std::env::var("BRIG_FAULT").is_ok_and(|value| value == name)
}

/// Fails for the steps of the jailer itself.
pub(super) fn check(step: Step) -> Result<(), SysError> {
    if asked(step.name()) {
        Err(SysError::new("fault()", libc::EIO))
    } else {
        Ok(())
    }
}

/// Spoils the plan for the steps of brig-init and its children.
pub(super) fn spoil(plan: &mut Plan) {
    for step in Step::ALL.iter().filter(|step| asked(step.name())) {
        spoil_jail(plan, *step);
        spoil_program(&mut plan.guest, *step);
    }
    if asked("off:landlock") {
        plan.guest.paths = vec![crate::plan::PathRule {
            path: "/".to_owned(),
            access: Access::Write,
        }];
    }
    if asked("off:tmp-rule") {
        plan.guest.paths.retain(|rule| rule.path != "/tmp");
    }
    if asked("off:seccomp") {
        plan.guest.filter.clear();
        plan.init_filter.clear();
    }
    if asked("off:masks") {
        plan.mounts
            .retain(|op| !matches!(op, MountOp::Mask { .. } | MountOp::ReadOnly { .. }));
    }
}

fn spoil_jail(plan: &mut Plan, step: Step) {
    match step {
        Step::UserLimits => plan.user_limits = vec![("max_user_namespaces".to_owned(), u64::MAX)],
        Step::Mounts => {
            plan.mounts.push(MountOp::Bind {
                source: "/nonexistent".to_owned(),
                target: "/run/root".to_owned(),
            });
        }
        // Nothing is mounted where the root should be.
        Step::PivotRoot => plan.mounts.clear(),
        Step::Hostname => plan.hostname = "h".repeat(65),
        Step::Shed => plan.init_filter = vec![vec![0xff; 8]],
        // What the helper's start needs too can't be refused to the programs alone: these calls only they make.
        Step::FilesHelper => plan.init_filter.push(refuse(libc::SYS_execveat, None)),
        Step::Setsid => plan.init_filter.push(refuse(libc::SYS_setsid, None)),
        Step::Streams => plan.init_filter.push(refuse(libc::SYS_setfsuid, None)),
        Step::DropPrivileges => plan.init_filter.push(refuse(libc::SYS_capset, None)),
        Step::Directory => plan.init_filter.push(refuse(libc::SYS_fchdir, None)),
        Step::NoNewPrivs => plan
            .init_filter
            .push(refuse(libc::SYS_prctl, Some((0, PR_SET_NO_NEW_PRIVS)))),
        _ => {}
    }
}

fn spoil_program(guest: &mut Guest, step: Step) {
    match step {
        Step::Rlimits => guest.rlimits = vec![(Rlimit::Nofile, u64::MAX)],
        Step::Landlock => {
            guest.paths.push(crate::plan::PathRule {
                path: "/nonexistent".to_owned(),
                access: Access::Read,
            });
        }
        Step::Seccomp => guest.filter = vec![vec![0xff; 8]],
        Step::Exec => guest.filter.insert(0, refuse(libc::SYS_execveat, None)),
        _ => {}
    }
}

/// Refuses one call to brig-init from its start, for the steps that have no data.
pub(super) fn filter_early() -> Result<(), SysError> {
    if asked(Step::PrivateMounts.name()) {
        crate::sys::seccomp(&refuse(libc::SYS_mount, Some((3, MS_REC_PRIVATE))))?;
    }
    if asked(Step::Loopback.name()) {
        crate::sys::seccomp(&refuse(libc::SYS_ioctl, Some((1, SIOCSIFFLAGS))))?;
    }
    Ok(())
}

/// The version of Landlock that the host is to seem to have.
pub(super) fn landlock_abi() -> Option<u32> {
    let value = std::env::var("BRIG_FAULT").ok()?;
    value.strip_prefix("landlock-abi-")?.parse().ok()
}

/// Whether a program is to be started with a descriptor that is no group.
pub(super) fn wrong_leaf() -> bool {
    asked(Step::JoinLeaf.name())
}

const PR_SET_NO_NEW_PRIVS: u32 = 38;
const MS_REC_PRIVATE: u32 = 0x4_4000;
const SIOCSIFFLAGS: u32 = 0x8914;

/// A filter that answers one call, or only those with this argument, with EPERM, in raw classic BPF.
fn refuse(call: i64, argument: Option<(u8, u32)>) -> Vec<u8> {
    let instruction = |code: u16, jt: u8, jf: u8, k: u32| {
        let mut bytes = code.to_ne_bytes().to_vec();
        bytes.extend([jt, jf]);
        bytes.extend(k.to_ne_bytes());
        bytes
    };
    let (load, skip_unless, answer) = (0x20, 0x15, 0x06);
    let (index, value) = argument.unwrap_or((0, 0));
    let compare = if argument.is_some() {
        [
            instruction(load, 0, 0, 16 + 8 * u32::from(index)),
            instruction(skip_unless, 0, 1, value),
        ]
        .concat()
    } else {
        Vec::new()
    };
    let skip = if argument.is_some() { 3 } else { 1 };
    [
        instruction(load, 0, 0, 0),
        instruction(skip_unless, 0, skip, u32::try_from(call).unwrap_or(u32::MAX)),
        compare,
        instruction(answer, 0, 0, 0x0005_0001), // SECCOMP_RET_ERRNO, EPERM
        instruction(answer, 0, 0, 0x7fff_0000), // SECCOMP_RET_ALLOW
    ]
    .concat()
}
