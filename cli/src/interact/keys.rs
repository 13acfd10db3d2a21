//! The keys that leave a program running: Ctrl-P, then Ctrl-Q.

const CTRL_P: u8 = 0x10;
const CTRL_Q: u8 = 0x11;

/// Looks for the detach keys in what is typed.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    /// Ctrl-P came last, and was held back.
    held: bool,
}

/// What typed bytes mean.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Typed {
    /// For the program.
    pub(crate) bytes: Vec<u8>,
    /// Whether the keys to leave came behind them.
    pub(crate) leaves: bool,
}

impl Keys {
    /// Takes what was typed. A Ctrl-P waits for the next key.
    pub(crate) fn take(&mut self, typed: &[u8]) -> Typed {
        let mut bytes = Vec::with_capacity(typed.len() + 1);
        for byte in typed {
            if std::mem::take(&mut self.held) {
                if *byte == CTRL_Q {
                    return Typed { bytes, leaves: true };
                }
                bytes.push(CTRL_P);
            }
            if *byte == CTRL_P {
                self.held = true;
            } else {
                bytes.push(*byte);
            }
        }
        Typed { bytes, leaves: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(pieces: &[&[u8]]) -> (Vec<u8>, bool) {
        let mut keys = Keys::default();
        let mut all = Vec::new();
        for piece in pieces {
            let Typed { bytes, leaves } = keys.take(piece);
            all.extend(bytes);
            if leaves {
                return (all, true);
            }
        }
        (all, false)
    }

    #[test]
    fn the_keys_leave_however_they_come() {
        assert_eq!(typed(&[b"ab\x10\x11cd"]), (b"ab".to_vec(), true));
        assert_eq!(typed(&[b"a\x10", b"\x11"]), (b"a".to_vec(), true));
        assert_eq!(typed(&[b"\x10\x10\x11"]), (b"\x10".to_vec(), true));
    }

    #[test]
    fn all_else_reaches_the_program() {
        assert_eq!(
            typed(&[b"\x10a\x11", b"\x10", b"\x03"]),
            (b"\x10a\x11\x10\x03".to_vec(), false)
        );
        assert_eq!(typed(&[b"\x10"]), (Vec::new(), false), "it waits for the next key");
    }
}
