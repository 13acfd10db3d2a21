//! Hosts that lack something, one lack at a time: the doctor names it and its mend, no session is made under a lesser
//! protection, and nothing of the attempt is left. Needs root and the `base` image.
//!
//! `weaker-host` hides parts of this host from a real jailer: mounts, capabilities, and system calls that it answers
//! with the error of a kernel that lacks them.
#![cfg(feature = "faults")]
#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod support;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use brig_jailer::api::{Check, Event, HostReport, Refusal, Request, VERSION, Verdict};
use brig_jailer::cgroup::NEEDED;
use brig_jailer::host::{CAPABILITIES, NEEDS, SYSTEM_CALLS};
use support::{Rig, jailer, own_policy, places, quantities};

/// The jailer on a host without something.
fn weaker(options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weaker-host"));
    command.args(options).arg("--").arg(jailer().get_program());
    command
}

/// What the doctor says there.
fn doctor(options: &[&str]) -> HostReport {
    let output = weaker(options).args(places()).arg("--doctor").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn line(report: &HostReport, what: &str) -> Check {
    report.checks.iter().find(|check| check.what == what).unwrap().clone()
}

/// What is lacking there, in one line of the report.
fn lacks(options: &[&str], what: &str) -> Check {
    let check = line(&doctor(options), what);
    assert_eq!(check.verdict, Verdict::Missing, "{check:?}");
    assert!(!check.mend.is_empty(), "{check:?}");
    check
}

/// How a session is refused there: by the jailer, or because it does not even start.
fn refused(options: &[&str], session: &str) -> String {
    let mut rig = Rig::begin(weaker(options), |command| command.stderr(Stdio::piped()));
    rig.send(&Request::Hello { version: VERSION });
    let said = match rig.next_or_end() {
        Err(said) => {
            assert!(said.starts_with("exit status: 78: "), "{said}");
            said
        }
        Ok(event) => {
            assert!(matches!(event, Event::Hello { .. }), "{event:?}");
            assert_eq!(rig.next_or_end(), Ok(Event::AllHeld));
            let refusal = rig.try_make(Rig::request("data", session, quantities())).unwrap_err();
            rig.stop();
            assert!(matches!(refusal, Refusal::HostCannot(_)), "{refusal:?}");
            refusal.to_string()
        }
    };
    assert_eq!(left(session), "");
    said
}

fn left(session: &str) -> String {
    let listed = Command::new("find")
        .args(["/sys/fs/cgroup", "-type", "d", "-path", &format!("*/brig-*/{session}*")])
        .output()
        .unwrap();
    String::from_utf8(listed.stdout).unwrap()
}

/// The doctor's line and the refusal say the same.
fn is_refused(options: &[&str], session: &str, what: &str, found: &str, mend: &str) {
    let check = lacks(options, what);
    assert!(check.found.contains(found), "{check:?}");
    assert!(check.mend.contains(mend), "{check:?}");
    let said = refused(options, session);
    assert!(said.contains(&format!("{what}: ")), "{said}");
    assert!(said.contains(found) && said.contains(mend), "{said}");
}

#[test]
fn capabilities_beside_the_listed_ones_are_not_needed() {
    let names: Vec<String> = CAPABILITIES.iter().map(ToString::to_string).collect();
    let mut rig = Rig::begin(weaker(&["--keep", &names.join(",")]), |command| command);
    assert!(rig.greet().is_empty());
    let enforced = rig.make("fewcaps").enforced;
    assert_eq!(enforced.namespaces.len(), 7, "{enforced:?}");
    let outcome = rig.sh("fewcaps", "e1", "echo x >f && cat f");
    assert_eq!(outcome.stdout, "x\n", "{outcome:?}");
    rig.close("fewcaps");
    rig.stop();
    assert_eq!(left("fewcaps"), "");
}

#[test]
fn every_listed_capability_is_asked_for() {
    for capability in CAPABILITIES {
        let check = lacks(&["--drop", &capability.to_string()], "privilege");
        assert_eq!(check.found, format!("root without {capability}"));
    }
    is_refused(
        &["--drop", "CAP_SYS_PTRACE"],
        "nocap",
        "privilege",
        "CAP_SYS_PTRACE",
        "CapabilityBoundingSet=",
    );
}

#[test]
fn another_user_than_root_is_refused() {
    // It can't read the programs of a test run below a home that is root's alone, but it can run.
    is_refused(&["--user", "65534"], "noroot", "privilege", "uid 65534", "as root");
}

#[test]
fn a_kernel_without_landlock_is_refused() {
    let no_landlock = ["--answer", &format!("{}=ENOSYS", libc::SYS_landlock_create_ruleset)];
    is_refused(
        &no_landlock,
        "nolandlock",
        "landlock",
        "not there",
        "CONFIG_SECURITY_LANDLOCK",
    );
}

#[test]
fn landlock_that_was_not_enabled_at_boot_is_refused() {
    let not_enabled = ["--answer", &format!("{}=EOPNOTSUPP", libc::SYS_landlock_create_ruleset)];
    is_refused(&not_enabled, "landlockoff", "landlock", "not enabled", "lsm=");
}

#[test]
fn landlock_below_version_2_is_refused() {
    let mut rig = Rig::with_fault("landlock-abi-1");
    let check = line(&rig.host(), "landlock");
    assert_eq!((check.verdict, check.found.as_str()), (Verdict::Missing, "version 1"));
    let refusal = rig
        .try_make(Rig::request("data", "oldlandlock", quantities()))
        .unwrap_err();
    assert!(
        refusal
            .to_string()
            .contains("landlock: version 1 (needed: version 2 or later; boot Linux 5.19 or later)")
    );
    rig.stop();
}

#[test]
fn a_kernel_without_filters_is_refused() {
    let seccomp = |errno: &str| format!("{}={errno}", libc::SYS_seccomp);
    is_refused(
        &["--answer", &seccomp("ENOSYS")],
        "nofilter",
        "seccomp",
        "not implemented",
        "CONFIG_SECCOMP_FILTER",
    );
    is_refused(
        &["--answer", &seccomp("EINVAL")],
        "badfilter",
        "seccomp",
        "Invalid argument",
        "CONFIG_SECCOMP_FILTER",
    );
}

#[test]
fn user_namespaces_that_are_denied_are_refused() {
    let clone3 = |errno: &str| format!("{}={errno}", libc::SYS_clone3);
    let what = "user namespaces";
    is_refused(
        &["--answer", &clone3("EPERM")],
        "denied",
        what,
        "Operation not permitted",
        "RestrictNamespaces=",
    );
    is_refused(
        &["--answer", &clone3("ENOSPC")],
        "noneleft",
        what,
        "No space left",
        "user.max_user_namespaces",
    );
    is_refused(
        &["--answer", &clone3("ENOSYS")],
        "noclone",
        what,
        "not implemented",
        "allow clone3",
    );
}

#[test]
fn a_sysctl_that_forbids_user_namespaces_is_named() {
    let zero = file("0\n");
    let none = format!("{}=/proc/sys/user/max_user_namespaces", zero.path().display());
    let check = lacks(&["--put", &none], "user namespaces");
    assert_eq!(
        (check.found.as_str(), check.mend.as_str()),
        ("at most 0", "sysctl user.max_user_namespaces=65536")
    );
}

#[test]
fn the_sysctl_of_apparmor_is_named_where_it_is_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("apparmor_restrict_unprivileged_userns"), "1\n").unwrap();
    let sysctls = format!("{}=/proc/sys/kernel", folder.path().display());
    let denied = format!("{}=EPERM", libc::SYS_clone3);
    let check = lacks(&["--put", &sysctls, "--answer", &denied], "user namespaces");
    assert!(
        check
            .mend
            .starts_with("sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
        "{check:?}"
    );
}

