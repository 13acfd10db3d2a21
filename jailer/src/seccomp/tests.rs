//! What the shipped filters answer, for every number, without making a call.

use std::path::Path;

use super::*;
use crate::policy::PolicySet;

const X86_64: u32 = 0xc000_003e;
const I386: u32 = 0x4000_0003;
const X32_BIT: u32 = 0x4000_0000;
/// Highest number looked at; the newest call of Linux 6.18 is 469.
const LAST: u32 = 600;
/// The kernel's BPF_MAXINSNS.
const INSTRUCTIONS_MAX: usize = 4096;

fn shipped() -> (PolicySet, Groups) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies");
    let groups = Groups::load(&[folder.join("syscalls")], Trust::Any).unwrap();
    (PolicySet::load(&[folder], Trust::Any).unwrap(), groups)
}

fn guest(policy: &str) -> Filter {
    let (policies, groups) = shipped();
    groups
        .compile(policy, &policies.get(policy).unwrap().syscalls.groups)
        .unwrap()
}

fn number(name: &str) -> u32 {
    match names::number(name) {
        Some(names::Number::Here(number)) => u32::try_from(number).unwrap(),
        other => panic!("{name}: {other:?}"),
    }
}

fn answer(filter: &Filter, name: &str, args: &[u64]) -> u32 {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    evaluate(&filter.programs[0], X86_64, number(name), all)
}

#[test]
fn every_shipped_policy_compiles_and_fits_the_kernel() {
    let (policies, groups) = shipped();
    assert_eq!(policies.names().collect::<Vec<_>>(), ["data", "strict"]);
    for policy in policies.iter() {
        let guest = groups.compile(&policy.name, &policy.syscalls.groups).unwrap();
        let init = groups.compile_init(&policy.name, &policy.syscalls.groups).unwrap();
        for filter in [guest, init] {
            assert!(
                filter.instructions() < INSTRUCTIONS_MAX,
                "{}: {}",
                filter.name,
                filter.instructions()
            );
            assert_eq!(filter.hash.len(), 12);
        }
    }
}

#[test]
fn what_is_not_listed_is_enosys_for_every_number() {
    let (policies, groups) = shipped();
    let listed = groups.allowed(&policies.get("data").unwrap().syscalls.groups).unwrap();
    let filter = guest("data");
    for nr in 0..=LAST {
        // All arguments zero satisfy no condition on a socket's family, and all of clone's, ioctl's and personality's.
        let conditional = ["socket", "socketpair", "mknod", "mknodat"].map(number).contains(&nr);
        let expected = if listed.contains_key(&i64::from(nr)) && !conditional {
            ALLOW
        } else {
            ENOSYS
        };
        assert_eq!(
            evaluate(&filter.programs[0], X86_64, nr, [0; 6]),
            expected,
            "system call {nr}"
        );
    }
}

#[test]
fn other_architectures_die_and_x32_numbers_fail() {
    let filter = guest("data");
    for nr in 0..=LAST {
        assert_eq!(
            evaluate(&filter.programs[0], I386, nr, [0; 6]),
            KILL_PROCESS,
            "i386 call {nr}"
        );
        assert_eq!(
            evaluate(&filter.programs[0], X86_64, nr | X32_BIT, [0; 6]),
            ENOSYS,
            "x32 call {nr}"
        );
    }
}

