//! Runs a filter in user space, to say what the kernel would answer to a call without making it.
//!
//! A call that fails tells little: with the default answer ENOSYS, "refused" and "not in this kernel" look the same.
//! Only the instructions that filters are made of are known here; anything else, and running off the end, is the
//! kernel's answer to a broken program: kill.
//!
//! Source: seccomp(2), `struct seccomp_data`; Documentation/networking/filter.rst of the kernel.
#![forbid(unsafe_code)]

/// Answer of a filter: the whole process dies.
pub const KILL_PROCESS: u32 = libc::SECCOMP_RET_KILL_PROCESS;
/// Answer of a filter: the call is made.
pub const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
/// Answer of a filter: the call fails with ENOSYS.
pub const ENOSYS: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();

const LOAD_WORD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const JUMP_GREATER_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;

/// Gives the answer of one program to a call.
pub fn evaluate(program: &[u8], arch: u32, nr: u32, args: [u64; 6]) -> u32 {
    let (instructions, _) = program.as_chunks::<8>();
    let data = call_data(arch, nr, args);
    let mut accumulator = 0_u32;
    let mut at = 0_usize;
    while let Some(instruction) = instructions.get(at) {
        let [code_low, code_high, if_true, if_false, k @ ..] = *instruction;
        let k = u32::from_le_bytes(k);
        let branch = |taken: bool| usize::from(if taken { if_true } else { if_false });
        at += 1;
        match u16::from_le_bytes([code_low, code_high]) {
            LOAD_WORD => match usize::try_from(k / 4).ok().and_then(|word| data.get(word)) {
                Some(word) if k.is_multiple_of(4) => accumulator = *word,
                _ => return KILL_PROCESS,
            },
            AND => accumulator &= k,
            JUMP => at = usize::try_from(k).map_or(usize::MAX, |k| at.saturating_add(k)),
            JUMP_EQUAL => at += branch(accumulator == k),
            JUMP_GREATER => at += branch(accumulator > k),
            JUMP_GREATER_EQUAL => at += branch(accumulator >= k),
            RETURN => return k,
            _ => return KILL_PROCESS,
        }
    }
    KILL_PROCESS
}

/// `struct seccomp_data` as the words that a filter loads: nr, arch, instruction pointer, six arguments, low word first.
fn call_data(arch: u32, nr: u32, args: [u64; 6]) -> [u32; 16] {
    let mut data = [0; 16];
    data[0] = nr;
    data[1] = arch;
    for (words, arg) in data[4..].chunks_exact_mut(2).zip(args) {
        let [a, b, c, d, e, f, g, h] = arg.to_le_bytes();
        words.copy_from_slice(&[u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]);
    }
    data
}
