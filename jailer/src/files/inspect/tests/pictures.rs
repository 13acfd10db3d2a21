//! Pictures.

use super::*;

#[test]
fn sizes_of_pictures_come_from_their_headers() {
    assert_eq!(
        look("image/png", png(1200, 800)),
        valid(&[("width", 1200), ("height", 800)])
    );
    // A comment, a fill byte, a table, a frame, a scan with a byte of data and a restart in it.
    let jpeg = b"\xff\xd8\xff\xe0\0\x04ab\xff\xff\xdb\0\x03x\xff\xc2\0\x0b\x08\x03\x20\x04\xb0\x01\x01\x11\0\xff\xda\0\x03xdata\xff\0\xff\xd0data\xff\xd9";
    assert_eq!(look("image/jpeg", jpeg), valid(&[("width", 1200), ("height", 800)]));
    assert_eq!(
        look("image/jpeg", [jpeg, &b"PK"[..]].concat()).flags,
        [Flag::EmbeddedFile]
    );
    assert_eq!(
        problem(&look("image/jpeg", &jpeg[..jpeg.len() - 1])),
        Some("it ends too early")
    );
    assert_eq!(
        look("image/gif", b"GIF89a\xb0\x04\x20\x03\0\0\0;"),
        valid(&[("width", 1200), ("height", 800)])
    );
    let mut webp =
        b"RIFF\x24\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\xaf\x04\0\x1f\x03\0VP8L\x05\0\0\0\x2f\xaf\xc4\xc7\0\0".to_vec();
    assert_eq!(look("image/webp", &webp), valid(&[("width", 1200), ("height", 800)]));
    webp[25] = 0;
    assert_eq!(
        problem(&look("image/webp", &webp)),
        Some("more picture than its header says")
    );
    webp[4] = 0xff;
    assert_eq!(problem(&look("image/webp", &webp)), Some("it ends too early"));
    assert_eq!(
        problem(&look("image/webp", b"RIFF\x04\0\0\0WEBP")),
        Some("no picture in it")
    );
}

#[test]
fn a_gif_is_as_large_as_its_largest_picture() {
    let gif = b"GIF89a\x01\0\x01\0\0\0\0\x21\xf9\x01x\0\x2c\x10\0\0\0\x20\0\x05\0\0\x02\x02ab\0;";
    assert_eq!(look("image/gif", gif), valid(&[("width", 48), ("height", 5)]));
    assert_eq!(look("image/gif", [gif, &b"<"[..]].concat()).flags, [Flag::EmbeddedFile]);
    assert_eq!(
        problem(&look("image/gif", &gif[..gif.len() - 2])),
        Some("it ends too early")
    );
}

#[test]
fn a_png_has_the_lines_that_its_header_promises() {
    for (lines, told) in [
        (8, None),
        (7, Some("less picture than its header says")),
        (9, Some("more picture than its header says")),
    ] {
        assert_eq!(
            problem(&look("image/png", png_of(3, 2, &vec![0; lines]))),
            told,
            "{lines}"
        );
    }
    let mut interlaced = png_of(3, 2, &[0; 3 * 3]);
    interlaced[28] = 1;
    // Three passes have a part of it: 1x1, 1x1, 1x1 (column 2), and one line of 3: 2 + 2 + 2 + 4 bytes, less is told.
    assert_eq!(
        problem(&look("image/png", &interlaced)),
        Some("less picture than its header says")
    );
    let mut whole = png_of(3, 2, &[0; 2 + 2 + 2 + 4]);
    whole[28] = 1;
    assert_eq!(look("image/png", &whole), valid(&[("width", 3), ("height", 2)]));
    let mut strange = png(3, 2);
    strange[25] = 5;
    assert_eq!(problem(&look("image/png", strange)), Some("colours of no known kind"));
    let mut broken = png(3, 2);
    broken[41] ^= 0xff;
    assert_eq!(problem(&look("image/png", broken)), Some("what can't be unpacked"));
}

#[test]
fn a_picture_of_too_many_pixels_is_not_unpacked_and_told() {
    let bomb = png_of(100_000, 100_000, &vec![0; 1 << 20]);
    let seen = look("image/png", bomb);
    assert_eq!((seen.verdict, seen.flags), (Verdict::Valid, vec![Flag::Bomb]));
    assert_eq!(seen.details, valid(&[("width", 100_000), ("height", 100_000)]).details);
    assert_eq!(look("image/png", png(8192, 512)).flags, []);
}

#[test]
fn pictures_cut_short_or_with_something_behind_are_told() {
    let whole = png(3, 2);
    assert_eq!(
        problem(&look("image/png", &whole[..whole.len() - 1])),
        Some("it ends too early")
    );
    assert_eq!(problem(&look("image/png", &whole[..20])), Some("it ends too early"));
    assert_eq!(
        problem(&look("image/png", b"<html>not a picture at all, is it</html>")),
        Some("not a PNG")
    );
    assert_eq!(problem(&look("image/png", png(0, 2))), Some("a side of no length"));
    assert_eq!(
        problem(&look("image/jpeg", b"\xff\xd8\xff\xda\0\x02")),
        Some("no frame header where one is due")
    );
    assert_eq!(
        look("image/png", [&whole[..], b"PK\x03\x04"].concat()).flags,
        [Flag::EmbeddedFile]
    );
    let mut endless = whole[..33].to_vec();
    endless.extend(b"\0\0\0\0teXtCRC4".repeat(200_000));
    assert_eq!(problem(&look("image/png", endless)), Some("too many chunks"));
}
