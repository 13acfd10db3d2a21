//! What comes over the socket is not believed either.

use super::*;
use crate::files::wire::{FRAME_MAX, WireError};

/// Sends raw bytes to a new server, hangs up, and tells how it ended.
fn end_after(place: &Place, bytes: &[u8]) -> Result<(), Broken> {
    let mut client = place.serve();
    // The server may hang up first.
    let _ = client.socket.write_all(bytes);
    client.hang_up()
}

#[test]
fn the_end_of_the_stream_between_requests_is_the_good_end() {
    end_after(&Place::new(), &[]).unwrap();
}

#[test]
fn frames_too_long_empty_or_cut_short_end_the_server() {
    let place = Place::new();
    let too_long = u32::try_from(FRAME_MAX + 1).unwrap().to_le_bytes();
    assert!(matches!(
        end_after(&place, &too_long),
        Err(Broken::Wire(WireError::TooLarge(_)))
    ));
    assert!(matches!(
        end_after(&place, &[0; 4]),
        Err(Broken::Wire(WireError::Malformed))
    ));
    let frame = encode(&Request::Get(get_of("x"))).unwrap();
    for cut in 1..frame.len() {
        assert!(
            matches!(end_after(&place, &frame[..cut]), Err(Broken::CutShort)),
            "{cut}"
        );
    }
}

#[test]
fn requests_out_of_order_end_the_server_and_leave_no_partial_file() {
    let place = Place::new();
    let (put, data) = (
        encode(&Request::Put(put_of("x", 9))).unwrap(),
        encode(&Request::Data(vec![1])).unwrap(),
    );
    assert!(matches!(end_after(&place, &data), Err(Broken::OutOfOrder)));
    assert!(matches!(
        end_after(&place, &encode(&Request::End).unwrap()),
        Err(Broken::OutOfOrder)
    ));
    assert!(matches!(
        end_after(&place, &[&put[..], &data, &put].concat()),
        Err(Broken::OutOfOrder)
    ));
    assert!(matches!(
        end_after(&place, &[&put[..], &data].concat()),
        Err(Broken::CutShort)
    ));
    assert_eq!(std::fs::read_dir(&place.path).unwrap().count(), 0);
}

#[test]
fn random_frames_end_the_server_or_are_answered_and_write_nothing_outside() {
    let outer = Place::new();
    std::fs::create_dir(outer.join("home")).unwrap();
    let place = Place {
        path: outer.join("home"),
        ..outer
    };
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    for round in 0..2_000_usize {
        let mut body: Vec<u8> = (0..round % 40).map(|_| random()).collect();
        if let Some(first) = body.first_mut() {
            *first %= 8;
        }
        let length = u32::try_from(body.len()).unwrap().to_le_bytes();
        let mut client = place.serve();
        let _ = client.socket.write_all(&[&length[..], &body].concat());
        client.socket.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = client.socket.read_to_end(&mut Vec::new());
        let _ = client.hang_up();
    }
    assert_eq!(std::fs::read_dir(place.path.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn many_requests_at_once_are_answered_in_order() {
    let place = Place::new();
    place.write("a", "1");
    place.write("b", "2");
    let mut client = place.serve();
    for path in ["a", "b", "missing", "a"] {
        client.send(&Request::Get(get_of(path)));
    }
    let answers: Vec<_> = (0..7).map(|_| client.receive()).collect();
    let data = |text: &str| Response::Data(text.as_bytes().to_vec());
    assert_eq!(
        [&answers[0], &answers[2], &answers[5]],
        [&data("1"), &data("2"), &data("1")]
    );
    assert!(matches!(&answers[4], Response::Failed(failure) if failure.path == b"missing"));
    client.hang_up().unwrap();
}
