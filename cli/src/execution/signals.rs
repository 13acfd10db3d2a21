//! Names of signals.

/// Highest number of a signal on Linux.
const MAX: u32 = 64;

/// The standard signals of Linux on x86-64, by number from 1: signal(7).
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];

/// Reads a signal: `TERM`, `SIGTERM`, `sigterm` or `15`.
pub(super) fn parse(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse::<u32>()
        && (1..=MAX).contains(&number)
    {
        return Ok(number);
    }
    let upper = text.to_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    (1..)
        .zip(NAMES)
        .find_map(|(number, known)| (known == name).then_some(number))
        .ok_or_else(|| {
            let shown: String = text.chars().take(60).collect();
            format!("{shown:?} is not a signal: a name such as TERM or SIGUSR1, or a number from 1 to {MAX}")
        })
}

#[cfg(test)]
mod tests {
    use rustix::process::Signal;

    use super::*;

    #[test]
    fn names_are_those_of_the_kernel() {
        for (name, signal) in [
            ("HUP", Signal::HUP),
            ("SIGINT", Signal::INT),
            ("kill", Signal::KILL),
            ("SIGUSR1", Signal::USR1),
            ("sigterm", Signal::TERM),
            ("STKFLT", Signal::STKFLT),
            ("CONT", Signal::CONT),
            ("WINCH", Signal::WINCH),
            ("SYS", Signal::SYS),
        ] {
            assert_eq!(parse(name).map(u32::cast_signed), Ok(signal.as_raw()), "{name}");
        }
    }

    #[test]
    fn numbers_are_those_of_signals() {
        assert_eq!((parse("1"), parse("64")), (Ok(1), Ok(64)));
        for wrong in ["0", "65", "-1", "", "SIG", "TERMINATE", "9.0"] {
            let said = parse(wrong).unwrap_err();
            assert!(said.starts_with(&format!("{wrong:?} is not a signal")), "{said}");
        }
    }
}
