//! What a link says, and its signature: the last part of its path.
//!
//! In base64 for URLs, without padding: the version (1 byte), the disposition (1), the end in milliseconds since 1970 (8,
//! big-endian), a tag of the tenant (16), the id of the artifact (1 to 40), and HMAC-SHA256 over all of these (32).
//!
//! The tag is a signature too, over artifact and tenant: nobody can tell from it which tenant it is, nor whether two
//! artifacts have the same one. Nothing of a link is looked up before its signature was found to be ours.

use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use brig_jailer::ids::Id;

use super::key::Key;
use crate::database::{to_millis, to_time};

/// The form of a link. Another form gets another number.
const VERSION: u8 = 1;
/// Version, disposition and end.
const HEAD: usize = 10;
const TAG: usize = 16;
const SIGNATURE: usize = 32;
/// The longest id of an artifact, in bytes.
const ID_MAX: usize = 40;
/// The longest link, in characters.
const TEXT_MAX: usize = (HEAD + TAG + ID_MAX + SIGNATURE).div_ceil(3) * 4;
/// What is signed begins with what it is, so that one can't pass for the other.
const LINK: &[u8] = b"brig link\0";
const TENANT: &[u8] = b"brig tenant\0";

/// What a link allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub artifact: Id,
    /// In whole milliseconds.
    pub expire_time: SystemTime,
    pub disposition: Disposition,
    tag: [u8; TAG],
}

/// What a browser does with the artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// Keeps it as a file.
    Attachment,
    /// Shows it.
    Inline,
}

impl Grant {
    /// Says what a link allows.
    pub fn new(key: &Key, tenant: &str, artifact: &Id, expire_time: SystemTime, disposition: Disposition) -> Self {
        Self {
            tag: tag(key, tenant, artifact),
            artifact: artifact.clone(),
            expire_time: to_time(to_millis(expire_time)),
            disposition,
        }
    }

