//! What those get who follow a link: over HTTP, as it says of parts, conditions and names.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use brig_proto::v1::{ArtifactsLinkRequest, ArtifactsListRequest, LinkDisposition, ReviewState};
use brig_tests::http;
use brig_tests::processes::process;
use brig_tests::spec::small;
use brig_tests::{DEADLINE, Daemon, artifacts, eventually, lanes};
use hyper::Method;

use crate::links::{ON, guarded, leave, link, link_as, without_date};
use crate::{artifact, id, sha256};

fn inline() -> ArtifactsLinkRequest {
    ArtifactsLinkRequest {
        disposition: LinkDisposition::Inline.into(),
        ..ArtifactsLinkRequest::default()
    }
}

#[test]
fn what_is_no_link_is_nothing_and_nothing_else_is_served() {
    let Some(daemon) = Daemon::start_configured(ON) else {
        return;
    };
    leave(&daemon, "printf a > out.csv");
    let good = link(&daemon, "out.csv");
    let (start, token) = good.rsplit_once('/').unwrap();
    let origin = start.strip_suffix("/artifact").unwrap();
    let nothing = || {
        (
            404,
            guarded(&[("content-length", "23"), ("content-type", "text/plain; charset=utf-8")]),
        )
    };
    let changed = |place: usize| {
        let other = if token.as_bytes()[place] == b'A' { "B" } else { "A" };
        format!("{start}/{}{other}{}", &token[..place], &token[place + 1..])
    };
    let mut wrong: Vec<String> = (0..token.len()).step_by(7).map(changed).collect();
    wrong.extend([
        format!("{start}/x"),
        format!("{start}/"),
        format!("{good}x"),
        format!("{good}/"),
        format!("{start}/%{:02X}{}", token.as_bytes()[0], &token[1..]),
        format!("{origin}/"),
        format!("{origin}/artifact"),
        format!("{origin}/artifacts"),
        format!("{origin}/..{}", &good[origin.len()..]),
        format!("{origin}/brig.v1.Host/Get"),
        format!("{origin}/favicon.ico"),
    ]);
    for url in wrong {
        let (status, headers, body) = without_date(http::get(&daemon, &url));
        assert_eq!((status, headers), nothing(), "{url}");
        assert_eq!(body, "There is nothing here.\n");
    }
    for method in [
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::OPTIONS,
        Method::TRACE,
    ] {
        for url in [&good, &format!("{start}/x")] {
            let refused = http::ask(&daemon, method.clone(), url, &[]);
            assert_eq!((refused.status, refused.header("allow")), (405, "GET,HEAD"), "{method}");
        }
        let call = format!("{origin}/brig.v1.Executions/Run");
        assert_eq!(http::ask(&daemon, method, &call, &[]).status, 404);
    }
    // No HTTP/2, so that no client of gRPC gets anywhere.
    let (address, _) = http::split(&good);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(*DEADLINE)).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _reset = stream.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/1.1 2"), "{answer:?}");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(*DEADLINE)).unwrap();
    let large = format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "x".repeat(32 << 10));
    let _reset = stream.write_all(large.as_bytes());
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 431");
    assert_eq!(http::get(&daemon, &good).status, 200);
}

