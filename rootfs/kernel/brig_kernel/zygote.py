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
# mprotect(2).
READ, WRITE, EXECUTE = 1, 2, 4
# How many words of 32 bits the state of numpy's legacy generator has. None of them is used when the position is behind all.
WORDS = 624


class NoZygoteError(Exception):
    """The interpreter can't be forked into sessions."""


def serve(channel: Channel) -> None:
    """Returns in children alone, each in its session."""
    # What has to be set up for that is done once, and here.
    words = seed()
    fork = load()
    tighten()
    left = list(files())
    channel.send({"ev": "zygote"})
    parent = os.getpid()
    status = fork()
    if status != 1:
        # The jailer has closed its end.
        os._exit(0 if status == 0 else 1)
    if os.getpid() == parent:
        # OpenSSL would take its state for its own, and give the numbers that every sibling gets.
        os._exit(1)
    channel.renew(3, 4)
    reseed(words)
    for path, mode, content in left:
        put(path, mode, content)


def gather() -> None:
    """Leads the memory of Python's objects into one region from here on, which `tighten` makes large pages of."""
    import ctypes

    try:
        allocate = ctypes.cast(ctypes.pythonapi.PyObject_SetArenaAllocator, ctypes.c_void_p)
        ctypes.PyDLL(LIBRARY).brig_fork_arenas(allocate)
    except (OSError, AttributeError):
        pass  # The fork needs the library too, and says that there is none.


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
    """Makes a fork and what follows it cheaper: what is free goes back to the kernel, and the rest lies in large pages and
    in few mappings, of which there is less to be copied and taken away again. What the kernel or the C library can't do
    is left.
    """
    import ctypes

    library = ctypes.CDLL(None)
    try:
        library.malloc_trim(0)
        madvise, mprotect = library.madvise, library.mprotect
    except AttributeError:
        return
    for function in (madvise, mprotect):
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    maps = list(mappings())
    for start, end, rights, place in maps:
        start, end = -(-start // LARGE) * LARGE, end // LARGE * LARGE
        if place is None and rights == "rw-p" and start < end <= start + LARGEST:
            madvise(start, end - start, COLLAPSE)
    # Of a library, what is only read gets the rights of its neighbor and becomes one mapping with that: pointers that the
    # loader has put right with its variables, all else with its code. Code that may call mprotect is kept from nothing.
    for before, (start, end, rights, place), after in zip([None, *maps], maps, [*maps[1:], None]):
        if rights != "r--p" or place is None:
            continue
        behind = before is not None and before[1] == start and before[3] == place and before[2]
        front = after is not None and after[0] == end and after[3] == place and after[2]
        if front == "rw-p" and behind != "r-xp":
            mprotect(start, end - start, READ | WRITE)
        elif "r-xp" in (behind, front):
            mprotect(start, end - start, READ | EXECUTE)


def mappings() -> Iterator[tuple[int, int, str, object]]:
    """What this process has mapped: start, end, rights, and where the file would lie if all of it were mapped there; parts
    of a file that have this in common and touch each other can become one mapping. None is memory without a file."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            addresses, rights, offset, device, inode, *_ = line.split()
            start, end = (int(number, 16) for number in addresses.split("-"))
            yield start, end, rights, None if inode == "0" else (device, inode, start - int(offset, 16))


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


def seed() -> memoryview | None:
    """Gives numpy's legacy generator a random state, and where its words lie: to write them there touches a tenth of the
    pages that set_state() does. The state as a whole: numpy.random.seed() makes it of fewer bits.
    """
    if "numpy.random" not in sys.modules:
        return None
    import ctypes

    random = sys.modules["numpy.random"]
    array = sys.modules["numpy"].frombuffer(os.urandom(4 * WORDS), dtype="uint32")
    try:
        random.set_state(("MT19937", array, WORDS))
    except ValueError:
        raise NoZygoteError("it leaves numpy.random with another generator than numpy's own") from None
    try:
        address = random.get_bit_generator().ctypes.state_address
    except AttributeError:  # numpy 1.23
        return None
    words = memoryview((ctypes.c_ubyte * (4 * WORDS)).from_address(address)).cast("B")
    return words if words == array.tobytes() else None


def reseed(words: memoryview | None) -> None:
    """Gives this process random numbers of its own. `random` does that by itself after each fork, and OpenSSL when it finds
    that the pid is another.
    """
    if words is not None:
        words[:] = os.urandom(len(words))
    else:
        seed()
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile._name_sequence = None
    uuid = sys.modules.get("uuid")
    if uuid is not None:
        uuid._node = uuid._last_timestamp = None