#[test]
fn a_masked_proc_is_refused() {
    is_refused(
        &["--cover", "/proc/keys"],
        "masked",
        "/proc",
        "covered: /proc/keys",
        "systempaths=unconfined",
    );
    is_refused(
        &["--cover", "/proc/irq"],
        "maskeddir",
        "/proc",
        "covered: /proc/irq",
        "procMount: Unmasked",
    );
}

#[test]
fn a_file_system_over_an_empty_folder_of_proc_hides_nothing() {
    // As binfmt_misc lies there on most hosts.
    let report = doctor(&["--cover", "/proc/sys/fs/binfmt_misc"]);
    assert_eq!(line(&report, "/proc").verdict, Verdict::Ok);
}

#[test]
fn calls_that_an_older_kernel_lacks_are_named() {
    for (name, number) in SYSTEM_CALLS {
        let check = lacks(&["--answer", &format!("{number}=ENOSYS")], "system calls");
        assert_eq!(check.found, format!("no {name}"));
    }
}

#[test]
fn a_kernel_without_openat2_is_refused() {
    let answer = format!("{}=ENOSYS", libc::SYS_openat2);
    is_refused(
        &["--answer", &answer],
        "noopenat",
        "system calls",
        "no openat2",
        "6.1 or later",
    );
}

#[test]
fn a_kernel_without_open_tree_or_memory_files_is_refused() {
    for (number, session) in [(libc::SYS_open_tree, "notree"), (libc::SYS_memfd_create, "nomemfd")] {
        is_refused(
            &["--answer", &format!("{number}=ENOSYS")],
            session,
            "system calls",
            "no ",
            "6.1 or later",
        );
    }
}