#[test]
fn calls_that_reach_outside_a_jail_are_refused_to_guests_and_to_pid_1() {
    let (policies, groups) = shipped();
    let init = groups
        .compile_init("data", &policies.get("data").unwrap().syscalls.groups)
        .unwrap();
    let outside = "mount umount2 pivot_root open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick \
        mount_setattr statmount listmount unshare setns chroot ptrace process_vm_readv process_vm_writev process_madvise \
        pidfd_getfd kcmp name_to_handle_at open_by_handle_at io_uring_setup io_uring_enter io_uring_register add_key \
        request_key keyctl bpf perf_event_open fanotify_init fanotify_mark modify_ldt userfaultfd vmsplice syslog swapon \
        swapoff reboot kexec_load kexec_file_load init_module finit_module delete_module acct quotactl quotactl_fd \
        settimeofday clock_settime clock_adjtime adjtimex iopl ioperm vhangup uselib ustat sysfs lookup_dcookie \
        nfsservctl move_pages migrate_pages mbind set_mempolicy memfd_secret setgroups sethostname setdomainname \
        lsm_set_self_attr mincore sync syncfs shmget msgget semget mq_open io_setup";
    for name in outside.split_whitespace() {
        for filter in [&guest("data"), &guest("strict"), &init] {
            assert_eq!(answer(filter, name, &[]), ENOSYS, "{name} in {}", filter.name);
        }
    }
    let own = [
        "clone3",
        "seccomp",
        "landlock_restrict_self",
        "setresuid",
        "setresgid",
        "setfsuid",
        "setfsgid",
        "capset",
    ];
    assert_eq!(own.map(|name| answer(&guest("data"), name, &[])), [ENOSYS; 8]);
    assert_eq!(own.map(|name| answer(&init, name, &[])), [ALLOW; 8]);
}

#[test]
fn pid_1_may_do_whatever_its_programs_may() {
    let (policies, groups) = shipped();
    // Values that satisfy each condition of the shipped groups, and some that satisfy none.
    let firsts = [
        0,
        1,
        2,
        10,
        16,
        0xffff_ffff,
        u64::from(libc::CLONE_NEWUSER.unsigned_abs()),
    ];
    let seconds = [0, 1, 2, 3, 0x1000, libc::TIOCSTI, libc::TIOCSTI | (1 << 32)];
    let thirds = [0, 6, 17, 0x1000];
    let calls: Vec<[u64; 6]> = firsts
        .into_iter()
        .flat_map(|a| {
            seconds
                .into_iter()
                .flat_map(move |b| thirds.map(|c| [a, b, c, 0, 0, 0]))
        })
        .collect();
    for policy in policies.iter() {
        let guest = groups.compile(&policy.name, &policy.syscalls.groups).unwrap();
        let init = groups.compile_init(&policy.name, &policy.syscalls.groups).unwrap();
        let allowed = groups.allowed(&policy.syscalls.groups).unwrap();
        for nr in 0..=LAST {
            // Arguments matter only where a condition looks at them.
            let looks = allowed
                .get(&i64::from(nr))
                .is_some_and(|rules| !rules.contains(&Vec::new()));
            for args in calls.iter().take(if looks { calls.len() } else { 1 }) {
                let allowed = |filter: &Filter| evaluate(&filter.programs[0], X86_64, nr, *args) == ALLOW;
                assert!(
                    !allowed(&guest) || allowed(&init),
                    "{}: call {nr} {args:?}",
                    policy.name
                );
            }
        }
    }
}

#[test]
fn ioctl_is_compared_in_the_32_bits_that_the_kernel_reads() {
    let filter = guest("data");
    let forbidden = [libc::TIOCSTI, libc::TIOCLINUX, 0x5423];
    for request in forbidden {
        for high in [0, 1 << 32, 0xffff_ffff << 32] {
            assert_eq!(
                answer(&filter, "ioctl", &[0, request | high]),
                ENOSYS,
                "{request:#x} {high:#x}"
            );
        }
    }
    let usual = [
        libc::TCGETS,
        libc::FIONREAD,
        libc::TIOCGWINSZ,
        libc::FIOCLEX,
        libc::TCGETS | (1 << 32),
    ];
    assert_eq!(usual.map(|request| answer(&filter, "ioctl", &[0, request])), [ALLOW; 5]);
}

