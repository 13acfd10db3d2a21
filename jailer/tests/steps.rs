//! Each step of docs/jail.md, failing: the caller gets its name, and nothing is left.
//!
//! The jailer of these tests is built with the feature `faults`. For the steps inside the jail a fault is bad data,
//! which the kernel itself refuses.
#![cfg(feature = "faults")]
#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod support;

use brig_jailer::api::{Refusal, Request};
use brig_jailer::step::Step;
use support::{Rig, command, id, quantities};

/// What is refused with a fault in this step: the session, or its first program.
fn refused(fault: &str, session: &str) -> Refusal {
    let mut rig = Rig::with_fault(fault);
    let made = rig.try_make(Rig::request("data", session, quantities()));
    let refusal = match made {
        Err(refusal) => refusal,
        Ok(_) => {
            let refusal = rig.try_spawn(command(session, "e1", &["true"])).unwrap_err();
            rig.send(&Request::Close { session: id(session) });
            refusal
        }
    };
    rig.stop();
    refusal
}

fn assert_names_its_step(step: Step) {
    let session = format!("faulty{}", step.name().replace('-', ""));
    let refusal = refused(step.name(), &session);
    assert!(
        matches!(&refusal, Refusal::Step(error) if error.step == step),
        "{step}: {refusal:?}"
    );
    let left = std::process::Command::new("find")
        .args(["/sys/fs/cgroup", "-type", "d", "-path", &format!("*/brig-*/{session}*")])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&left.stdout), "");
}

macro_rules! steps {
    ($($test:ident $step:ident),+ $(,)?) => {
        $(#[test] fn $test() { assert_names_its_step(Step::$step) })+
    };
}

steps! {
    a_fault_in_cgroups_is_named Cgroups,
    a_fault_in_clone_is_named Clone,
    a_fault_in_id_maps_is_named IdMaps,
    a_fault_in_join_cgroups_is_named JoinCgroups,
    a_fault_in_cgroup_namespace_is_named CgroupNamespace,
    a_fault_in_user_limits_is_named UserLimits,
    a_fault_in_private_mounts_is_named PrivateMounts,
    a_fault_in_mounts_is_named Mounts,
    a_fault_in_pivot_root_is_named PivotRoot,
    a_fault_in_hostname_is_named Hostname,
    a_fault_in_loopback_is_named Loopback,
    a_fault_in_shed_is_named Shed,
    a_fault_in_files_helper_is_named FilesHelper,
    a_fault_in_join_leaf_is_named JoinLeaf,
    a_fault_in_setsid_is_named Setsid,
    a_fault_in_streams_is_named Streams,
    a_fault_in_rlimits_is_named Rlimits,
    a_fault_in_drop_privileges_is_named DropPrivileges,
    a_fault_in_directory_is_named Directory,
    a_fault_in_no_new_privs_is_named NoNewPrivs,
    a_fault_in_landlock_is_named Landlock,
    a_fault_in_seccomp_is_named Seccomp,
    a_fault_in_exec_is_named Exec,
}

#[test]
fn without_its_landlock_rule_tmp_is_out_of_reach() {
    let mut rig = Rig::with_fault("off:tmp-rule");
    rig.make("s1");
    let text = rig
        .sh("s1", "e1", "echo x >/tmp/f 2>&1 || echo refused; echo y >f && cat f")
        .stdout;
    assert!(text.contains("refused") && text.ends_with("y\n"), "{text}");
    rig.stop();
}

#[test]
fn without_the_filter_a_forbidden_call_gets_through() {
    let mut rig = Rig::with_fault("off:seccomp");
    rig.make("s1");
    let script = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nlibc.syscall(101, 0, 0, 0, 0)\n\
                  print(open('/proc/self/status').read().split('Seccomp:')[1].split()[0], ctypes.get_errno())";
    let text = rig.python("s1", "e1", script).stdout;
    assert!(text.starts_with('0') && !text.trim().ends_with("38"), "{text}");
    rig.stop();
}

#[test]
fn without_masks_the_affairs_of_the_host_are_seen() {
    let mut rig = Rig::with_fault("off:masks");
    rig.make("s1");
    let text = rig
        .sh("s1", "e1", "cat /proc/timer_list /proc/interrupts 2>&1 | wc -c")
        .stdout;
    assert_ne!(text, "0\n");
    rig.stop();
}
