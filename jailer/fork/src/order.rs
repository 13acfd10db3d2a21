//! What the jailer sends a zygote, and what comes back: one packet each.
//!
//! An order is a head ([`Order`]) and the programs of the session's filter behind it, with these descriptors beside it:
//! the namespaces in the order of [`NAMESPACES`], the directory of the leaf in the version 2 tree, its version 1 `tasks`
//! files, stdin, stdout, stderr, the request pipe, the frame pipe, the Landlock rules, and the pipe for the report.
//!
//! The report is written by the child: [`REPORT`] bytes, the number of the step and the errno, both zero when it is sealed.

/// Flags of setns(2) in the order of their descriptors.
pub const NAMESPACES: [usize; 7] = [
    0x1000_0000, // CLONE_NEWUSER: gives the capabilities that the others take
    0x0002_0000, // CLONE_NEWNS
    0x2000_0000, // CLONE_NEWPID: for children
    0x4000_0000, // CLONE_NEWNET
    0x0800_0000, // CLONE_NEWIPC
    0x0400_0000, // CLONE_NEWUTS
    0x0200_0000, // CLONE_NEWCGROUP: joined by the child, behind the fork into the session's group
];
/// The most `tasks` files of one leaf.
pub const TASKS_MAX: usize = 3;
/// Descriptors of the child: stdin, stdout, stderr, requests, frames.
pub const STREAMS: usize = 5;
/// Descriptors of an order without `tasks` files: the leaf, rules and report are one each.
pub const DESCRIPTORS: usize = NAMESPACES.len() + STREAMS + 3;
/// The longest path of a working directory, in bytes.
pub const DIRECTORY_MAX: usize = 255;
/// The largest filter, in bytes.
pub const FILTER_MAX: usize = 40 << 10;
/// The most programs of a filter.
pub const PROGRAMS_MAX: usize = 4;
/// Bytes of an order's head.
pub const HEAD: usize = 8 + 4 + 4 * PROGRAMS_MAX + 1 + DIRECTORY_MAX;
/// Bytes of an answer.
pub const ANSWER: usize = 12;
/// Bytes of a report.
pub const REPORT: usize = 8;

/// The head of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// Comes back with the answer.
    pub number: u64,
    /// How many `tasks` files there are.
    pub tasks: u32,
    /// Bytes of each program of the filter; 0 where there is none.
    pub programs: [u32; PROGRAMS_MAX],
    /// The working directory, ended by a NUL.
    pub directory: [u8; DIRECTORY_MAX + 1],
}

/// The answer to an order: the child's pid in its session, or why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    pub number: u64,
    /// Negative: an errno.
    pub pid: i32,
}

impl Order {
    /// Draws up an order; nothing if the directory or the filter is longer than one can say.
    pub fn new<'f>(
        number: u64,
        tasks: usize,
        directory: &[u8],
        filter: impl IntoIterator<Item = &'f [u8]>,
    ) -> Option<Self> {
        let mut order = Self {
            number,
            tasks: u32::try_from(tasks).ok().filter(|_| tasks <= TASKS_MAX)?,
            programs: [0; PROGRAMS_MAX],
            directory: [0; DIRECTORY_MAX + 1],
        };
        order.directory[..DIRECTORY_MAX]
            .get_mut(..directory.len())?
            .copy_from_slice(directory);
        let mut programs = order.programs.iter_mut();
        let mut all = 0;
        for program in filter {
            *programs.next()? = u32::try_from(program.len()).ok()?;
            all += program.len();
        }
        (all <= FILTER_MAX && !directory.contains(&0)).then_some(order)
    }

    pub fn to_bytes(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.tasks.to_le_bytes());
        for (place, size) in bytes[12..].chunks_mut(4).zip(self.programs) {
            place.copy_from_slice(&size.to_le_bytes());
        }
        bytes[12 + 4 * PROGRAMS_MAX..].copy_from_slice(&self.directory);
        bytes
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let mut programs = [0; PROGRAMS_MAX];
        for (index, size) in programs.iter_mut().enumerate() {
            *size = word(12 + 4 * index)?;
        }
        Some(Self {
            number: u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?),
            tasks: word(8).filter(|count| *count as usize <= TASKS_MAX)?,
            programs,
            directory: bytes.get(12 + 4 * PROGRAMS_MAX..HEAD)?.try_into().ok()?,
        })
    }
}

impl Answer {
    pub fn to_bytes(self) -> [u8; ANSWER] {
        let mut bytes = [0; ANSWER];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..].copy_from_slice(&self.pid.to_le_bytes());
        bytes
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (number, pid) = bytes.split_at_checked(8)?;
        Some(Self {
            number: u64::from_le_bytes(number.try_into().ok()?),
            pid: i32::from_le_bytes(pid.try_into().ok()?),
        })
    }
}

/// The steps of a child that can fail, by the number that its report has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Step {
    JoinLeaf = 1,
    CgroupNamespace = 2,
    Setsid = 3,
    Streams = 4,
    DropPrivileges = 5,
    Directory = 6,
    NoNewPrivs = 7,
    Landlock = 8,
    Seccomp = 9,
    Dumpable = 10,
}

impl Step {
    pub const ALL: [Self; 10] = [
        Self::JoinLeaf,
        Self::CgroupNamespace,
        Self::Setsid,
        Self::Streams,
        Self::DropPrivileges,
        Self::Directory,
        Self::NoNewPrivs,
        Self::Landlock,
        Self::Seccomp,
        Self::Dumpable,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_comes_out_as_it_went_in() {
        let programs: [&[u8]; 2] = [&[1; 16], &[2; 8]];
        let order = Order::new(7, 3, b"/home/user", programs).unwrap();
        assert_eq!(order.programs, [16, 8, 0, 0]);
        assert_eq!(Order::from_bytes(&order.to_bytes()), Some(order));
        assert_eq!(Order::from_bytes(&order.to_bytes()[1..]), None);
    }

    #[test]
    fn what_an_order_can_not_say_is_none() {
        let no_filter: [&[u8]; 0] = [];
        let long = [b'a'; DIRECTORY_MAX + 1];
        assert_eq!(Order::new(1, 0, &long, no_filter), None);
        assert!(Order::new(1, 0, &long[1..], no_filter).is_some());
        assert_eq!(Order::new(1, 0, b"/a\0b", no_filter), None);
        assert_eq!(Order::new(1, TASKS_MAX + 1, b"/", no_filter), None);
        let large: [&[u8]; 1] = [&[0; FILTER_MAX + 8]];
        assert_eq!(Order::new(1, 0, b"/", large), None);
        let many: [&[u8]; PROGRAMS_MAX + 1] = [&[0; 8]; PROGRAMS_MAX + 1];
        assert_eq!(Order::new(1, 0, b"/", many), None);
    }

    #[test]
    fn an_answer_comes_out_as_it_went_in() {
        for pid in [3, -13] {
            let answer = Answer { number: 9, pid };
            assert_eq!(Answer::from_bytes(&answer.to_bytes()), Some(answer));
        }
        assert_eq!(Answer::from_bytes(&[0; 7]), None);
        assert_eq!(Answer::from_bytes(&[0; 13]), None);
    }
}