#[test]
fn threads_and_forks_are_made_and_namespaces_are_not() {
    let filter = guest("data");
    let thread = libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_SETTLS | libc::CLONE_FILES;
    let good = [
        thread,
        libc::SIGCHLD,
        libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
    ];
    assert_eq!(
        good.map(|flags| answer(&filter, "clone", &[u64::from(flags.unsigned_abs())])),
        [ALLOW; 3]
    );
    let bad = [
        libc::CLONE_NEWNS,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_PARENT,
        libc::CLONE_PTRACE,
    ];
    assert_eq!(
        bad.map(|flag| answer(&filter, "clone", &[u64::from((flag | libc::SIGCHLD).unsigned_abs())])),
        [ENOSYS; 9]
    );
}

#[test]
fn only_the_listed_kinds_of_socket_exist() {
    let (data, strict) = (guest("data"), guest("strict"));
    let allowed = |filter: &Filter, family: i32, kind: i32, protocol: i32| {
        answer(
            filter,
            "socket",
            &[family, kind, protocol].map(|value| u64::from(value.unsigned_abs())),
        ) == ALLOW
    };
    let families = |filter: &Filter| -> Vec<i32> {
        (0..=46)
            .filter(|family| allowed(filter, *family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0))
            .collect()
    };
    assert_eq!(families(&data), [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6]);
    assert_eq!(families(&strict), [libc::AF_UNIX]);
    let good = [
        (libc::SOCK_STREAM, 0),
        (libc::SOCK_STREAM, 6),
        (libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 17),
    ];
    assert_eq!(
        good.map(|(kind, protocol)| allowed(&data, libc::AF_INET, kind, protocol)),
        [true; 3]
    );
    // Raw, ping, SCTP, MPTCP, UDP-Lite.
    let bad = [
        (libc::SOCK_RAW, 1),
        (libc::SOCK_DGRAM, 1),
        (libc::SOCK_STREAM, 132),
        (libc::SOCK_STREAM, 262),
        (2, 136),
    ];
    assert_eq!(
        bad.map(|(kind, protocol)| allowed(&data, libc::AF_INET, kind, protocol)),
        [false; 5]
    );
    assert_eq!(
        [1, 2, 16].map(|family| answer(&data, "socketpair", &[family, 1, 0])),
        [ALLOW, ENOSYS, ENOSYS]
    );
}

#[test]
fn special_files_are_named_pipes_and_domains_are_the_usual_one() {
    let filter = guest("data");
    let kinds = [
        libc::S_IFIFO | 0o600,
        libc::S_IFCHR | 0o600,
        libc::S_IFBLK,
        libc::S_IFSOCK,
        libc::S_IFREG,
    ];
    let expected = [ALLOW, ENOSYS, ENOSYS, ENOSYS, ENOSYS];
    assert_eq!(kinds.map(|mode| answer(&filter, "mknod", &[0, mode.into()])), expected);
    assert_eq!(
        kinds.map(|mode| answer(&filter, "mknodat", &[0, 0, mode.into()])),
        expected
    );
    // PER_LINUX, the question, ADDR_NO_RANDOMIZE, PER_LINUX32.
    let domains = [0, 0xffff_ffff, 0x0004_0000, 8].map(|domain| answer(&filter, "personality", &[domain]));
    assert_eq!(domains, [ALLOW, ALLOW, ENOSYS, ENOSYS]);
}

