//! Makes the host look weaker, and then becomes another program: `weaker-host [OPTION]... -- PROGRAM [ARGUMENT]...`
//!
//! For tests only. Mounts change in a mount namespace of its own; everything else is inherited by the program.
#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use caps::{CapSet, Capability, CapsHashSet};
use clap::Parser;
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};

#[derive(Debug, Parser)]
struct Options {
    /// Hide a file or folder below an empty one
    #[arg(long, value_name = "PATH")]
    cover: Vec<String>,
    /// Show one file or folder in place of another
    #[arg(long, value_name = "SOURCE=PATH")]
    put: Vec<String>,
    /// Make a mount read-only
    #[arg(long, value_name = "PATH")]
    read_only: Vec<String>,
    /// Take a mount away
    #[arg(long, value_name = "PATH")]
    unmount: Vec<String>,
    /// Take capabilities away
    #[arg(long, value_name = "CAP,..", value_delimiter = ',')]
    drop: Vec<Capability>,
    /// Take all other capabilities away
    #[arg(long, value_name = "CAP,..", value_delimiter = ',')]
    keep: Option<Vec<Capability>>,
    /// Enter a control group
    #[arg(long, value_name = "PATH")]
    enter: Option<PathBuf>,
    /// Run as this user and group
    #[arg(long, value_name = "UID")]
    user: Option<u32>,
    /// Answer a system call with an error
    #[arg(long, value_name = "NUMBER=ERRNO")]
    answer: Vec<String>,
    #[arg(last = true, required = true)]
    program: Vec<String>,
}

fn main() {
    let options = Options::parse();
    if let Some(group) = &options.enter {
        std::fs::write(group.join("cgroup.procs"), "0").unwrap();
    }
    change_mounts(&options);
    drop_capabilities(&options);
    if let Some(id) = options.user {
        nix::unistd::setgroups(&[]).unwrap();
        nix::unistd::setgid(id.into()).unwrap();
        nix::unistd::setuid(id.into()).unwrap();
    }
    options.answer.iter().for_each(|text| answer(text));
    let error = Command::new(&options.program[0]).args(&options.program[1..]).exec();
    panic!("{}: {error}", options.program[0]);
}

fn change_mounts(options: &Options) {
    let none: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    mount(none, "/", none, MsFlags::MS_PRIVATE | MsFlags::MS_REC, none).unwrap();
    let bind = |source: &str, target: &str| mount(Some(source), target, none, MsFlags::MS_BIND, none).unwrap();
    for pair in &options.put {
        let (source, target) = pair.split_once('=').unwrap();
        bind(source, target);
    }
    for path in &options.cover {
        if Path::new(path).is_dir() {
            mount(Some("cover"), path.as_str(), Some("tmpfs"), MsFlags::MS_RDONLY, none).unwrap();
        } else {
            bind("/dev/null", path);
        }
    }
    for path in &options.read_only {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(none, path.as_str(), none, flags, none).unwrap();
    }
    for path in &options.unmount {
        umount2(path.as_str(), MntFlags::MNT_DETACH).unwrap();
    }
}

/// From the bounding set, which the exec cuts the others down to.
fn drop_capabilities(options: &Options) {
    let kept: CapsHashSet = options.keep.iter().flatten().copied().collect();
    let all = caps::read(None, CapSet::Bounding).unwrap();
    let gone = all
        .iter()
        .filter(|cap| options.drop.contains(cap) || options.keep.is_some() && !kept.contains(cap));
    for cap in gone {
        caps::drop(None, CapSet::Bounding, *cap).unwrap();
    }
}

fn answer(text: &str) {
    let (number, errno) = text.split_once('=').unwrap();
    let errno = match errno {
        "ENOSYS" => Errno::ENOSYS,
        "EOPNOTSUPP" => Errno::EOPNOTSUPP,
        "EPERM" => Errno::EPERM,
        "ENOSPC" => Errno::ENOSPC,
        "EINVAL" => Errno::EINVAL,
        other => panic!("{other} is not an error that this program knows"),
    };
    let action = SeccompAction::Errno((errno as i32).cast_unsigned());
    let rules = [(number.parse().unwrap(), Vec::new())].into();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, TargetArch::x86_64).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    apply_filter(&program).unwrap();
}
