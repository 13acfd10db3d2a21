//! Ids that the command line makes itself.

/// Makes an id that nobody had before: a letter and 26 of 32 digits, 130 random bits.
///
/// Matches `^[a-z][a-z0-9]{0,39}$`.
pub(crate) fn random_id() -> String {
    const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let mut bytes = [0_u8; 26];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .expect("reads of at most 256 bytes are not interrupted once the kernel's pool is ready");
    bytes.iter().fold(String::from("r"), |mut id, byte| {
        id.push(char::from(DIGITS[usize::from(byte % 32)]));
        id
    })
}

#[cfg(test)]
mod tests {
    use brig_jailer::ids::Id;

    use super::*;

    #[test]
    fn ids_are_valid_and_differ() {
        let (one, two) = (random_id(), random_id());
        assert!(Id::parse(&one).is_ok());
        assert_ne!(one, two);
    }
}
