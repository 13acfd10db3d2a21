//! The stand-in for brig-jailer.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use brig_jailer::api::{
    Cause, CloseReason, End, Enforced, Event, Exit, Refusal, Request, Spawn, Streams, Usage, VERSION, Work,
};
use brig_jailer::files::wire as files;
use brig_jailer::ids::Id;
use brig_jailer::step::{Step, StepError, SysError};
use brig_jailer::wire;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// What the stand-in does unlike a jailer that works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Works,
    RefusesToMake,
    NeverAnswersMake,
    DiesAtSpawn,
    DiesAfterSpawn,
}

/// A jailer without jails.
#[derive(Debug)]
pub(crate) struct StandIn {
    behaviour: Behaviour,
    socket: OwnedFd,
    /// Process groups of programs that run, and whether somebody asked for their end.
    programs: Mutex<HashMap<Id, (Pid, bool)>>,
    /// Jails that exist.
    pub(crate) jails: AtomicUsize,
    /// Names and contents of files that were put in.
    pub(crate) stored: Mutex<Vec<(String, Vec<u8>)>>,
}

impl StandIn {
    /// Starts it on a thread of its own; the socket is for brigd.
    pub(crate) fn start(behaviour: Behaviour) -> (Arc<Self>, OwnedFd) {
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let jailer = Arc::new(Self {
            behaviour,
            socket,
            programs: Mutex::default(),
            jails: AtomicUsize::new(0),
            stored: Mutex::default(),
        });
        let serving = Arc::clone(&jailer);
        std::thread::spawn(move || serving.serve());
        (jailer, theirs)
    }

    fn serve(self: Arc<Self>) {
        while let Ok(Some((request, _fds))) = wire::receive::<Request>(self.socket.as_fd()) {
            match request {
                Request::Hello { .. } => {
                    self.tell(
                        &Event::Hello {
                            version: VERSION,
                            jailer_version: "stand-in".to_owned(),
                        },
                        &[],
                    );
                }
                Request::Make(make) => self.make(make.session),
                Request::Spawn(_) if self.behaviour == Behaviour::DiesAtSpawn => {
                    return rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both).unwrap();
                }
                Request::Spawn(spawn) => {
                    self.spawn(spawn);
                    if self.behaviour == Behaviour::DiesAfterSpawn {
                        return rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both).unwrap();
                    }
                }
                Request::Kill { execution, .. } => self.kill(&execution),
                Request::Signal { .. } => {}
                Request::Close { session } => {
                    self.jails.fetch_sub(1, Ordering::SeqCst);
                    self.tell(
                        &Event::Closed {
                            session,
                            reason: CloseReason::Asked,
                        },
                        &[],
                    );
                }
                Request::Host => self.tell(&Event::Host(Box::default()), &[]),
            }
        }
    }

    fn tell(&self, event: &Event, fds: &[BorrowedFd<'_>]) {
        // brigd may be gone already.
        let _ = wire::send(self.socket.as_fd(), event, fds);
    }

    fn make(self: &Arc<Self>, session: Id) {
        match self.behaviour {
            Behaviour::NeverAnswersMake => {}
            Behaviour::RefusesToMake => {
                let source = SysError::new("mount(\"/proc\")", 1);
                let refusal = Refusal::Step(StepError {
                    step: Step::Mounts,
                    source,
                });
                self.tell(
                    &Event::Refused {
                        session,
                        execution: None,
                        refusal,
                    },
                    &[],
                );
            }
            Behaviour::Works | Behaviour::DiesAtSpawn | Behaviour::DiesAfterSpawn => {
                self.jails.fetch_add(1, Ordering::SeqCst);
                let (ours, theirs) = UnixStream::pair().unwrap();
                let helper = Arc::clone(self);
                std::thread::spawn(move || helper.serve_files(ours));
                let enforced = Enforced {
                    capabilities: "none".to_owned(),
                    ..Enforced::default()
                };
                self.tell(&Event::Made { session, enforced }, &[theirs.as_fd()]);
            }
        }
    }

    fn spawn(self: &Arc<Self>, spawn: Spawn) {
        let Work::Command { argv, .. } = spawn.work else {
            panic!("the template has no interpreter")
        };
        let mut argv = argv.into_iter().map(std::ffi::OsString::from_vec);
        let mut command = Command::new(argv.next().unwrap());
        command
            .args(argv)
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.stdin(if spawn.stdin { Stdio::piped() } else { Stdio::null() });
        let mut child = command.spawn().unwrap();
        let pid = child.id();
        let group = Pid::from_raw(i32::try_from(pid).unwrap());
        self.programs
            .lock()
            .unwrap()
            .insert(spawn.execution.clone(), (group, false));
        let (session, execution) = (spawn.session, spawn.execution);
        let streams = Streams {
            stdin: spawn.stdin,
            stdout: true,
            stderr: true,
            kernel: false,
        };
        let stdin = child.stdin.take().map(OwnedFd::from);
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let fds: Vec<_> = stdin
            .iter()
            .map(AsFd::as_fd)
            .chain([stdout.as_fd(), stderr.as_fd()])
            .collect();
        self.tell(
            &Event::Spawned {
                session: session.clone(),
                execution: execution.clone(),
                pid,
                streams,
            },
            &fds,
        );
        let jailer = Arc::clone(self);
        std::thread::spawn(move || jailer.reap(session, execution, child));
    }

    fn reap(&self, session: Id, execution: Id, mut child: Child) {
        let status = child.wait().unwrap();
        let asked = self
            .programs
            .lock()
            .unwrap()
            .remove(&execution)
            .is_some_and(|(_, asked)| asked);
        let exit = status
            .code()
            .map_or_else(|| Exit::Signal(status.signal().unwrap()), Exit::Code);
        let cause = (asked && matches!(exit, Exit::Signal(9))).then_some(Cause::Asked);
        let end = End {
            exit,
            cause,
            usage: Usage::default(),
            oom_kills: 0,
            pids_refused: 0,
        };
        self.tell(
            &Event::Ended {
                session,
                execution,
                end,
            },
            &[],
        );
    }

    fn kill(&self, execution: &Id) {
        if let Some((group, asked)) = self.programs.lock().unwrap().get_mut(execution) {
            *asked = true;
            let _ = killpg(*group, Signal::SIGKILL);
        }
    }

    fn serve_files(&self, mut socket: UnixStream) {
        let mut content = (String::new(), Vec::new());
        while let Some(request) = read_request(&mut socket) {
            let response = match request {
                files::Request::Put(put) => {
                    content = (String::from_utf8(put.path).unwrap(), Vec::new());
                    continue;
                }
                files::Request::Data(bytes) => {
                    content.1.extend(bytes);
                    continue;
                }
                files::Request::End => {
                    self.stored.lock().unwrap().push(content.clone());
                    files::Response::Stored(files::Sum {
                        size: content.1.len() as u64,
                        sha256: [0; 32],
                    })
                }
                files::Request::Snapshot(_) => files::Response::Snapshotted {
                    files: 0,
                    truncated: None,
                },
                _ => files::Response::Collected(files::Collected::default()),
            };
            if socket.write_all(&files::encode(&response).unwrap()).is_err() {
                return;
            }
        }
    }
}

fn read_request(socket: &mut UnixStream) -> Option<files::Request> {
    let mut header = [0; files::HEADER];
    socket.read_exact(&mut header).ok()?;
    let mut body = vec![0; files::body_length(header).unwrap()];
    socket.read_exact(&mut body).ok()?;
    files::decode(&body).ok()
}
