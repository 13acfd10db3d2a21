//! Gives up what the helper was started with, before it reads its first request.
//!
//! It comes as uid 999 with two capabilities and leaves as uid 999 with none, whose file access counts as uid 1000's
//! and reaches the working directory and `/tmp` only. Its syscall filter was put on before it was started.
#![forbid(unsafe_code)]

use std::os::fd::BorrowedFd;

use caps::CapSet;
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, Scope,
};
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::DumpableBehavior;

use super::root::Root;
use super::wire::{Failure, Op};

/// The user and group that files of the session belong to.
const GUEST: u32 = 1000;
/// No user has this id; asked for it, the kernel only tells the present one.
const NOBODY: u32 = u32::MAX;

/// The directories that the helper serves.
#[derive(Debug)]
pub struct Roots {
    pub home: Root,
    pub tmp: Root,
}

/// Takes the guest's identity for files, opens the directories with it, and drops everything else.
///
/// Errors: the step that failed, by name.
pub fn seal() -> Result<Roots, Failure> {
    take_file_identity().map_err(|errno| failed("file identity", errno))?;
    drop_capabilities().map_err(|errno| failed("capabilities", errno))?;
    // After the identity: changing that resets it.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|e| failed("dumpable", e))?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    // The working directory is the guest's alone: only its identity gets in. The parents of both are the image's and
    // read-only, so that a path is as good as a descriptor.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |path| rustix::fs::openat(CWD, path, flags, Mode::empty()).and_then(Root::new);
    let home = open(crate::plan::HOME).map_err(|errno| failed("working directory", errno))?;
    let tmp = open("/tmp").map_err(|errno| failed("/tmp", errno))?;
    restrict_files(&[home.as_fd(), tmp.as_fd()]).map_err(|_| failed("landlock", Errno::OPNOTSUPP))?;
    Ok(Roots { home, tmp })
}

fn failed(step: &str, errno: Errno) -> Failure {
    Failure {
        op: Op::Seal,
        errno: errno.raw_os_error(),
        path: step.as_bytes().to_vec(),
    }
}

/// Source: setfsuid(2): it does not tell whether it worked, so that one has to ask again.
fn take_file_identity() -> Result<(), Errno> {
    setfsgid(Gid::from_raw(GUEST));
    setfsuid(Uid::from_raw(GUEST));
    let (uid, gid) = (setfsuid(Uid::from_raw(NOBODY)), setfsgid(Gid::from_raw(NOBODY)));
    if (uid.as_raw(), gid.as_raw()) == (GUEST, GUEST) {
        Ok(())
    } else {
        Err(Errno::PERM)
    }
}

/// The bounding set is cut by who started the helper; `no_new_privs` makes it moot.
fn drop_capabilities() -> Result<(), Errno> {
    let sets = [
        CapSet::Ambient,
        CapSet::Inheritable,
        CapSet::Effective,
        CapSet::Permitted,
    ];
    for set in sets {
        caps::clear(None, set).map_err(|_| Errno::PERM)?;
    }
    for set in sets {
        if !caps::read(None, set).is_ok_and(|left| left.is_empty()) {
            return Err(Errno::PERM);
        }
    }
    Ok(())
}

/// Reading, writing, making, moving and removing files below the directories; nothing else anywhere.
///
/// Kernel: Landlock ABI 2 (5.19); what later ones add is taken where it is there. Truncation, which ABI 3 knows, is for
/// uploads that are gone on with.
fn restrict_files(directories: &[BorrowedFd<'_>]) -> Result<(), RulesetError> {
    let allowed = AccessFs::ReadFile
        | AccessFs::WriteFile
        | AccessFs::ReadDir
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::MakeDir
        | AccessFs::MakeReg
        | AccessFs::MakeSym
        | AccessFs::MakeFifo
        | AccessFs::MakeSock
        | AccessFs::Refer
        | AccessFs::Truncate;
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V2))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V7))?
        .handle_access(AccessNet::from_all(ABI::V7))?
        .scope(Scope::from_all(ABI::V7))?
        .create()?;
    // Best effort stands for the one right that an old kernel does not know; all others were demanded above.
    let ruleset = directories.iter().try_fold(ruleset, |ruleset, directory| {
        ruleset.add_rule(PathBeneath::new(directory, allowed))
    })?;
    ruleset.restrict_self()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn nothing_but_files_of_the_directory_is_in_reach_after_the_landlock_step() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let directory = std::fs::File::open(inside.path()).unwrap();
        // The rules hold for the thread that takes them.
        std::thread::spawn(move || {
            restrict_files(&[directory.as_fd()]).unwrap();
            let denied =
                |result: std::io::Result<()>| result.unwrap_err().kind() == std::io::ErrorKind::PermissionDenied;
            assert!(denied(std::fs::read("/etc/passwd").map(drop)));
            assert!(denied(std::fs::read_dir("/").map(drop)));
            assert!(denied(std::fs::write(outside.path().join("x"), "")));
            std::fs::write(inside.path().join("x"), "x").unwrap();
            assert_eq!(std::fs::read(inside.path().join("x")).unwrap(), b"x");
            std::fs::rename(inside.path().join("x"), inside.path().join("y")).unwrap();
            assert!(denied(std::os::unix::fs::symlink("y", outside.path().join("z"))));
            // Names move from directory to directory, whatever they name, but not out.
            std::os::unix::fs::symlink("y", inside.path().join("link")).unwrap();
            std::fs::create_dir(inside.path().join("below")).unwrap();
            std::fs::rename(inside.path().join("link"), inside.path().join("below/link")).unwrap();
            assert!(std::fs::rename(inside.path().join("y"), outside.path().join("y")).is_err());
            std::fs::OpenOptions::new()
                .write(true)
                .truncate(true)
                .open(inside.path().join("y"))
                .unwrap();
            std::fs::remove_file(inside.path().join("y")).unwrap();
        })
        .join()
        .unwrap();
    }
}