    /// Writes and signs it.
    pub(super) fn sign(&self, key: &Key) -> String {
        let disposition = match self.disposition {
            Disposition::Attachment => 0,
            Disposition::Inline => 1,
        };
        let mut bytes = vec![VERSION, disposition];
        bytes.extend(to_millis(self.expire_time).to_be_bytes());
        bytes.extend(self.tag);
        bytes.extend(self.artifact.as_str().as_bytes());
        let signature = key.sign(&[LINK, &bytes]);
        bytes.extend(signature);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads it, if the signature is ours.
    pub(super) fn read(key: &Key, text: &str) -> Option<Self> {
        if text.len() > TEXT_MAX {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (signed, signature) = bytes.split_at_checked(bytes.len().checked_sub(SIGNATURE)?)?;
        if !key.verify(&[LINK, signed].concat(), signature) {
            return None;
        }
        let (head, rest) = signed.split_first_chunk::<HEAD>()?;
        let (tag, artifact) = rest.split_first_chunk::<TAG>()?;
        let ([VERSION, disposition], end) = head.split_first_chunk::<2>()? else {
            return None;
        };
        Some(Self {
            artifact: Id::parse(std::str::from_utf8(artifact).ok()?).ok()?,
            expire_time: to_time(i64::from_be_bytes(end.try_into().ok()?)),
            disposition: match disposition {
                0 => Disposition::Attachment,
                1 => Disposition::Inline,
                _ => return None,
            },
            tag: *tag,
        })
    }

    /// Whether the artifact is the tenant's that it was made for.
    pub(super) fn is_of(&self, key: &Key, tenant: &str) -> bool {
        // It is signed: nobody can try others.
        self.tag == tag(key, tenant, &self.artifact)
    }
}

fn tag(key: &Key, tenant: &str, artifact: &Id) -> [u8; TAG] {
    // No id has a NUL.
    let signature = key.sign(&[TENANT, artifact.as_str().as_bytes(), b"\0", tenant.as_bytes()]);
    *signature.first_chunk().expect("a signature is longer than a tag")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn key() -> Key {
        Key::of(&[7; 32])
    }

    fn grant(artifact: &str, disposition: Disposition) -> Grant {
        let end = UNIX_EPOCH + Duration::from_millis(1_800_000_000_123);
        Grant::new(&key(), "blue", &Id::parse(artifact).unwrap(), end, disposition)
    }

    #[test]
    fn a_link_reads_back_as_it_was_made() {
        let longest = "a".repeat(40);
        for artifact in ["a", "a0123456789abcdef0123456789abcdef", &longest] {
            for disposition in [Disposition::Attachment, Disposition::Inline] {
                let made = grant(artifact, disposition);
                let read = Grant::read(&key(), &made.sign(&key())).unwrap();
                assert_eq!(read, made);
                assert!(read.is_of(&key(), "blue") && !read.is_of(&key(), "red"));
            }
        }
    }

    #[test]
    fn no_bit_of_a_link_can_be_changed() {
        let bytes = URL_SAFE_NO_PAD
            .decode(grant("a1b2", Disposition::Attachment).sign(&key()))
            .unwrap();
        assert_eq!(bytes.len(), HEAD + TAG + 4 + SIGNATURE);
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Grant::read(&key(), &URL_SAFE_NO_PAD.encode(changed)), None, "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert_eq!(Grant::read(&key(), &URL_SAFE_NO_PAD.encode(&bytes[..length])), None);
        }
        let longer = [&bytes[..], b"0"].concat();
        assert_eq!(Grant::read(&key(), &URL_SAFE_NO_PAD.encode(longer)), None);
    }

    #[test]
    fn no_character_of_a_link_can_be_changed_either() {
        let text = grant("a1b2", Disposition::Attachment).sign(&key());
        for place in 0..text.len() {
            for character in "AZaz09-_=+/%."
                .chars()
                .filter(|other| !text[place..].starts_with(*other))
            {
                let mut changed = text.clone();
                changed.replace_range(place..=place, &character.to_string());
                assert_eq!(Grant::read(&key(), &changed), None, "{changed}");
            }
        }
        for wrong in ["", "=", &format!("{text}="), &"A".repeat(TEXT_MAX), &"A".repeat(10_000)] {
            assert_eq!(Grant::read(&key(), wrong), None);
        }
    }

    #[test]
    fn only_the_same_key_and_the_same_purpose_count() {
        let made = grant("a1", Disposition::Attachment);
        assert_eq!(Grant::read(&Key::of(&[8; 32]), &made.sign(&key())), None);
        // A signature over the same bytes for another purpose.
        let mut bytes = URL_SAFE_NO_PAD.decode(made.sign(&key())).unwrap();
        bytes.truncate(bytes.len() - SIGNATURE);
        for prefix in [TENANT, b""] {
            let signature = key().sign(&[prefix, &bytes]);
            let forged = [&bytes[..], &signature].concat();
            assert_eq!(Grant::read(&key(), &URL_SAFE_NO_PAD.encode(forged)), None);
        }
    }

    #[test]
    fn what_is_signed_and_has_another_form_is_no_link() {
        for bytes in [
            &[][..],
            &[VERSION],
            &[2; HEAD + TAG + 2],
            &[VERSION; HEAD + TAG],
            &[VERSION; HEAD + TAG + 2],
        ] {
            let text = URL_SAFE_NO_PAD.encode([bytes, &key().sign(&[LINK, bytes])].concat());
            assert_eq!(Grant::read(&key(), &text), None, "{bytes:?}");
        }
    }

    #[test]
    fn a_link_says_nothing_of_its_tenant() {
        let of = |tenant: &str, artifact: &str| {
            let artifact = Id::parse(artifact).unwrap();
            Grant::new(&key(), tenant, &artifact, UNIX_EPOCH, Disposition::Attachment)
        };
        // As long whoever it is, and another one for each artifact.
        let lengths = ["a", "a tenant with a long name"].map(|tenant| of(tenant, "a1").sign(&key()).len());
        assert_eq!(lengths[0], lengths[1]);
        assert_ne!(of("blue", "a1").tag, of("blue", "a2").tag);
    }
}
