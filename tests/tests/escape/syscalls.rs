//! System calls that no jail may make, by their numbers on x86-64.

use brig_proto::v1::{CauseKind, ExecutionStatus as Status};
use brig_tests::attack::{assert_filtered, inside};
use brig_tests::daemon;
use brig_tests::spec::{code, sh, small};

#[test]
fn namespaces_can_not_be_made_or_joined() {
    let daemon = daemon!();
    let attack = "
for flags in (0x10000000, 0x400, 0x7E020000): print(call(272, flags))  # unshare
print(call(308, 0, 0))                                                 # setns
print(call(435, 0, 0))                                                 # clone3
";
    assert_filtered(&daemon, attack);
    assert_eq!(
        daemon.stdout(sh("unshare -Ur id 2>/dev/null || echo refused")),
        "refused\n"
    );
}

#[test]
fn clone_makes_processes_but_no_namespaces() {
    let daemon = daemon!();
    // user, mount, pid, network, ipc, uts, cgroup; a child that came to be would end at once.
    let attack = "
for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x8000000, 0x4000000, 0x2000000):
    result = libc.syscall(ctypes.c_long(56), ctypes.c_long(flag | 17), 0, 0, 0, 0)
    if result == 0: os._exit(0)
    print('made' if result > 0 else errno.errorcode[ctypes.get_errno()])
";
    assert_eq!(inside(&daemon, attack), ["ENOSYS"; 7]);
    assert_eq!(
        daemon.stdout(small(
            "import os\nprint(os.waitpid(os.fork() or os._exit(3), 0)[1] >> 8)"
        )),
        "3\n"
    );
}

#[test]
fn tracing_and_other_memory_are_out_of_reach() {
    let daemon = daemon!();
    let attack = "
me = os.getpid()
print(call(101, 16, 1, 0, 0))           # ptrace(PTRACE_ATTACH, 1)
print(call(310, me, 0, 0, 0, 0, 0))     # process_vm_readv
print(call(311, me, 0, 0, 0, 0, 0))     # process_vm_writev
print(call(312, me, me, 0, 0, 0))       # kcmp
print(call(438, -1, 0, 0))              # pidfd_getfd
";
    assert_filtered(&daemon, attack);
}

#[test]
fn keyrings_that_no_namespace_divides_are_out_of_reach() {
    let daemon = daemon!();
    let attack = "
text = ctypes.c_char_p
print(call(248, text(b'user'), text(b'brigtest'), text(b'x'), 1, -3))   # add_key
print(call(249, 0, 0, 0, 0))                                            # request_key
print(call(250, 0, -3, 0))                                              # keyctl
";
    assert_filtered(&daemon, attack);
}

#[test]
fn io_uring_can_not_be_set_up() {
    let daemon = daemon!();
    let attack = "
print(call(425, 8, 0))                      # io_uring_setup
print(call(426, -1, 0, 0, 0, 0, 0))         # io_uring_enter
print(call(427, -1, 0, 0, 0))               # io_uring_register
";
    assert_filtered(&daemon, attack);
}

#[test]
fn kernel_interfaces_for_programs_are_closed() {
    let daemon = daemon!();
    let attack = "
print(call(321, 0, 0, 0))                   # bpf
print(call(298, 0, 0, -1, -1, 0))           # perf_event_open
print(call(323, -1))                        # userfaultfd
print(call(278, -1, 0, 0, 0))               # vmsplice
print(call(303, -1, 0, 0, 0, 0))            # name_to_handle_at
print(call(304, -1, 0, 0))                  # open_by_handle_at
print(call(300, -1, 0))                     # fanotify_init
print(call(317, 99, 0, 0))                  # seccomp
print(call(444, 0, 0, 99))                  # landlock_create_ruleset
";
    assert_filtered(&daemon, attack);
}

#[test]
fn nothing_can_be_mounted() {
    let daemon = daemon!();
    // mount, umount2, pivot_root, chroot, open_tree, move_mount, fsopen, fsmount, mount_setattr, statmount, listmount.
    let attack = "
for number in (165, 166, 155, 161, 428, 429, 430, 432, 442, 457, 458): print(call(number, 0, 0, 0, 0, 0))
";
    assert_filtered(&daemon, attack);
}

#[test]
fn the_host_itself_can_not_be_changed() {
    let daemon = daemon!();
    // sethostname, settimeofday, clock_settime, swapon, reboot, acct, quotactl.
    let attack = "for number in (170, 164, 227, 167, 169, 163, 179): print(call(number, 0, 0, 0, 0, 0))";
    assert_filtered(&daemon, attack);
}