#[test]
fn parts_and_conditions_are_those_of_http() {
    let Some(daemon) = Daemon::start_configured(ON) else {
        return;
    };
    leave(&daemon, "printf 0123456789 > out.csv; : > empty.csv");
    let (url, empty) = (link(&daemon, "out.csv"), link(&daemon, "empty.csv"));
    let etag = format!("\"{}\"", sha256(b"0123456789"));
    let ask = |method: Method, headers: &[(&str, &str)]| http::ask(&daemon, method, &url, headers);
    let part = |range: &str| {
        let answer = ask(Method::GET, &[("range", range)]);
        let range = answer.header("content-range").to_owned();
        (answer.status, range, String::from_utf8(answer.body).unwrap())
    };
    let told = |status: u16, range: &str, body: &str| (status, range.to_owned(), body.to_owned());
    assert_eq!(part("bytes=2-4"), told(206, "bytes 2-4/10", "234"));
    assert_eq!(part("bytes=7-"), told(206, "bytes 7-9/10", "789"));
    assert_eq!(part("bytes=-3"), told(206, "bytes 7-9/10", "789"));
    assert_eq!(part("bytes=5-99"), told(206, "bytes 5-9/10", "56789"));
    assert_eq!(part("bytes=10-"), told(416, "bytes */10", ""));
    assert_eq!(part("bytes=0-1,3-4"), told(200, "", "0123456789"));
    assert_eq!(part("nonsense"), told(200, "", "0123456789"));
    for method in [Method::GET, Method::HEAD] {
        let answer = ask(method, &[("if-none-match", &etag)]);
        assert_eq!(
            (answer.status, answer.header("etag"), answer.body.len()),
            (304, etag.as_str(), 0)
        );
    }
    assert_eq!(ask(Method::GET, &[("if-match", "\"other\"")]).status, 412);
    let resumed = ask(Method::GET, &[("range", "bytes=8-"), ("if-range", &etag)]);
    assert_eq!((resumed.status, resumed.body.as_slice()), (206, &b"89"[..]));
    let other = ask(Method::GET, &[("range", "bytes=8-"), ("if-range", "\"other\"")]);
    assert_eq!((other.status, other.body.len()), (200, 10));
    let head = ask(Method::HEAD, &[("range", "bytes=2-4")]);
    assert_eq!((head.status, head.header("content-length")), (200, "10"));
    let nothing = http::get(&daemon, &empty);
    assert_eq!(
        (nothing.status, nothing.header("content-length"), nothing.whole),
        (200, "0", true)
    );
    let nothing = http::ask(&daemon, Method::GET, &empty, &[("range", "bytes=0-")]);
    assert_eq!((nothing.status, nothing.header("content-range")), (416, "bytes */0"));
}

#[test]
fn a_browser_shows_only_what_can_not_run_and_the_policy_previews() {
    let Some(daemon) = Daemon::start_configured(ON) else {
        return;
    };
    let picture = "import struct, zlib\n\
                   piece = lambda kind, data: struct.pack('>I', len(data)) + kind + data + \
                   struct.pack('>I', zlib.crc32(kind + data))\n\
                   head = struct.pack('>IIBBBBB', 1, 1, 8, 0, 0, 0, 0)\n\
                   open('dot.png', 'wb').write(b'\\x89PNG\\r\\n\\x1a\\n' + piece(b'IHDR', head) + \
                   piece(b'IDAT', zlib.compress(b'\\0\\0')) + piece(b'IEND', b''))\n\
                   open('a.svg', 'w').write('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')\n\
                   open('a.txt', 'w').write('text')\n\
                   open('a.csv', 'w').write('a,b')\n\
                   open('a.py', 'w').write('print(1)')\n";
    daemon.run(small(picture)).expect_success();
    let code = artifact(&daemon, "a.py");
    artifacts::approve(&daemon, id(&code), &code.artifact.as_ref().unwrap().sha256).unwrap();
    for (path, media_type) in [("dot.png", "image/png"), ("a.txt", "text/plain; charset=utf-8")] {
        let made = link_as(&daemon, id(&artifact(&daemon, path)), inline()).unwrap();
        let shown = http::get(&daemon, &made.url);
        assert_eq!(
            (
                shown.header("content-type"),
                shown.header("content-disposition").to_owned()
            ),
            (media_type, format!("inline; filename=\"{path}\""))
        );
        assert_eq!(
            http::get(&daemon, &link(&daemon, path))
                .header("content-disposition")
                .split(';')
                .next(),
            Some("attachment")
        );
    }
    for (path, reason) in [
        ("a.svg", "INVALID_VALUE"),
        ("a.csv", "POLICY_FORBIDS"),
        ("a.py", "POLICY_FORBIDS"),
    ] {
        let refused = link_as(&daemon, id(&artifact(&daemon, path)), inline()).unwrap_err();
        assert_eq!(
            (refused.reason.as_str(), refused.fields),
            (reason, vec!["disposition".to_owned()]),
            "{path}"
        );
    }
    let unknown = ArtifactsLinkRequest {
        disposition: 7,
        ..ArtifactsLinkRequest::default()
    };
    assert_eq!(
        link_as(&daemon, id(&code), unknown).unwrap_err().fields,
        ["disposition"]
    );
}

