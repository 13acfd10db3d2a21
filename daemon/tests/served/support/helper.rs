//! The file helper of the stand-in: it keeps what is put in, and has what a test put there to be found.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;

use brig_jailer::files::wire::{self as files, Collected, Request, Response};
use sha2::{Digest, Sha256};

#[derive(Debug, Default)]
pub(crate) struct Helper {
    /// Names and contents of files that were put in.
    pub(crate) stored: Mutex<Vec<(String, Vec<u8>)>>,
    /// Conversations that were begun.
    pub(crate) started: Mutex<usize>,
}

impl Helper {
    /// Serves one connection.
    pub(crate) fn serve(&self, mut socket: UnixStream, dies: bool) {
        *self.started.lock().unwrap() += 1;
        let mut content = (String::new(), Vec::new());
        while let Some(request) = read_request(&mut socket) {
            let response = match request {
                _ if dies => return,
                Request::Put(put) => {
                    content = (String::from_utf8(put.path).unwrap(), Vec::new());
                    continue;
                }
                Request::Data(bytes) => {
                    content.1.extend(bytes);
                    continue;
                }
                Request::End => {
                    self.stored.lock().unwrap().push(content.clone());
                    Response::Stored(files::Sum {
                        size: content.1.len() as u64,
                        sha256: Sha256::digest(&content.1).into(),
                    })
                }
                Request::Snapshot(_) => Response::Snapshotted {
                    files: 0,
                    truncated: None,
                },
                Request::Now => Response::Now(files::Time::default()),
                // It has one conversation only.
                Request::Open(_) => Response::Failed(files::Failure {
                    op: files::Op::Begin,
                    errno: 87,
                    path: Vec::new(),
                }),
                _ => Response::Collected(Collected::default()),
            };
            if socket.write_all(&files::encode(&response).unwrap()).is_err() {
                return;
            }
        }
    }
}

fn read_request(socket: &mut UnixStream) -> Option<Request> {
    let mut header = [0; files::HEADER];
    socket.read_exact(&mut header).ok()?;
    let mut body = vec![0; files::body_length(header).unwrap()];
    socket.read_exact(&mut body).ok()?;
    files::decode(&body).ok()
}
