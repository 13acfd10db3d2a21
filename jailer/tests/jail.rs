//! Each step of docs/jail.md, looked at from inside a real jail. Needs root and the `base` image.
#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod support;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use brig_jailer::api::{Exit, Quantities};
use brig_jailer::files::wire::{HEADER, Request, Response, Walk, body_length, decode, encode};
use brig_jailer::step::Step;
use support::{Outcome, Rig, id, quantities};

/// Runs one script in a fresh jail; the script must succeed.
fn inside(script: &str) -> String {
    let outcome = inside_any(script);
    assert_eq!(outcome.end.exit, Exit::Code(0), "{outcome:?}");
    outcome.stdout
}

fn inside_any(script: &str) -> Outcome {
    let mut rig = Rig::start();
    // The file helper ends with its socket.
    let _up = rig.make("s1");
    let outcome = rig.sh("s1", "e1", script);
    rig.close("s1");
    rig.stop();
    outcome
}

fn python(script: &str) -> String {
    let mut rig = Rig::start();
    rig.make("s1");
    let outcome = rig.python("s1", "e1", script);
    rig.close("s1");
    rig.stop();
    assert_eq!(outcome.end.exit, Exit::Code(0), "{outcome:?}");
    outcome.stdout
}

/// The groups of a session in all hierarchies.
fn groups(session: &str) -> Vec<PathBuf> {
    let listed = std::process::Command::new("find")
        .args(["/sys/fs/cgroup", "-type", "d", "-path", &format!("*/brig-*/{session}*")])
        .output()
        .unwrap();
    String::from_utf8(listed.stdout)
        .unwrap()
        .lines()
        .map(PathBuf::from)
        .collect()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

#[test]
fn docs_list_the_same_steps_in_the_same_order() {
    let page = include_str!("../../docs/jail.md");
    let listed: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name))
        .collect();
    let names: Vec<&str> = Step::ALL.iter().map(|step| step.name()).collect();
    assert_eq!(listed, names);
}

#[test]
fn a_program_runs_and_its_end_is_told() {
    let outcome = inside_any("echo out; echo err >&2; exit 7");
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!((outcome.end.exit, outcome.end.cause), (Exit::Code(7), None));
    assert!(
        outcome.end.usage.cpu_us > 0 && outcome.end.usage.memory_peak_bytes > 0,
        "{outcome:?}"
    );
}

#[test]
fn what_is_enforced_is_told() {
    let mut rig = Rig::start();
    let enforced = rig.make("s1").enforced;
    assert_eq!(
        enforced.namespaces,
        ["user", "mount", "pid", "net", "ipc", "uts", "cgroup"]
    );
    assert!(enforced.memory && enforced.cpu && enforced.pids && enforced.no_new_privs);
    assert!(
        enforced.landlock_abi >= 2 && enforced.seccomp.starts_with("data@"),
        "{enforced:?}"
    );
    assert_eq!(enforced.capabilities, "none");
    rig.stop();
}

#[test]
fn cgroups_limits_are_on_and_go_with_the_session() {
    let mut rig = Rig::start();
    rig.make("cgrouptest");
    let all = groups("cgrouptest");
    let guest = |file: &str| {
        let holds = |group: &&PathBuf| group.ends_with("guest") && group.join(file).exists();
        all.iter().find(holds).map(|group| read(&group.join(file)))
    };
    let Quantities {
        memory_bytes,
        disk_bytes,
        pids,
        ..
    } = quantities();
    let memory = guest("memory.limit_in_bytes").or_else(|| guest("memory.max"));
    assert_eq!(memory, Some((memory_bytes + disk_bytes + (48 << 20)).to_string()));
    assert_eq!(guest("pids.max"), Some((pids + 17).to_string()));
    let cpu = guest("cpu.cfs_quota_us").or_else(|| guest("cpu.max").map(|text| text.replace(" 100000", "")));
    assert_eq!(cpu.as_deref(), Some("100000"));
    rig.close("cgrouptest");
    assert_eq!(groups("cgrouptest"), Vec::<PathBuf>::new());
    rig.stop();
}