#[test]
fn hostile_names_end_no_header_and_lead_nowhere() {
    let Some(daemon) = Daemon::start_configured(ON) else {
        return;
    };
    let names = [
        ("a\\r\\nx-evil: 1.csv", "attachment; filename=\"a__x-evil_ 1.csv\""),
        (
            "b\\\"; filename=\\\"c.csv",
            "attachment; filename=\"b_; filename=_c.csv\"",
        ),
        ("..\\\\..\\\\d.csv", "attachment; filename=\".._.._d.csv\""),
        ("e\\u202egpj.csv", "attachment; filename=\"e_gpj.csv\""),
        (
            "\\u00fc%41.csv",
            "attachment; filename=\"__41.csv\"; filename*=UTF-8''%C3%BC%2541.csv",
        ),
    ];
    let names_of = names.map(|(name, _)| format!("\"{name}\"")).join(", ");
    let script =
        format!("for name in [{names_of}]:\n    open(name, 'w').write('x')\nopen(b'\\xff.csv', 'w').write('x')\n");
    daemon.run(small(&script)).expect_success();
    let listed = artifacts::list(&daemon, ArtifactsListRequest::default());
    let mut told: Vec<String> = listed
        .iter()
        .map(|record| {
            // A name that hides what it is may have to be reviewed.
            let shown = record.artifact.as_ref().unwrap();
            if shown.review() == ReviewState::Pending {
                artifacts::approve(&daemon, id(record), &shown.sha256).unwrap();
            }
            let made = link_as(&daemon, id(record), ArtifactsLinkRequest::default()).unwrap();
            let answer = http::get(&daemon, &made.url);
            assert_eq!((answer.status, answer.header("x-evil")), (200, ""));
            answer.header("content-disposition").to_owned()
        })
        .collect();
    let mut expected: Vec<String> = names.iter().map(|(_, header)| (*header).to_owned()).collect();
    expected.push("attachment; filename=\"_.csv\"; filename*=UTF-8''%EF%BF%BD.csv".to_owned());
    told.sort();
    expected.sort();
    assert_eq!(told, expected);
}

#[test]
fn slow_readers_hold_no_memory_and_get_all_of_it() {
    const READERS: usize = 16;
    const SIZE: usize = 24 << 20;
    let Some(daemon) = Daemon::start_configured(ON) else {
        return;
    };
    leave(&daemon, &format!("head -c {SIZE} /dev/zero | tr '\\0' a > out.csv"));
    let (address, path) = http::split(&link(&daemon, "out.csv"));
    // The allocator keeps what threads had once: fast readers come first, as many at one time.
    let url = link(&daemon, "out.csv");
    lanes(READERS, &[(); READERS], |()| {
        assert_eq!(http::get(&daemon, &url).body.len(), SIZE)
    });
    let before = process(daemon.pid()).memory("VmRSS");
    let mut readers: Vec<TcpStream> = (0..READERS)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(*DEADLINE)).unwrap();
            write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
            let mut first = [0; 15];
            stream.read_exact(&mut first).unwrap();
            assert_eq!(&first, b"HTTP/1.1 200 OK");
            stream
        })
        .collect();
    // Others are answered, and what is on the way lies in the sockets.
    assert_eq!(http::get(&daemon, &link(&daemon, "out.csv")).body.len(), SIZE);
    std::thread::sleep(Duration::from_millis(500));
    let grown = process(daemon.pid()).memory("VmRSS").saturating_sub(before);
    // Three pieces of 256 KiB each, and what the allocator keeps; not the 24 MiB that each waits for.
    assert!(grown < (READERS as u64) << 20, "{grown} bytes");
    let mut rest = Vec::new();
    readers.pop().unwrap().read_to_end(&mut rest).unwrap();
    let body = rest.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
    assert_eq!(rest.len() - body, SIZE);
}

#[test]
fn what_was_changed_in_the_store_never_comes_whole() {
    let Some(daemon) = Daemon::start_configured(ON) else {
        return;
    };
    leave(&daemon, "head -c 1000000 /dev/zero | tr '\\0' a > out.csv");
    let url = link(&daemon, "out.csv");
    let store = daemon.directory().join("artifacts/store");
    let stored = || {
        let mut folders = vec![store.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).ok()?.map(Result::unwrap) {
                match entry.file_type().unwrap().is_dir() {
                    true => folders.push(entry.path()),
                    false => return Some(entry.path()),
                }
            }
        }
        None
    };
    eventually("it is in the store", *DEADLINE, || {
        match artifact(&daemon, "out.csv").stored && stored().is_some() {
            true => Ok(()),
            false => Err(()),
        }
    });
    assert!(http::get(&daemon, &url).whole);
    let file = std::fs::OpenOptions::new().write(true).open(stored().unwrap()).unwrap();
    file.write_all_at(b"b", 999_999).unwrap();
    let answer = http::get(&daemon, &url);
    assert_eq!((answer.status, answer.whole), (200, false));
    assert!(answer.body.len() < 1_000_000, "{}", answer.body.len());
}
