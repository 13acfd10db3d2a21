//! Other processes: those of the jail itself, of other sessions, of the host.

use brig_proto::v1::{CauseKind, ExecutionSpec, ExecutionStatus as Status};
use brig_tests::spec::{code, command, sh, small};
use brig_tests::{DEADLINE, daemon, processes};

/// Open descriptors of the process that runs it; the one that lists them is left out.
const DESCRIPTORS: &str = "[n for n in range(1024) if os.path.exists(f'/proc/self/fd/{n}')]";

#[test]
fn the_first_process_and_the_files_helper_give_nothing_away() {
    let daemon = daemon!();
    let script = r#"
for p in 1 $(grep -l brig-files /proc/[0-9]*/comm | cut -d/ -f3); do
    for f in environ maps mem exe cwd root fd/0 stack syscall io auxv; do
        readlink /proc/$p/$f >/dev/null 2>&1 && echo link $p/$f
        head -c 1 /proc/$p/$f >/dev/null 2>&1 && echo file $p/$f
    done
    ls /proc/$p/fd /proc/$p/map_files /proc/$p/task/$p/fd 2>/dev/null
    kill -9 $p 2>/dev/null && echo killed $p
    seen="$seen x"
done
echo seen $seen
"#;
    assert_eq!(daemon.stdout(sh(script)), "seen x x\n");
}

#[test]
fn commands_have_three_descriptors() {
    let daemon = daemon!();
    let list = format!("import os; print({DESCRIPTORS})");
    assert_eq!(daemon.stdout(command(&["python3", "-c", &list])), "[0, 1, 2]\n");
}

#[test]
fn python_code_has_two_pipes_of_the_daemon_besides_and_its_children_have_not() {
    let daemon = daemon!();
    let text = daemon.stdout(small(&format!(
        "import os, subprocess\nprint({DESCRIPTORS})\n\
         subprocess.run(['python3', '-c', \"import os; print({})\"], close_fds=False)",
        DESCRIPTORS.replace('\'', "\\\"")
    )));
    assert_eq!(text, "[0, 1, 2, 200, 201]\n[0, 1, 2]\n");
}

#[test]
fn core_dumps_go_nowhere() {
    let daemon = daemon!();
    let script =
        "cd /tmp; ulimit -c unlimited 2>/dev/null && echo raised; sh -c 'kill -SEGV $$'; ls -A /tmp /home/user";
    assert_eq!(daemon.run(sh(script)).stdout(), "/home/user:\n\n/tmp:\n");
    let own = daemon.run(sh("kill -SEGV $$"));
    assert_eq!(own.end(), (Status::Killed, Some(CauseKind::Signal)));
    assert_eq!(own.result.signal, Some(11));
}

#[test]
fn memory_and_files_of_one_session_are_not_in_another() {
    let daemon = daemon!();
    let mut one = daemon.begin(small(
        "from multiprocessing.shared_memory import SharedMemory\n\
         memory = SharedMemory('brigsecret', create=True, size=64)\nmemory.buf[:6] = b'secret'\n\
         open('/tmp/brigsecret', 'w').write('x')\nopen('brigsecret', 'w').write('x')\nprint('up')\n\
         import time\ntime.sleep(60)",
    ));
    one.until_written("up\n");
    let text = daemon.stdout(sh("ls -A /dev/shm /tmp /home/user; ls /proc | grep -c '^[0-9]'"));
    let (files, count) = text.rsplit_once("/tmp:\n").unwrap();
    assert_eq!(files, "/dev/shm:\n\n/home/user:\n\n");
    // pid 1, the helper of files, the shell, and the two of its pipeline.
    assert!(count.trim().parse::<u32>().unwrap() <= 5, "{text}");
}

#[test]
fn processes_of_another_session_can_not_be_signalled() {
    let daemon = daemon!();
    let mut one = daemon.begin(sh("echo up; sleep 60"));
    one.until_written("up\n");
    processes::await_named(daemon.pid(), "sleep", 1, *DEADLINE);
    let script = "for p in $(seq 2 400); do [ $p = $$ ] || kill -9 $p 2>/dev/null; done; kill -9 -1; echo alive";
    assert_eq!(daemon.stdout(sh(script)), "alive\n");
    let running = processes::descendants(daemon.pid());
    assert!(running.iter().any(|process| process.name == "sleep"), "{running:?}");
}

#[test]
fn the_shared_image_can_not_be_locked_for_writing() {
    let daemon = daemon!();
    let text = daemon.stdout(small(
        "import fcntl\ntry: fcntl.lockf(open('/etc/passwd'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n\
         except OSError as error: print(error.errno)",
    ));
    assert_eq!(text, "9\n");
}

#[test]
fn a_program_can_not_leave_its_group_of_limits() {
    let daemon = daemon!();
    let script = "find / -xdev -name cgroup.procs 2>/dev/null | wc -l; ls /sys/fs/cgroup 2>/dev/null | wc -l";
    assert_eq!(daemon.stdout(sh(script)), "0\n0\n");
}

/// splice and sendfile hold the lock of a pipe while they wait for their source; the daemon, which reads the other end,
/// would wait with them, and everybody else with it.
#[test]
fn a_guest_can_not_hold_the_lock_of_a_pipe_that_the_daemon_reads() {
    let daemon = daemon!();
    let script = "import errno, os, socket\n\
                  a, b = socket.socketpair()\n\
                  calls = (lambda: os.splice(a.fileno(), 1, 100), lambda: os.sendfile(1, a.fileno(), None, 100))\n\
                  for call in calls:\n\
                  \x20   try: call(); print('done')\n\
                  \x20   except OSError as error: print(errno.errorcode[error.errno])";
    for policy in ["data", "strict"] {
        let spec = ExecutionSpec {
            policy: policy.to_owned(),
            ..code(script)
        };
        assert_eq!(daemon.stdout(spec), "ENOSYS\nENOSYS\n", "{policy}");
    }
}
