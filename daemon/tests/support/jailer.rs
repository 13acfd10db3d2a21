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

/// The kernel of the stand-in: prints how much came before the end of the request, then shows a result.
const KERNEL: &str = r#"
exec 3<&0 4>&2 0</dev/null 2>&1
cat <&3 | wc -c
printf '\065\000\000\000{"ev":"result","main":true,"data":{"text/plain":"x"}}' >&4
printf '\015\000\000\000{"ev":"done"}' >&4
"#;
/// One that never reads its request.
const DEAF_KERNEL: &str = "exec sleep 60";

/// What the stand-in does unlike a jailer that works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Works,
    RefusesToMake,
    NeverAnswersMake,
    DiesAtSpawn,
    DiesAfterSpawn,
    KernelNeverReads,
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
        let mut receiver = wire::Receiver::default();
        while let Ok(Some(request)) = receiver.receive::<Request>(self.socket.as_fd()) {
            match request {
                Request::Hello { .. } => {
                    self.tell(
                        &Event::Hello {
                            version: VERSION,
                            jailer_version: "stand-in".to_owned(),
                        },
                        &[],
                    );
                    self.tell(&Event::AllHeld, &[]);
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
                Request::Signal { .. }
                | Request::Lap { .. }
                | Request::Pause { .. }
                | Request::CloseInput { .. }
                | Request::Files { .. }
                | Request::Memo { .. }
                | Request::Forget { .. }
                | Request::Handover
                | Request::Reload => {}
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
            Behaviour::Works | Behaviour::DiesAtSpawn | Behaviour::DiesAfterSpawn | Behaviour::KernelNeverReads => {
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
        let is_kernel = spawn.work == Work::Kernel;
        let mut command = self.command(spawn.work);
        command.stdin(if spawn.stdin || is_kernel {
            Stdio::piped()
        } else {
            Stdio::null()
        });
        let mut child = command.spawn().unwrap();
        let pid = child.id();
        let group = Pid::from_raw(i32::try_from(pid).unwrap());
        self.programs
            .lock()
            .unwrap()
            .insert(spawn.execution.clone(), (group, false));
        let (session, execution) = (spawn.session, spawn.execution);
        let streams = Streams {
            terminal: false,
            stdin: spawn.stdin,
            stdout: true,
            stderr: !is_kernel,
            request: is_kernel,
            frames: is_kernel,
        };
        let stdin = child.stdin.take().map(OwnedFd::from);
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        // The request of a kernel goes in by its stdin and the frames come out by its stderr.
        let (first, second) = (stdin.as_ref().map(AsFd::as_fd), Some(stdout.as_fd()));
        let (first, second) = if is_kernel { (second, first) } else { (first, second) };
        let files: Vec<OwnedFd> = (0..3)
            .map(|_| rustix::fs::memfd_create("kept", rustix::fs::MemfdFlags::CLOEXEC).unwrap())
            .collect();
        let pipes = [first, second, Some(stderr.as_fd())].into_iter().flatten();
        let fds: Vec<_> = pipes.chain(files.iter().map(AsFd::as_fd)).collect();
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

    /// A program in a process group of its own.
    fn command(&self, work: Work) -> Command {
        let argv = match work {
            Work::Command { argv, .. } => argv,
            Work::Kernel | Work::Context => {
                let deaf = self.behaviour == Behaviour::KernelNeverReads;
                ["/bin/sh", "-c", if deaf { DEAF_KERNEL } else { KERNEL }]
                    .map(Vec::from)
                    .to_vec()
            }
        };
        let mut argv = argv.into_iter().map(std::ffi::OsString::from_vec);
        let mut command = Command::new(argv.next().unwrap());
        command
            .args(argv)
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
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