#[test]
fn clone_gives_every_session_namespaces_of_its_own() {
    let mut rig = Rig::start();
    rig.make("s1");
    rig.make("s2");
    let script = "cd /proc/self/ns && for n in user mnt pid net ipc uts cgroup; do readlink $n; done";
    let (one, two) = (rig.sh("s1", "e1", script).stdout, rig.sh("s2", "e1", script).stdout);
    let host = |name: &str| {
        std::fs::read_link(format!("/proc/self/ns/{name}"))
            .unwrap()
            .display()
            .to_string()
    };
    for ((first, second), name) in one
        .lines()
        .zip(two.lines())
        .zip(["user", "mnt", "pid", "net", "ipc", "uts"])
    {
        assert!(
            first != second && first != host(name) && second != host(name),
            "{first} {second}"
        );
    }
    assert_eq!(one.lines().count(), 7);
    rig.stop();
}

#[test]
fn id_maps_give_each_session_its_own_block() {
    let mut rig = Rig::start();
    rig.make("s1");
    rig.make("s2");
    let script = "cat /proc/self/uid_map /proc/self/gid_map /proc/self/setgroups; id";
    let (one, two) = (rig.sh("s1", "e1", script).stdout, rig.sh("s2", "e1", script).stdout);
    let first: Vec<Vec<&str>> = one.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((first[0][0], first[0][2], first[2][0]), ("0", "4096", "deny"));
    assert_eq!(first[0], first[1]);
    assert!(one.contains("uid=1000(user) gid=1000(user) groups=1000(user)"), "{one}");
    assert_ne!(one.lines().next(), two.lines().next());
    rig.stop();
}

#[test]
fn join_cgroups_and_cgroup_namespace_hide_where_the_session_lies() {
    let text = inside("cat /proc/self/cgroup");
    let brig: Vec<&str> = text.lines().filter(|line| line.contains("guest/")).collect();
    assert!(
        !brig.is_empty() && brig.iter().all(|line| line.contains("guest/e1")),
        "{text}"
    );
    assert!(!text.contains("brig-") && !text.contains("s1/"), "{text}");
}

#[test]
fn user_limits_are_low_for_the_session_alone() {
    let host = read(Path::new("/proc/sys/user/max_user_namespaces"));
    let text = inside("cat /proc/sys/user/max_user_namespaces /proc/sys/user/max_inotify_instances");
    assert_eq!(text, "0\n32\n");
    assert_eq!(read(Path::new("/proc/sys/user/max_user_namespaces")), host);
}

#[test]
fn private_mounts_and_mounts_show_only_what_the_plan_lists() {
    let text = inside("cat /proc/self/mountinfo");
    let mut seen: Vec<(&str, &str)> = text
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .map(|parts| (parts[4], parts[5]))
        .filter(|(point, _)| !point.starts_with("/proc/"))
        .collect();
    seen.sort_unstable();
    let points: Vec<&str> = seen.iter().map(|(point, _)| *point).collect();
    assert_eq!(
        points,
        [
            "/",
            "/dev",
            "/dev/pts",
            "/dev/shm",
            "/home/user",
            "/proc",
            "/tmp",
            "/usr/lib/brig"
        ]
    );
    assert!(seen.iter().all(|(_, options)| options.contains("nosuid")), "{seen:?}");
    assert!(!text.contains("shared:") && !text.contains("master:"), "{text}");
    for (point, options) in seen {
        let writable = ["/dev/pts", "/dev/shm", "/home/user", "/proc", "/tmp"].contains(&point);
        assert_eq!(options.starts_with("rw"), writable, "{point} {options}");
        assert!(
            options.contains("nodev") || point.starts_with("/dev"),
            "{point} {options}"
        );
    }
}

