//! The frames that messages travel in. A client may read and write them in its own way: nothing here does any I/O.
#![forbid(unsafe_code)]

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::wire::CHUNK_MAX;

/// The largest body of a frame, in bytes.
pub const FRAME_MAX: usize = 1024 * 1024;
/// The bytes before a body that say how long it is.
pub const HEADER: usize = 4;

/// Bytes that are not a message of this protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("frame of {0} bytes, at most {FRAME_MAX} are accepted")]
    TooLarge(usize),
    #[error("frame that holds no message")]
    Malformed,
}

/// Makes the frame of a message: header and body.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, WireError> {
    let mut frame = postcard::to_extend(message, vec![0; HEADER]).map_err(|_| WireError::Malformed)?;
    let body = frame.len() - HEADER;
    let length = u32::try_from(body)
        .ok()
        .filter(|_| body <= FRAME_MAX)
        .ok_or(WireError::TooLarge(body))?;
    frame[..HEADER].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// Reads how long the body after a header is.
pub fn body_length(header: [u8; HEADER]) -> Result<usize, WireError> {
    let length = usize::try_from(u32::from_le_bytes(header)).unwrap_or(usize::MAX);
    if length <= FRAME_MAX {
        Ok(length)
    } else {
        Err(WireError::TooLarge(length))
    }
}

/// Reads the message in a body; nothing may follow it.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, WireError> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        _ => Err(WireError::Malformed),
    }
}

/// The number of `Data` among the requests, and among the answers.
const DATA: u32 = 1;

/// Makes the frame of a `Data` message up to its bytes, so that nobody has to copy them behind it.
pub fn data_head(length: usize) -> Result<Vec<u8>, WireError> {
    let mut frame = postcard::to_extend(&(DATA, length), vec![0; HEADER]).map_err(|_| WireError::Malformed)?;
    let body = frame.len() - HEADER + length;
    let announced = u32::try_from(body).ok().filter(|_| length <= CHUNK_MAX);
    let announced = announced.ok_or(WireError::TooLarge(body))?;
    frame[..HEADER].copy_from_slice(&announced.to_le_bytes());
    Ok(frame)
}

/// Finds where in a body the bytes of a `Data` message begin, which go to its end; `None` if it is another message.
pub fn data_start(body: &[u8]) -> Result<Option<usize>, WireError> {
    match postcard::take_from_bytes::<u32>(body) {
        Ok((DATA, rest)) => match postcard::take_from_bytes::<usize>(rest) {
            Ok((length, data)) if length == data.len() && length <= CHUNK_MAX => Ok(Some(body.len() - length)),
            _ => Err(WireError::Malformed),
        },
        _ => Ok(None),
    }
}

/// Takes bytes of a file as one piece; serde's own way is a call per byte.
pub(super) mod bulk {
    use std::fmt;

    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    pub(in crate::files) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub(in crate::files) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        from.deserialize_bytes(Bytes)
    }

    struct Bytes;

    impl Visitor<'_> for Bytes {
        type Value = Vec<u8>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {} bytes", super::CHUNK_MAX)
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
            if bytes.len() <= super::CHUNK_MAX {
                Ok(bytes.to_vec())
            } else {
                Err(E::invalid_length(bytes.len(), &self))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::{Failure, Op, PATH_MAX, Put, Request, Response, Time};
    use super::*;

    fn round_trip<T: Serialize + DeserializeOwned>(message: &T) -> T {
        let frame = encode(message).unwrap();
        let (header, body) = frame.split_first_chunk().unwrap();
        assert_eq!(body_length(*header), Ok(body.len()));
        decode(body).unwrap()
    }

    #[test]
    fn messages_arrive_as_they_were() {
        let put = Request::Put(Put {
            path: b"a/\xff\n".to_vec(),
            size: u64::MAX,
            mode: 0o644,
            mtime: Some(Time {
                seconds: -1,
                nanoseconds: 5,
            }),
            make_parents: true,
            overwrite: false,
        });
        assert_eq!(round_trip(&put), put);
        let data = Response::Data(vec![7; CHUNK_MAX]);
        assert_eq!(round_trip(&data), data);
        let failed = Response::Failed(Failure {
            op: Op::Open,
            errno: 2,
            path: b"x".to_vec(),
        });
        assert_eq!(round_trip(&failed), failed);
    }

    #[test]
    fn frames_over_the_cap_are_refused_by_both_ends() {
        let paths: Vec<Vec<u8>> = vec![vec![b'a'; PATH_MAX]; 300];
        assert!(matches!(encode(&paths), Err(WireError::TooLarge(_))));
        assert_eq!(
            body_length(u32::MAX.to_le_bytes()),
            Err(WireError::TooLarge(u32::MAX as usize))
        );
        let data = encode(&Request::Data(vec![0; CHUNK_MAX + 1])).unwrap();
        assert_eq!(decode::<Request>(&data[HEADER..]), Err(WireError::Malformed));
    }

    #[test]
    fn data_need_not_be_copied_to_be_framed() {
        for length in [0, 1, 127, 128, CHUNK_MAX] {
            let bytes = vec![9; length];
            let frame = [data_head(length).unwrap(), bytes.clone()].concat();
            assert_eq!(frame, encode(&Request::Data(bytes.clone())).unwrap());
            assert_eq!(frame, encode(&Response::Data(bytes.clone())).unwrap());
            let start = data_start(&frame[HEADER..]).unwrap().unwrap();
            assert_eq!(&frame[HEADER + start..], bytes);
        }
        assert_eq!(
            data_head(CHUNK_MAX + 1).unwrap_err(),
            WireError::TooLarge(CHUNK_MAX + 5)
        );
        assert_eq!(data_start(&encode(&Request::End).unwrap()[HEADER..]), Ok(None));
        assert_eq!(data_start(&[]), Ok(None));
        for malformed in [&[1][..], &[1, 2, 0], &[1, 0, 0]] {
            assert_eq!(data_start(malformed), Err(WireError::Malformed), "{malformed:?}");
        }
    }

    #[test]
    fn bytes_after_a_message_are_refused() {
        let mut frame = encode(&Request::End).unwrap();
        frame.push(0);
        assert_eq!(decode::<Request>(&frame[HEADER..]), Err(WireError::Malformed));
    }
}
