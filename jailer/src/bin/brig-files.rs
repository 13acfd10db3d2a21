//! The file helper of a session; see [`brig_jailer::files`].
//!
//! Started by brig-init with descriptor 3 as the socket to `brigd`. Arguments and environment mean nothing to it.
//! Exit status: 0 `brigd` hung up, 1 it was not started as it should be or could not seal itself, 2 the other end broke
//! the protocol, 3 the socket failed.
#![forbid(unsafe_code)]

use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use brig_jailer::faults::{Point, point};
use brig_jailer::files::seal::seal;
use brig_jailer::files::server::{Broken, Server, refuse};
use brig_jailer::sys;

const SOCKET: i32 = 3;

fn main() -> ExitCode {
    // A program that is run from a memory file has no name of its own.
    let _nameless = rustix::thread::set_name(c"brig-files");
    point(Point::FilesStarted);
    let Ok(socket) = sys::inherited(SOCKET).map(UnixStream::from) else {
        return ExitCode::from(1);
    };
    let roots = match seal() {
        Ok(roots) => roots,
        Err(failure) => {
            // The reason goes out; that it can't is told by the status too.
            let _ = refuse(socket, failure);
            return ExitCode::from(1);
        }
    };
    match Server::new(socket, roots).serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(Broken::Socket(_)) => ExitCode::from(3),
        Err(_) => ExitCode::from(2),
    }
}