#[test]
fn a_kernel_without_close_range_stops_the_jailer_at_its_start() {
    let said = refused(&["--answer", &format!("{}=ENOSYS", libc::SYS_close_range)], "noclose");
    assert!(
        said.contains("close_range(3, ~0, CLOEXEC): Function not implemented"),
        "{said}"
    );
}

#[test]
fn calls_that_are_not_used_are_not_missed() {
    // Newer ways to mount and to open processes, which an older kernel or a container's profile may not have.
    for number in [
        libc::SYS_fsopen,
        libc::SYS_mount_setattr,
        libc::SYS_pidfd_open,
        libc::SYS_quotactl_fd,
    ] {
        let options = ["--answer", &format!("{number}=ENOSYS")];
        let mut rig = Rig::begin(weaker(&options), |command| command);
        assert!(rig.greet().is_empty());
        rig.make("notmissed");
        assert_eq!(rig.sh("notmissed", "e1", "echo x").stdout, "x\n", "{number}");
        rig.stop();
    }
}

/// Where this host mounts the version 2 tree, or the version 1 hierarchy of a controller.
fn hierarchy(kind: &str, option: &str) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let has =
        |fields: &Vec<&str>| fields[2] == kind && (option.is_empty() || fields[3].split(',').any(|o| o == option));
    fields.filter(has).map(|fields| fields[1].to_owned()).next()
}

#[test]
fn a_host_without_version_2_groups_is_refused() {
    let tree = hierarchy("cgroup2", "").unwrap();
    is_refused(
        &["--unmount", &tree],
        "notracking",
        "cgroup tracking",
        "no cgroup2 is mounted",
        "unified_cgroup_hierarchy",
    );
}

#[test]
fn groups_that_can_not_be_written_are_refused() {
    let tree = hierarchy("cgroup2", "").unwrap();
    is_refused(
        &["--read-only", &tree],
        "readonly",
        "cgroup tracking",
        "Read-only file system",
        "mounted writable",
    );
}

