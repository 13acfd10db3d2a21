"""What code can see and do of its jail, as JSON: the list in docs/jail.md, "Sessions that are made ahead".

Each value is the same in a session that was made when it was asked for and in one that had waited.
"""

import ctypes
import errno
import fcntl
import glob
import json
import os
import re
import resource
import signal
import socket
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError as error:
        return errno.errorcode[error.errno]


def outcome(attempt):
    """What comes of something that may be refused."""
    try:
        attempt()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"


def status():
    """Identity, capabilities, filters and masks; not what is used, which is each session's own."""
    own = (
        "Name Umask State TracerPid Uid Gid FDSize Groups NStgid NSpid NSpgid NSsid Threads SigPnd ShdPnd SigBlk SigIgn"
        " CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs Seccomp Seccomp_filters Cpus_allowed PPid Pid Tgid"
    ).split()
    lines = (line.split(":", 1) for line in read("/proc/self/status").splitlines())
    return {name: value.split() for name, value in lines if name in own}


def calls():
    """Each system call by number, with arguments that can do no harm; those that end or stop a process are left out."""
    ends = "0 3 11 12 15 22 34 35 56 57 58 59 60 61 62 95 130 200 230 231 234 247 297 322 335 336 435 436"
    waits = "7 23 43 45 47 65 73 128 202 208 219 232 240 243 250 270 271 281 288 299 317 441 449"
    spared = {int(number) for number in f"{ends} {waits}".split()}
    found = {}
    for number in range(470):
        if number in spared:
            continue
        ctypes.set_errno(0)
        LIBC.syscall(number, -1, -1, -1, -1, -1, -1)
        # Those of the filter are ENOSYS; what else is said depends on the arguments alone.
        found[number] = ctypes.get_errno() == errno.ENOSYS
    return [number for number, missing in sorted(found.items()) if missing]


def writable():
    """Where a file can be made."""
    places = "/ /dev /dev/shm /etc /home /home/user /proc /run /tmp /usr /usr/lib/brig /var".split()

    def make(place):
        path = os.path.join(place, ".probe")
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        os.unlink(path)

    return {place: outcome(lambda place=place: make(place)) for place in places}


def mounts():
    """Mount points with their options; numbers of mounts and devices are each session's own."""
    lines = (line.split() for line in read("/proc/self/mountinfo").splitlines())
    return sorted([parts[3], parts[4], parts[5], parts[parts.index("-") + 1]] for parts in lines)


def descriptors():
    """Open descriptors, without the one that lists them."""
    found = {}
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
            flags = fcntl.fcntl(int(name), fcntl.F_GETFD), fcntl.fcntl(int(name), fcntl.F_GETFL)
        except OSError:
            continue
        found[name] = [re.sub(r"\d+", "N", target), *flags]
    return found


def neighbours():
    """Other processes, and what can be done to them."""
    found = []
    for path in sorted(glob.glob("/proc/[0-9]*"), key=lambda path: int(path[6:])):
        pid = int(path[6:])
        if pid != os.getpid():
            name = read(path + "/comm").strip()
            reach = {part: read(f"{path}/{part}")[:6] for part in ("environ", "maps", "mem", "io")}
            found.append([pid, name, outcome(lambda pid=pid: os.kill(pid, 0)), reach])
    return found


def reach():
    """What must not work."""
    raw = socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP
    return {
        "setuid": outcome(lambda: os.setuid(0)),
        "chroot": outcome(lambda: os.chroot("/tmp")),
        "nice": outcome(lambda: os.nice(-1)),
        "raw": outcome(lambda: socket.socket(*raw)),
        "packet": outcome(lambda: socket.socket(17, socket.SOCK_RAW, 0)),
        "netlink": outcome(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)),
        "connect": outcome(lambda: socket.create_connection(("192.0.2.1", 80), 1)),
        "kill": outcome(lambda: os.kill(1, signal.SIGKILL)),
        "root": read("/proc/1/root/etc/passwd")[:6],
        "memory": outcome(lambda: os.open("/proc/self/mem", os.O_RDWR)),
        "chmod": outcome(lambda: os.chmod("/etc/passwd", 0o666)),
        "device": outcome(lambda: os.mknod("/tmp/null", 0o20666, os.makedev(1, 3))),
    }


def limits():
    named = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {name: resource.getrlimit(getattr(resource, name)) for name in named}


def spaces():
    """Sizes of what can be written."""
    found = {}
    for place in ("/home/user", "/tmp", "/dev/shm"):
        stat = os.statvfs(place)
        found[place] = [stat.f_blocks * stat.f_frsize, stat.f_files, stat.f_flag]
    return found


def interfaces():
    return sorted(line.split(":")[0].strip() for line in read("/proc/net/dev").splitlines() if ":" in line)


def dumpable():
    return LIBC.prctl(3, 0, 0, 0, 0)


def owner(path):
    stat = os.stat(path)
    return [stat.st_uid, stat.st_gid, oct(stat.st_mode)]


def state():
    terminal = bytearray(8)
    return {
        "argv": sys.argv,
        "environ": dict(sorted(os.environ.items())),
        "cwd": os.getcwd(),
        "umask": os.umask(0o22),
        "flags": str(sys.flags),
        "path": sys.path,
        "executable": sys.executable,
        "cmdline": read("/proc/self/cmdline"),
        "start environ": sorted(read("/proc/self/environ").split("\0")),
        "scheduler": [os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)],
        "adjust": read("/proc/self/oom_score_adj"),
        "signals": {number: str(signal.getsignal(number)) for number in range(1, 32)},
        "session": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid(), os.getppid()],
        "terminal": outcome(lambda: fcntl.ioctl(0, 0x5413, terminal)),
        "home": sorted(os.listdir("/home/user")),
        "trace": sys.gettrace() is None and sys.getprofile() is None,
        "recursion": sys.getrecursionlimit(),
        "names": sorted(name for name in vars(sys.modules["__main__"]) if name.startswith("__")),
        "host": [socket.gethostname(), os.uname().release],
        "maps": [read(f"/proc/self/{name}").split()[0::2] for name in ("uid_map", "gid_map")],
        "setgroups": read("/proc/self/setgroups"),
        "group": sorted(line.split(":", 1)[1] for line in read("/proc/self/cgroup").splitlines()),
        "cloexec": struct.unpack("i", fcntl.ioctl(1, 0x541B, b"\0" * 4))[0] >= 0,
    }


SEEN = {
    "status": status(),
    "descriptors": descriptors(),
    "state": state(),
    "neighbours": neighbours(),
    "mounts": mounts(),
    "user limits": {path: read(path) for path in sorted(glob.glob("/proc/sys/user/*"))},
    "limits": limits(),
    "spaces": spaces(),
    "owners": {path: owner(path) for path in ("/", "/home/user", "/tmp", "/dev/shm", "/dev/null", "/proc/self/mem")},
    "interfaces": interfaces(),
    "dumpable": dumpable(),
    "writable": writable(),
    "reach": reach(),
    "filtered": calls(),
}
print(json.dumps(SEEN, sort_keys=True))
