//! A server that speaks S3, as a process of its own: moto's, from PyPI (tests/s3-server).

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::{DEADLINE, eventually};

/// The name of the bucket that it has.
pub const BUCKET: &str = "artifacts";

/// The server; ends with this.
#[derive(Debug)]
pub struct Server {
    child: Child,
    port: u16,
}

/// Where the program is, which `BRIG_S3_SERVER` says; `None`, or a failure where it must be there, if nothing does.
pub fn program() -> Option<PathBuf> {
    let found = std::env::var_os("BRIG_S3_SERVER").map(PathBuf::from);
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "BRIG_S3_SERVER names no server");
        eprintln!("SKIPPED: BRIG_S3_SERVER names no server; tests/s3-server DIR installs one");
    }
    found
}

/// A port on which nobody listens.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

impl Server {
    /// Starts it with an empty bucket.
    pub fn start(program: &std::path::Path, port: u16) -> Self {
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Self {
            child: command.spawn().unwrap(),
            port,
        };
        eventually("the server has a bucket", *DEADLINE, || match server.ask("PUT", "") {
            Some((200, _)) => Ok(()),
            other => Err(other.map(|(status, _)| status)),
        });
        server
    }

    /// What lies under a name in the bucket.
    pub fn object(&self, name: &str) -> Option<Vec<u8>> {
        let (status, body) = self.ask("GET", &format!("/{name}")).unwrap();
        (status == 200).then_some(body)
    }

    /// The names of all that is in the bucket.
    pub fn list(&self) -> String {
        let (_, body) = self.ask("GET", "?list-type=2").unwrap();
        String::from_utf8(body).unwrap()
    }

    fn ask(&self, method: &str, rest: &str) -> Option<(u16, Vec<u8>)> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // Signatures are not looked at, but whoever has none sees nothing.
        let head = format!(
            "{method} /{BUCKET}{rest} HTTP/1.0\r\nHost: 127.0.0.1:{}\r\nContent-Length: 0\r\n\
             Authorization: AWS4-HMAC-SHA256 Credential=key/20200101/us-east-1/s3/aws4_request\r\n\r\n",
            self.port
        );
        stream.write_all(head.as_bytes()).ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        let end = answer.windows(4).position(|part| part == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, answer.split_off(end + 4)))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped_already = self.child.wait();
    }
}