#[test]
fn the_page_lists_what_is_looked_at() {
    let page = include_str!("../../docs/host.md");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let listed: Vec<(&str, &str, &str)> = rows
        .iter()
        .map(|row| (row[0].trim_matches('`'), row[1], row[2]))
        .collect();
    let needs: Vec<_> = NEEDS
        .iter()
        .map(|need| (need.what, need.needed, need.without.text()))
        .collect();
    assert_eq!(listed, needs);
    let capabilities = CAPABILITIES.iter().map(|capability| format!("`{capability}`"));
    let calls = SYSTEM_CALLS.iter().map(|(name, _)| format!("`{name}`"));
    let missing: Vec<String> = capabilities.chain(calls).filter(|name| !page.contains(name)).collect();
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn a_whole_report_has_every_line_once_and_in_order() {
    let report = Rig::start().host();
    let whats: Vec<&str> = report.checks.iter().map(|check| check.what.as_str()).collect();
    let needs: Vec<&str> = NEEDS.iter().map(|need| need.what).collect();
    assert_eq!(whats, needs);
}

fn file(text: &str) -> tempfile::NamedTempFile {
    use std::io::Write;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// The controllers that are on version 1 here, with their places. Version 2 hosts have none; the VM looks at them.
fn on_version_1() -> Vec<(&'static str, String)> {
    let found: Vec<_> = NEEDED
        .into_iter()
        .filter_map(|name| Some((name, hierarchy("cgroup", name)?)))
        .collect();
    let memory = line(&doctor(&[]), "cgroup memory").found;
    assert_eq!(
        memory.starts_with("v1"),
        found.len() == NEEDED.len(),
        "{memory}, {found:?}"
    );
    found
}

#[test]
fn version_1_controllers_that_are_missing_are_refused() {
    for (name, folder) in on_version_1() {
        let (what, mend) = (format!("cgroup {name}"), format!("-o {name}"));
        is_refused(
            &["--unmount", &folder],
            &format!("no{name}"),
            &what,
            "in no hierarchy",
            &mend,
        );
    }
}

#[test]
fn version_1_controllers_that_can_not_be_written_are_refused() {
    for (name, folder) in on_version_1() {
        let (what, found) = (format!("cgroup {name}"), "Read-only file system");
        is_refused(
            &["--read-only", &folder],
            &format!("ro{name}"),
            &what,
            found,
            "mounted writable",
        );
    }
}

/// Groups of version 2 within that of this test, one in the other, as a service manager makes them for units.
struct Groups {
    folders: Vec<PathBuf>,
}

impl Groups {
    /// `inner` is in `outer`, whose controllers for the groups below are these, each with a `+`.
    fn new(name: &str, controllers: &str) -> Self {
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
        let own = PathBuf::from(hierarchy("cgroup2", "").unwrap()).join(own);
        // A group with processes, as this test's is, hands nothing on; the one above it does.
        let top = if pure() { own.parent().unwrap().to_owned() } else { own };
        let outer = top.join(format!("test-{name}"));
        let groups = Self {
            folders: vec![outer.join("inner"), outer.clone()],
        };
        if pure() {
            std::fs::write(top.join("cgroup.subtree_control"), "+memory +cpu +pids +io").unwrap();
        }
        std::fs::create_dir(&outer).unwrap();
        std::fs::create_dir(outer.join("inner")).unwrap();
        std::fs::write(outer.join("cgroup.subtree_control"), controllers).unwrap();
        groups
    }

    /// Says of the inner one what systemd says of units with `Delegate=`.
    fn delegate(self) -> Self {
        rustix::fs::setxattr(
            &self.folders[0],
            "trusted.delegate",
            b"1",
            rustix::fs::XattrFlags::empty(),
        )
        .unwrap();
        self
    }

    fn inner(&self) -> String {
        self.folders[0].display().to_string()
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        // The jailer has moved itself one group down.
        let _not_there = std::fs::remove_dir(self.folders[0].join("brig"));
        for folder in &self.folders {
            std::fs::remove_dir(folder).unwrap();
        }
    }
}

/// Whether version 2 has all controllers here. The machine of `tests/vm` has them there; others may not.
fn pure() -> bool {
    std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// Where version 2 only tracks, nothing has to be delegated: a session is made.
fn is_made(options: &[&str], session: &str) {
    let mut rig = Rig::begin(weaker(options), |command| command);
    assert!(rig.greet().is_empty());
    assert_eq!(rig.make(session).enforced.cgroup, "v1");
    rig.stop();
}

#[test]
fn a_group_that_was_not_delegated_is_refused_on_version_2() {
    let groups = Groups::new("undelegated", "");
    let inner = groups.inner();
    let options = ["--enter", inner.as_str()];
    if !pure() {
        return is_made(&options, "undelegated");
    }
    for what in ["cgroup memory", "cgroup cpu", "cgroup pids"] {
        is_refused(&options, "undelegated", what, "delegated", "Delegate=");
    }
}

#[test]
fn controllers_that_were_not_handed_down_are_refused_on_version_2() {
    for (missing, there) in [
        ("memory", "+cpu +pids"),
        ("cpu", "+memory +pids"),
        ("pids", "+memory +cpu"),
    ] {
        let groups = Groups::new(&format!("no{missing}"), if pure() { there } else { "" }).delegate();
        let inner = groups.inner();
        let options = ["--enter", inner.as_str()];
        let session = format!("v2no{missing}");
        if !pure() {
            is_made(&options, &session);
            continue;
        }
        let (what, mend) = (format!("cgroup {missing}"), format!("add {missing} to Delegate="));
        is_refused(&options, &session, &what, "in no hierarchy", &mend);
        let report = doctor(&options);
        let lacking = report.checks.iter().filter(|check| check.verdict == Verdict::Missing);
        assert_eq!(lacking.map(|check| check.what.as_str()).collect::<Vec<_>>(), [what]);
    }
}

#[test]
fn disks_that_can_not_be_limited_are_no_reason_to_refuse_other_sessions() {
    let groups = Groups::new("noio", if pure() { "+memory +cpu +pids" } else { "" }).delegate();
    let inner = groups.inner();
    let (policies, make) = own_policy("limitedio", "io = { read = \"1M\" }");
    let mut rig = Rig::begin(weaker(&["--enter", inner.as_str()]), |command| {
        command.arg("--policies").arg(policies.path())
    });
    assert!(rig.greet().is_empty());
    let check = rig.check("cgroup io");
    assert_eq!(
        (check.verdict, check.needed.as_str()),
        (Verdict::Degraded, "for policy x (limits.io)")
    );
    let (found, mend) = if pure() {
        (
            "none: the controller is not delegated",
            "add io to Delegate= of brig-jailer.service",
        )
    } else {
        ("none: version 1 can't", "boot with systemd.unified_cgroup_hierarchy=1")
    };
    assert_eq!((check.found.as_str(), check.mend.as_str()), (found, mend));
    let refusal = rig.try_make(make).unwrap_err();
    assert!(matches!(refusal, Refusal::HostCannot(_)), "{refusal:?}");
    assert!(
        refusal
            .to_string()
            .contains("the io controller of cgroup version 2 is not delegated"),
        "{refusal}"
    );
    assert!(!rig.make("notlimited").enforced.io);
    rig.stop();
}
