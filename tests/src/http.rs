//! A client of HTTP/1.1 that sends what it is told to and nothing else: no credential, no cookie.

use std::net::SocketAddr;
use std::path::Path;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::{HeaderMap, Method, Request};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::Client;

/// An answer, with as much of its body as came.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    /// Whether the body came to its end.
    pub whole: bool,
}

impl Answer {
    /// A header; empty if it is not there.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// Asks for a URL as a browser does.
pub fn get(client: &Client, url: &str) -> Answer {
    ask(client, Method::GET, url, &[])
}

/// Asks for a URL with headers.
pub fn ask(client: &Client, method: Method, url: &str, headers: &[(&str, &str)]) -> Answer {
    let (address, path) = split(url);
    client.wait(async {
        let stream = TcpStream::connect(address).await.unwrap();
        talk(stream, method, &path, headers).await
    })
}

/// Asks for a path at a socket.
pub fn get_at(client: &Client, socket: &Path, path: &str) -> Answer {
    client.wait(async {
        let stream = UnixStream::connect(socket).await.unwrap();
        talk(stream, Method::GET, path, &[]).await
    })
}

/// The address and the path of a URL.
pub fn split(url: &str) -> (SocketAddr, String) {
    let rest = url.strip_prefix("http://").unwrap();
    let (address, path) = rest.split_once('/').unwrap();
    (address.parse().unwrap(), format!("/{path}"))
}

async fn talk<S>(stream: S, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
    let connected = tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(path).header("host", "test");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    let (parts, mut body) = sender.send_request(request).await.unwrap().into_parts();
    let (mut bytes, mut whole) = (Vec::new(), true);
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => bytes.extend_from_slice(frame.data_ref().unwrap()),
            Err(_) => {
                whole = false;
                break;
            }
        }
    }
    drop((sender, body));
    // How it ended shows in the body.
    let _ended = connected.await.unwrap();
    Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: bytes,
        whole,
    }
}