#[test]
fn what_reaches_beyond_the_session_is_left_out_of_common_calls() {
    let filter = guest("data");
    let asked = [
        ("fcntl", [0, 1026, 0, 0]),           // F_NOTIFY
        ("fcntl", [0, 1026 | 1 << 32, 0, 0]), // with bits that the kernel does not read
        ("prctl", [67, 1, 0, 0]),             // PR_SET_MEMORY_MERGE
        ("mmap", [0, 4096, 3, 0x4_0022]),     // MAP_HUGETLB
        ("memfd_create", [0, 4, 0, 0]),       // MFD_HUGETLB
        ("inotify_init1", [0, 0, 0, 0]),
        ("inotify_add_watch", [0, 0, 0, 0]),
        ("splice", [0, 0, 0, 0]),
        ("sendfile", [0, 0, 0, 0]),
        ("prctl", [22, 2, 0, 0]),      // PR_SET_SECCOMP
        ("setsockopt", [3, 1, 26, 0]), // SO_ATTACH_FILTER
        ("setsockopt", [3, 1, 51, 0]), // SO_ATTACH_REUSEPORT_CBPF
    ];
    assert!(asked.iter().all(|(call, args)| answer(&filter, call, args) == ENOSYS));
    let usual = [
        ("fcntl", [0, 3, 0, 0]),
        ("prctl", [15, 0, 0, 0]),
        ("setsockopt", [3, 1, 2, 0]),  // SO_REUSEADDR
        ("setsockopt", [3, 6, 26, 0]), // an option of TCP
        ("mmap", [0, 4096, 3, 0x22]),
        ("memfd_create", [0, 1, 0, 0]),
    ];
    assert!(usual.iter().all(|(call, args)| answer(&filter, call, args) == ALLOW));
}