#[test]
fn mounts_bound_bytes_and_inodes_of_all_places_together() {
    let text = python(
        "import errno, os\n\
         def fill(path, size):\n\
         \x20   try: open(path, 'wb', 0).write(bytes(size)); return 'ok'\n\
         \x20   except OSError as e: return errno.errorcode[e.errno]\n\
         open('/tmp/a', 'wb', 0).write(bytes(20 << 20))\n\
         print(open('b', 'wb', 0).write(bytes(20 << 20)) < 20 << 20, fill('/dev/shm/c', 1 << 20))\n\
         os.remove('/tmp/a'); os.remove('b'); os.remove('/dev/shm/c')\n\
         made = 0\n\
         try:\n\
         \x20   for made in range(3000): open(f'f{made}', 'w').close()\n\
         except OSError as e: print(errno.errorcode[e.errno], made)\n\
         st = os.statvfs('.'); print(st.f_blocks * st.f_frsize)",
    );
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!((words[0], words[1], words[2]), ("True", "ENOSPC", "ENOSPC"), "{text}");
    assert!((1990..2000).contains(&words[3].parse::<u64>().unwrap()), "{text}");
    assert_eq!(words[4], quantities().disk_bytes.to_string());
}

#[test]
fn mounts_leave_nothing_of_the_rootfs_writable() {
    let text = inside(
        "find / -xdev -writable ! -type l ! -path /tmp ! -path /home/user 2>/dev/null | head; for d in / /usr /etc /dev /usr/lib/brig /var; do
         touch $d/x 2>/dev/null && echo wrote $d; done; mount -o remount,rw / 2>/dev/null && echo remounted; true",
    );
    assert_eq!(text, "");
}

#[test]
fn mounts_mask_the_affairs_of_the_host() {
    let text = inside(
        "for f in kcore keys timer_list sysrq-trigger; do [ -e /proc/$f ] && wc -c </proc/$f; done
         ls -A /proc/acpi /proc/scsi 2>/dev/null | grep -v : ; echo x 2>/dev/null >/proc/sys/kernel/hostname && echo wrote; true",
    );
    assert!(text.split_whitespace().all(|count| count == "0"), "{text}");
}

#[test]
fn pivot_root_leaves_no_way_to_the_old_root() {
    let text = inside("ls / | tr '\\n' ' '; readlink /proc/self/root; ls /proc/1/root 2>&1 | tail -1; ls /run | wc -l");
    assert!(text.contains("Permission denied"), "{text}");
    assert!(!text.contains("work") && text.contains("home"), "{text}");
}

#[test]
fn hostname_is_the_id_of_the_session() {
    assert_eq!(inside("uname -n"), "s1\n");
}

#[test]
fn loopback_is_the_only_interface_and_up() {
    let text = python(
        "import socket\ns = socket.create_server(('127.0.0.1', 0))\nc = socket.create_connection(s.getsockname())\n\
         print([line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line])\n\
         try: socket.create_connection(('192.0.2.1', 80), 2)\nexcept OSError as e: print(e.errno)",
    );
    assert_eq!(text, "['lo']\n101\n");
}

#[test]
fn shed_leaves_pid_1_out_of_reach() {
    let text = inside(
        "cat /proc/1/status | grep -E 'Name|Seccomp:|NoNewPrivs|CapEff|CapBnd'; cat /proc/1/environ /proc/1/maps 2>&1;
         kill -9 1; kill -STOP 1; true",
    );
    assert!(
        text.contains("CapEff:\t00000000000000e0") && text.contains("CapBnd:\t0000000000000000"),
        "{text}"
    );
    assert!(
        text.contains("Seccomp:\t2") && text.contains("NoNewPrivs:\t1"),
        "{text}"
    );
    assert_eq!(text.matches("Permission denied").count(), 2, "{text}");
}