#[test]
fn modules_other_kernels_and_ports_are_closed_where_the_kernel_has_them() {
    let daemon = daemon!();
    // init_module, finit_module, delete_module, kexec_load, iopl, ioperm. Not every kernel has them.
    let attack = "for number in (175, 313, 176, 246, 172, 173): print(call(number, 0, 0, 0, 0, 0))";
    assert_eq!(inside(&daemon, attack), ["ENOSYS"; 6]);
}

#[test]
fn the_kernel_log_can_not_be_read() {
    let daemon = daemon!();
    assert_filtered(&daemon, "print(call(103, 3, ctypes.create_string_buffer(64), 64))");
    let script = "dmesg 2>/dev/null | wc -l; cat /dev/kmsg /proc/kmsg 2>/dev/null | head -c 100 | wc -c";
    assert_eq!(daemon.stdout(sh(script)), "0\n0\n");
}

#[test]
fn terminals_can_not_be_typed_into_whatever_the_high_bits_say() {
    let daemon = daemon!();
    // TIOCSTI, TIOCLINUX, TIOCSETD, plain and with bits beyond the 32 that the kernel reads.
    let attack = "
ours, theirs = os.openpty()
buffer = ctypes.create_string_buffer(b'\\x06x')
for request in (0x5412, 0x541C, 0x5423):
    for high in (0, 1, 0x5eadbeef): print(call(16, theirs, request | high << 32, buffer))
";
    assert_filtered(&daemon, attack);
}

#[test]
fn device_nodes_can_not_be_made() {
    let daemon = daemon!();
    // Character and block devices by mknod and mknodat, also the harmless looking 0/0.
    let attack = "
path = ctypes.c_char_p(b'/tmp/brig-test-node')
for mode in (0o20666, 0o60666):
    for device in (0, 0x103, 0x800):
        print(call(133, path, mode, device))
        print(call(259, -100, path, mode, device))
        if os.path.exists('/tmp/brig-test-node'): os.remove('/tmp/brig-test-node')
";
    assert_filtered(&daemon, attack);
    assert_eq!(daemon.stdout(sh("mkfifo f && test -p f && echo fifo")), "fifo\n");
}

#[test]
fn shared_memory_and_queues_of_system_v_and_posix_are_closed() {
    let daemon = daemon!();
    let attack = "
print(call(29, 0, 4096, 0o600))         # shmget(IPC_PRIVATE)
print(call(64, 0, 1, 0o600))            # semget
print(call(68, 0, 0o600))               # msgget
print(call(240, 0, 0, 0, 0))            # mq_open
";
    assert_filtered(&daemon, attack);
}

#[test]
fn the_x32_abi_is_closed() {
    let daemon = daemon!();
    let outcome = daemon.run(small(
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n\
         print(libc.syscall(ctypes.c_long(0x40000000 + 39)), ctypes.get_errno())",
    ));
    let refused = outcome.stdout() == "-1 38\n";
    let killed = outcome.end() == (Status::Killed, Some(CauseKind::SyscallDenied));
    assert!(refused || killed, "{:?} {}", outcome.end(), outcome.stdout());
}

#[test]
fn addresses_stay_random() {
    let daemon = daemon!();
    // personality: ADDR_NO_RANDOMIZE, READ_IMPLIES_EXEC.
    let answers = inside(&daemon, "print(call(135, 0x0040000))\nprint(call(135, 0x0400000))");
    assert!(answers.iter().all(|answer| answer != "ok"), "{answers:?}");
}

#[test]
fn privileges_can_not_be_gained_by_any_call_that_gives_them() {
    let daemon = daemon!();
    let attack = "
actions = (lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgroups([0]), lambda: os.setgid(0),
           lambda: os.seteuid(999), lambda: os.nice(-5), lambda: os.chroot('/tmp'))
for action in actions: print(tried(action))
";
    let answers = inside(&daemon, attack);
    let refused = ["EPERM", "ENOSYS", "EACCES", "EINVAL"];
    assert!(
        answers.iter().all(|answer| refused.contains(&answer.as_str())),
        "{answers:?}"
    );
    let text = daemon.stdout(code("import os\nprint(os.getresuid(), os.getresgid(), os.getgroups())"));
    assert_eq!(text, "(1000, 1000, 1000) (1000, 1000, 1000) []\n");
}
