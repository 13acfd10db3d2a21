"""A zygote: an interpreter that has imported what the template names, and is forked into sessions.

The fork itself is native (`libbrig_fork.so`, from the crate brig-fork): the address space is copied once, and between the
copy and the sealed child no Python runs. What is here decides whether an interpreter can be a zygote at all: what its
imports left behind must not be shared by its children, who belong to different people. Memory that is mapped for writing
by all, a second thread, an open file: each makes children that are not of their own, and is refused with the name of the
import.

Fork detection by pid works: a zygote has a pid that no session has.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from brig_kernel.channel import Channel

LIBRARY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "libbrig_fork.so")
# The socket to the jailer, where the jailer puts it.
CONTROL = 5
# Where imports can leave files, which each child gets in its own session: at most so many bytes of them.
WRITABLE = ("/tmp", "/dev/shm")
MAX_LEFT = 4 << 20
# madvise(2), Linux 6.1: the size of a large page on x86-64, and what asks for some. What is longer than that is reserved,
# not used.
LARGE = 2 << 20
LARGEST = 256 << 20
COLLAPSE = 25
# How many words of 32 bits the state of numpy's legacy generator has.
WORDS = 624


class NoZygoteError(Exception):
    """The interpreter can't be forked into sessions."""


def serve(channel: Channel) -> None:
    """Returns in children alone, each in its session."""
    fork = load()
    # What has to be set up for that is done once, and here.
    reseed()
    tighten()
    left = list(files())
    channel.send({"ev": "zygote"})
    status = fork()
    if status != 1:
        # The jailer has closed its end.
        os._exit(0 if status == 0 else 1)
    channel.renew(3, 4)
    reseed()
    for path, mode, content in left:
        put(path, mode, content)


def load():  # type: ignore[no-untyped-def]
    """The function that serves until this is a child."""
    import ctypes

    try:
        library = ctypes.PyDLL(LIBRARY)
        errno = -library.brig_fork_check()
    except (OSError, AttributeError) as error:
        # Without the calls, it was built for a processor that nobody has written them for.
        raise NoZygoteError(f"{error}") from None
    if errno:
        raise NoZygoteError(f"prctl(PR_GET_TID_ADDRESS): {os.strerror(errno)}")
    names = ("PyOS_BeforeFork", "PyOS_AfterFork_Parent", "PyOS_AfterFork_Child")
    hooks = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in names]
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return lambda: library.brig_fork_serve(CONTROL, *hooks)


def tighten() -> None:
    """Makes a fork and what follows it cheaper: what is free goes back to the kernel, and the rest lies in large pages,
    of which there are fewer entries to be copied and taken away again. What the kernel or the C library can't do is left.
    """
    import ctypes

    library = ctypes.CDLL(None)
    try:
        library.malloc_trim(0)
        madvise = library.madvise
    except AttributeError:
        return
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        lines = maps.readlines()
    for line in lines:
        place, rights, _, _, inode, *_ = line.split()
        if inode != "0" or not rights.startswith("rw"):
            continue
        start, end = (int(number, 16) for number in place.split("-"))
        start, end = -(-start // LARGE) * LARGE, end // LARGE * LARGE
        if start < end <= start + LARGEST:
            madvise(start, end - start, COLLAPSE)


def look(ours: set[str]) -> str | None:
    """What would be shared by all children, if there is anything. `ours` are the descriptors that are known."""
    if len(os.listdir("/proc/self/task")) > 1:
        return "it leaves a second thread running"
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as maps:
        path = ""
        for line in maps:
            if line.startswith("VmFlags:"):
                flags = line.split()
                # Shared, and writable now or once somebody asks for it.
                if "sh" in flags and "mw" in flags:
                    return f"it maps memory that all processes forked from it would share ({path or 'without a name'})"
            elif "-" in line.split(None, 1)[0]:
                path = "".join(line.split(None, 5)[5:]).strip()
    for number in descriptors() - ours:
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # That of the listing itself.
        return f"it leaves descriptor {number} open ({target})"
    try:
        for _ in files():
            pass
    except NoZygoteError as error:
        return str(error)
    return None


def files() -> Iterator[tuple[str, int, bytes | None]]:
    """What lies in the writable folders: path, mode and content; directories, which come before what is in them, have none."""
    import stat

    size = 0
    folders = list(WRITABLE)
    while folders:
        folder = folders.pop()
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            content = None
            if stat.S_ISDIR(status.st_mode):
                folders.append(path)
            elif stat.S_ISREG(status.st_mode):
                size += status.st_size
                if size > MAX_LEFT:
                    raise NoZygoteError(f"it leaves more than {MAX_LEFT >> 20} MiB of files ({path})")
                with open(path, "rb") as file:
                    content = file.read()
            else:
                raise NoZygoteError(f"it leaves {path}, which is neither a file nor a directory")
            yield path, stat.S_IMODE(status.st_mode), content


def put(path: str, mode: int, content: bytes | None) -> None:
    """Makes a file or directory of the zygote's in this session."""
    try:
        if content is None:
            os.mkdir(path)
        else:
            # What makes a file object of it writes to 30 pages more.
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
            try:
                view = memoryview(content)
                while view:
                    view = view[os.write(file, view) :]
            finally:
                os.close(file)
        os.chmod(path, mode)
    except OSError:
        pass  # A full disk: the module that misses it says so.


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def reseed() -> None:
    """Gives this process random numbers of its own. `random` does that by itself, after each fork."""
    if "numpy.random" in sys.modules:
        numpy = sys.modules["numpy"]
        # The state as a whole: seed() makes it of fewer bits and writes to twice as many pages.
        words = numpy.frombuffer(os.urandom(4 * WORDS), dtype=numpy.uint32)
        numpy.random.set_state(("MT19937", words, WORDS))
    ssl = sys.modules.get("_ssl")
    if ssl is not None:
        ssl.RAND_add(os.urandom(64), 64.0)
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile._name_sequence = None
    uuid = sys.modules.get("uuid")
    if uuid is not None:
        uuid._node = uuid._last_timestamp = None