#[test]
fn mistakes_in_a_group_name_the_line_the_entry_and_what_was_meant() {
    let parse = |line: &str| {
        let text = format!("allow = [\n{line}\n]");
        let problems = Group::parse(Path::new("syscalls/x.toml"), &text).unwrap_err();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let args = |args: &str| parse(&format!(r#"{{ syscall = "socket", why = "x", args = [{args}] }},"#));
    assert_eq!(
        parse(r#"{ syscall = "opeant", why = "x" },"#),
        "syscalls/x.toml:2: allow[0].syscall: \"opeant\" is not a known system call, did you mean \"openat\"?"
    );
    assert_eq!(
        args(r#"{ index = 0, op = "eq", value = "AF_UNXI" }"#),
        "syscalls/x.toml:2: allow[0].args: socket: \"AF_UNXI\" is not a known constant, did you mean \"AF_UNIX\"?"
    );
    assert_eq!(
        parse(r#"{ syscall = "read", why = " " },"#),
        "syscalls/x.toml:2: allow[0].why: read needs a reason"
    );
    assert!(parse(r#"{ syscall = "read" },"#).contains("missing field `why`"));
    assert!(args(r#"{ index = 6, op = "eq", value = 0 }"#).contains("accepted: 0 to 5"));
    assert!(args(r#"{ index = 0, op = "masked_eq", value = 0 }"#).contains("masked_eq needs a mask"));
    assert!(args(r#"{ index = 0, op = "eq", mask = 1, value = 0 }"#).contains("no effect"));
    assert!(args(r#"{ index = 0, op = "masked_eq", mask = 1, value = 2 }"#).contains("would never match"));
    assert!(args(r#"{ index = 0, op = "same", value = 0 }"#).contains("expected one of"));
}

#[test]
fn groups_that_do_not_exist_or_are_not_for_policies_are_refused() {
    let (_, groups) = shipped();
    let compile = |name: &str| groups.compile("x", &[name.to_owned()]).unwrap_err().to_string();
    assert_eq!(
        compile("pyhton"),
        "no syscall group named \"pyhton\", did you mean \"python\"?; there are: base, inet, python"
    );
    assert_eq!(
        compile("init"),
        "the syscall group \"init\" belongs to Brig's own processes in a jail, no policy may name it"
    );
}

#[test]
fn broken_programs_are_answered_as_the_kernel_would_and_never_hang() {
    let instruction = |code: u16, jt: u8, jf: u8, k: u32| {
        let mut bytes = code.to_le_bytes().to_vec();
        bytes.extend([jt, jf]);
        bytes.extend(k.to_le_bytes());
        bytes
    };
    let run = |program: &[u8]| evaluate(program, X86_64, 0, [0; 6]);
    assert_eq!(run(&[]), KILL_PROCESS);
    assert_eq!(run(&instruction(0xffff, 0, 0, 0)), KILL_PROCESS);
    assert_eq!(run(&instruction(0x05, 0, 0, u32::MAX)), KILL_PROCESS);
    assert_eq!(run(&instruction(0x20, 0, 0, 64)), KILL_PROCESS);
    assert_eq!(run(&instruction(0x06, 0, 0, ALLOW)), ALLOW);
}

/// Runs something on a thread under the filters of pid 1 and of a guest, as a jail stacks them.
///
/// Filters hold for a thread and its children; the thread ends with the test.
fn sealed<T: Send + 'static>(policy: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (policies, groups) = shipped();
    let names = policies.get(policy).unwrap().syscalls.groups.clone();
    let filters = [
        groups.compile_init(policy, &names).unwrap(),
        groups.compile(policy, &names).unwrap(),
    ];
    let thread = std::thread::spawn(move || {
        rustix::thread::set_no_new_privs(true).unwrap();
        filters
            .iter()
            .flat_map(|filter| &filter.programs)
            .for_each(|program| crate::sys::seccomp(program).unwrap());
        run()
    });
    thread.join().unwrap()
}

/// Threads, processes, an event loop and a local server, as ordinary Python code uses them.
const ORDINARY: &str = r#"
import asyncio, concurrent.futures, multiprocessing, os, socket, subprocess, sys, tempfile, threading
def square(x): return x * x
async def events():
    child = await asyncio.create_subprocess_exec("echo", "hi", stdout=asyncio.subprocess.PIPE)
    assert (await child.communicate())[0] == b"hi\n"
if __name__ == "__main__":
    with concurrent.futures.ThreadPoolExecutor(4) as pool: assert sum(pool.map(square, range(4))) == 14
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool: assert pool.map(square, [3]) == [9]
    asyncio.run(events())
    with tempfile.TemporaryDirectory() as place:
        subprocess.check_call("seq 9 | sort -r > a; cp -a a b; mkfifo f; ls -l | wc -l; tar cf t a b f", shell=True,
            cwd=place, stdout=subprocess.DEVNULL)
    if sys.argv[1] == "inet":
        server = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(server.getsockname()[:2])
        server.accept()[0].sendall(b"x")
        assert client.recv(1) == b"x"
    print("fine")
"#;

fn ordinary_python(policy: &str, network: &str) -> String {
    let place = tempfile::tempdir().unwrap();
    let script = place.path().join("main.py");
    std::fs::write(&script, ORDINARY).unwrap();
    let mut command = std::process::Command::new("python3");
    command.arg(script).arg(network);
    let output = sealed(policy, move || command.output().unwrap());
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn ordinary_python_runs_under_both_policies() {
    assert_eq!(ordinary_python("data", "inet"), "fine\n");
    assert_eq!(ordinary_python("strict", "none"), "fine\n");
}

#[test]
fn the_kernel_refuses_what_the_evaluator_says_it_refuses() {
    use rustix::net::{AddressFamily, SocketType, socket};
    let families = || {
        let families = [
            AddressFamily::UNIX,
            AddressFamily::INET,
            AddressFamily::NETLINK,
            AddressFamily::VSOCK,
        ];
        families.map(|family| socket(family, SocketType::DGRAM, None).map(drop))
    };
    let refused = Err(rustix::io::Errno::NOSYS);
    assert_eq!(sealed("data", families), [Ok(()), Ok(()), refused, refused]);
    assert_eq!(sealed("strict", families), [Ok(()), refused, refused, refused]);
    let unshare = || {
        std::process::Command::new("unshare")
            .args(["--net", "true"])
            .output()
            .unwrap()
    };
    let told = sealed("data", unshare).stderr;
    assert_eq!(
        String::from_utf8_lossy(&told),
        "unshare: unshare failed: Function not implemented\n"
    );
}
