//! Names that arguments are compared with, so that a group says `AF_UNIX` and not 1.
#![forbid(unsafe_code)]

/// Every kind of namespace that clone(2) makes; CLONE_NEWTIME shares its bits with the signal and is clone3's alone.
const NEW_ANY: i32 = libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS;

/// Values as the kernel compares them: 32 bits.
const CONSTANTS: &[(&str, i64)] = &[
    ("AF_UNIX", libc::AF_UNIX as i64),
    ("AF_INET", libc::AF_INET as i64),
    ("AF_INET6", libc::AF_INET6 as i64),
    ("AF_NETLINK", libc::AF_NETLINK as i64),
    ("SOCK_STREAM", libc::SOCK_STREAM as i64),
    ("SOCK_DGRAM", libc::SOCK_DGRAM as i64),
    // The flags that socket(2) takes in the same argument are above this mask.
    ("SOCK_TYPE_MASK", 0xf),
    ("IPPROTO_IP", libc::IPPROTO_IP as i64),
    ("IPPROTO_TCP", libc::IPPROTO_TCP as i64),
    ("IPPROTO_UDP", libc::IPPROTO_UDP as i64),
    // asm-generic/ioctls.h; libc has another type for them on each platform.
    ("TIOCSTI", 0x5412),
    // mmap(2), memfd_create(2).
    ("MAP_HUGETLB", 0x4_0000),
    ("MFD_HUGETLB", 4),
    // fcntl(2).
    ("F_NOTIFY", 1026),
    // prctl(2), linux/prctl.h.
    ("PR_SET_MEMORY_MERGE", 67),
    ("PR_SET_SECCOMP", libc::PR_SET_SECCOMP as i64),
    // setsockopt(2), socket(7).
    ("SOL_SOCKET", libc::SOL_SOCKET as i64),
    ("SO_ATTACH_FILTER", libc::SO_ATTACH_FILTER as i64),
    ("SO_ATTACH_BPF", libc::SO_ATTACH_BPF as i64),
    ("SO_ATTACH_REUSEPORT_CBPF", libc::SO_ATTACH_REUSEPORT_CBPF as i64),
    ("SO_ATTACH_REUSEPORT_EBPF", libc::SO_ATTACH_REUSEPORT_EBPF as i64),
    ("TIOCLINUX", 0x541c),
    ("TIOCSETD", 0x5423),
    ("CLONE_NEWUSER", libc::CLONE_NEWUSER as i64),
    ("CLONE_NEW_ANY", NEW_ANY as i64),
    ("CLONE_PARENT", libc::CLONE_PARENT as i64),
    ("CLONE_PTRACE", libc::CLONE_PTRACE as i64),
    ("S_IFMT", libc::S_IFMT as i64),
    ("S_IFIFO", libc::S_IFIFO as i64),
    ("PER_LINUX", 0),
    // personality(2): asks, changes nothing.
    ("PER_QUERY", 0xffff_ffff),
];

/// Finds a constant by name.
pub(super) fn constant(name: &str) -> Option<u32> {
    let (_, value) = CONSTANTS.iter().find(|(known, _)| *known == name)?;
    u32::try_from(*value).ok()
}

/// Goes through all names.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    CONSTANTS.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_fits_the_32_bits_it_is_compared_in() {
        assert!(names().all(|name| constant(name).is_some()));
        assert_eq!(
            [constant("AF_UNIX"), constant("CLONE_NEWUSER"), constant("AF_ALG")],
            [Some(1), Some(0x1000_0000), None]
        );
    }
}