#[test]
fn files_helper_has_no_capability_and_is_out_of_reach() {
    let text = inside(
        "i=0; until p=$(grep -ls brig-files /proc/[0-9]*/status); [ -n \"$p\" ] && grep -q 999.*1000 $p; do
         sleep 0.1; i=$((i+1)); [ $i -lt 50 ] || exec cat /proc/[0-9]*/status; done
         grep -E 'Uid|Gid|CapEff|CapPrm|CapBnd|Seccomp:' $p; p=${p%/status}; kill -9 ${p#/proc/} 2>&1; true",
    );
    assert!(text.contains("Uid:\t999\t999\t999\t1000"), "{text}");
    assert!(text.contains("Gid:\t999\t999\t999\t1000"), "{text}");
    assert_eq!(text.matches("0000000000000000").count(), 3, "{text}");
    assert!(text.contains("Seccomp:\t2"), "{text}");
}

#[test]
fn files_helper_answers_from_inside_the_session() {
    let mut rig = Rig::start();
    let up = rig.make("s1");
    rig.sh("s1", "e1", "echo x >f1; echo y >f2");
    let walk = Walk {
        max_entries: 10,
        max_depth: 2,
        time_ms: 10_000,
    };
    let mut socket = std::os::unix::net::UnixStream::from(up.files);
    socket.write_all(&encode(&Request::Snapshot(walk)).unwrap()).unwrap();
    let mut header = [0; HEADER];
    socket.read_exact(&mut header).unwrap();
    let mut body = vec![0; body_length(header).unwrap()];
    socket.read_exact(&mut body).unwrap();
    let answer = decode::<Response>(&body).unwrap();
    assert!(matches!(&answer, Response::Snapshotted { files: 2, .. }), "{answer:?}");
    rig.stop();
}

#[test]
fn join_leaf_accounts_each_program_apart() {
    let mut rig = Rig::start();
    rig.make("s1");
    let hungry = rig.python("s1", "e1", "x = bytearray(100 << 20); print(len(x))");
    let modest = rig.python("s1", "e2", "print(1)");
    assert!(hungry.end.usage.memory_peak_bytes > 100 << 20, "{hungry:?}");
    assert!(modest.end.usage.memory_peak_bytes < 50 << 20, "{modest:?}");
    rig.stop();
}

#[test]
fn setsid_and_streams_leave_no_terminal_and_three_descriptors() {
    let text = inside(
        "ls -l /proc/self/fd | grep -c 'pipe:\\|/dev/null'; ls /proc/self/fd | wc -w; ps -o sid=,tty= -p $$; \
         echo through >/dev/stdout; (true </dev/tty) 2>&1; true",
    );
    let lines: Vec<&str> = text.lines().collect();
    // The fourth descriptor is the folder that ls itself reads.
    assert_eq!((lines[0], lines[1]), ("3", "4"), "{text}");
    assert!(lines[2].trim().ends_with('?') && lines[3] == "through", "{text}");
}

#[test]
fn rlimits_are_set_and_can_not_be_raised() {
    let text = python(
        "import resource as r\n\
         print([r.getrlimit(x) for x in (r.RLIMIT_CORE, r.RLIMIT_NOFILE, r.RLIMIT_MEMLOCK, r.RLIMIT_MSGQUEUE)])\n\
         try: r.setrlimit(r.RLIMIT_NOFILE, (999, 999))\nexcept ValueError: print('refused')",
    );
    assert_eq!(text, "[(1, 1), (256, 256), (65536, 65536), (0, 0)]\nrefused\n");
}

#[test]
fn rlimits_step_makes_programs_die_for_memory_before_the_file_helper() {
    let text = inside(
        "until p=$(grep -ls brig-files /proc/[0-9]*/status); do sleep 0.01; done
         p=${p%/status}; cat /proc/self/oom_score_adj
         [ $(cat $p/oom_score) -lt $(cat /proc/self/oom_score) ] && echo helper last",
    );
    assert_eq!(text, "800\nhelper last\n");
}

#[test]
fn drop_privileges_and_no_new_privs_leave_nothing() {
    let text = inside("grep -E '^(Cap|NoNewPrivs|Groups|Uid|Gid)' /proc/self/status");
    assert_eq!(text.matches("0000000000000000").count(), 5, "{text}");
    assert!(
        text.contains("NoNewPrivs:\t1") && text.contains("Uid:\t1000\t1000\t1000\t1000"),
        "{text}"
    );
    assert!(
        text.lines()
            .any(|line| line.split_whitespace().collect::<Vec<_>>() == ["Groups:"]),
        "{text}"
    );
}

#[test]
fn directory_leads_nowhere_through_open_descriptors() {
    let mut rig = Rig::start();
    rig.make("s1");
    let made = rig.sh(
        "s1",
        "elink",
        "for n in 3 4 5 6 7; do ln -s /proc/self/fd/$n /tmp/l$n; done",
    );
    assert_eq!(made.end.exit, Exit::Code(0), "{made:?}");
    let numbers = (0..64).map(|number| format!("/proc/self/fd/{number}"));
    let others = [
        "/proc/self/root",
        "/proc/self/cwd",
        "/proc/1/root",
        "/tmp/l3",
        "/tmp/l4",
        "/tmp/l5",
        "/tmp/l6",
        "/tmp/l7",
    ];
    for (count, path) in numbers.chain(others.map(str::to_owned)).enumerate() {
        let mut spawn = support::command("s1", &format!("e{count}"), &["pwd"]);
        if let brig_jailer::api::Work::Command { directory, .. } = &mut spawn.work {
            *directory = Some(path.clone().into_bytes());
        }
        let refused = rig.try_spawn(spawn).unwrap_err();
        assert!(
            refused.to_string().starts_with("jail step directory"),
            "{path}: {refused}"
        );
    }
    rig.stop();
}

#[test]
fn directory_is_home_or_what_was_asked_for() {
    assert_eq!(inside("pwd"), "/home/user\n");
    let mut rig = Rig::start();
    rig.make("s1");
    let mut spawn = support::command("s1", "e1", &["pwd"]);
    if let brig_jailer::api::Work::Command { directory, .. } = &mut spawn.work {
        *directory = Some(b"/usr/share".to_vec());
    }
    assert_eq!(rig.run(spawn).stdout, "/usr/share\n");
    rig.stop();
}

#[test]
fn seccomp_answers_unlisted_calls_with_enosys() {
    let text = python(
        "import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\n\
         for number in (272, 308, 165, 155, 101, 321, 425, 323, 248, 310, 435, 303, 428):\n\
         \x20   libc.syscall(number, 0, 0, 0, 0, 0, 0)\n\
         \x20   print(errno.errorcode[ctypes.get_errno()])",
    );
    assert_eq!(text, "ENOSYS\n".repeat(13));
}

#[test]
fn exec_finds_programs_by_path_and_says_when_there_is_none() {
    let mut rig = Rig::start();
    rig.make("s1");
    let error = rig
        .try_spawn(support::command("s1", "e1", &["nosuchprogram"]))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "jail step exec: execve(\"nosuchprogram\"): No such file or directory (os error 2)"
    );
    let error = rig
        .try_spawn(support::command("s1", "e2", &["/etc/passwd"]))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "jail step exec: execve(\"/etc/passwd\"): Permission denied (os error 13)"
    );
    assert_eq!(rig.sh("s1", "e3", "echo still here").stdout, "still here\n");
    rig.stop();
}

#[test]
fn a_program_that_can_not_start_leaves_no_group() {
    let mut rig = Rig::start();
    rig.make("leftover");
    let _refused = rig
        .try_spawn(support::command("leftover", "enone", &["nosuchprogram"]))
        .unwrap_err();
    // The child is dead, but may still be on its way out of its group.
    let gone = (0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        !groups("leftover").iter().any(|group| group.ends_with("enone"))
    });
    assert!(gone);
    rig.send(&brig_jailer::api::Request::Close {
        session: id("leftover"),
    });
    rig.stop();
}
