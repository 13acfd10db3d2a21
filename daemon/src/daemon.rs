//! The start of the daemon: what must happen while there is one thread, and then the runtime.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use brig_jailer::service::activation::{self, Place, Wanted};
use brig_jailer::service::log;
use brig_jailer::service::notify::{self, Notifier, NotifyState};
use rustix::net::SocketType;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::config::{Config, Listen};
use crate::host::Host;
use crate::jailer::{Jailer, dial};
use crate::links;
use crate::listener;
use crate::options::{Options, StartError};
use crate::privileges::{Identity, give_up_root};
use crate::reload::{Prepared, reload};
use crate::report::{self, Reporter};
use crate::run::kept::adopt::adopt;
use crate::server::{self, Ending, Listeners};
use crate::standalone::{PrivateJailer, prepare_directory};
use crate::watchdog;

/// How long the private jailer may take to end after its socket is closed.
const JAILER_END: std::time::Duration = std::time::Duration::from_secs(10);
/// How brig-jailer exits when its configuration is broken or this host can't make jails.
const JAILER_CONFIGURATION: i32 = 78;
/// Frames of HTTP/2 tell nothing about Brig, and those of a client hold its bytes.
const QUIET: &str = "h2=info,hyper=info,tower=info,";

/// Starts the daemon and serves until it is told to stop.
///
/// The order matters: what the service manager passed is taken before a descriptor is opened that could be mistaken for
/// it; the private jailer is started while this process is root and has one thread; root is given up before anything a
/// client sends is read; only then there are threads.
pub fn start(options: &Options) -> Result<(), StartError> {
    if options.check_config {
        return check_config(options);
    }
    let config = Config::load(options)?;
    if options.print_config {
        return print_config(&config);
    }
    let [passed, links] = take_sockets(&config)?;
    let notifier = Notifier::from_environment().map_err(|error| StartError::Failed(error.to_string()))?;
    log::start(config.log, "brigd", QUIET).map_err(|error| StartError::Configuration(error.to_string()))?;
    let ready = options.ready_fd.map(open_ready).transpose()?;
    let identity = Identity::of_daemon();
    let (private, socket) = match &options.standalone {
        Some(directory) => {
            let (private, socket) = PrivateJailer::start(options, &config)?;
            prepare_directory(directory, identity)?;
            (Some(private), Some(socket))
        }
        None => (None, None),
    };
    raise_descriptors();
    give_up_root(identity).map_err(|error| StartError::Failed(format!("giving up root: {error}")))?;
    let jailer = match socket {
        Some(socket) => socket,
        None => connect(&config)?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| StartError::Failed(format!("runtime: {error}")))?;
    let given = Given {
        jailer,
        passed,
        links,
        ready,
        reporter: Arc::new(Reporter::new(notifier)),
    };
    let served = runtime.block_on(serve(options, &config, given));
    // Closes the socket of the jailer, if nothing else did.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    match private.map(|private| private.wait(JAILER_END)) {
        None => served,
        Some(Ok(Some(status))) if served.is_err() && status.code() == Some(JAILER_CONFIGURATION) => Err(
            StartError::Configuration("brig-jailer did not start, for the reason above".to_owned()),
        ),
        Some(Ok(Some(_))) => served,
        Some(_) => {
            warn!("jailer not ended");
            served
        }
    }
}

/// What the daemon was given before it had threads.
struct Given {
    /// The connection to the jailer.
    jailer: OwnedFd,
    /// The socket for clients, if the service manager made it.
    passed: Option<OwnedFd>,
    /// That for those who follow links.
    links: Option<OwnedFd>,
    /// Where one line is written once the daemon serves.
    ready: Option<std::fs::File>,
    reporter: Arc<Reporter>,
}

fn take_sockets(config: &Config) -> Result<[Option<OwnedFd>; 2], StartError> {
    let clients = Wanted {
        name: "brigd",
        kind: SocketType::STREAM,
        place: Place::Path(&config.socket),
    };
    let links = Wanted {
        name: "brigd-links",
        kind: SocketType::STREAM,
        place: match &config.links.listen {
            Listen::Nowhere => Place::Nowhere,
            Listen::Address(address) => Place::Address(*address),
            Listen::Path(path) => Place::Path(path),
        },
    };
    activation::take([clients, links]).map_err(|error| StartError::Configuration(error.to_string()))
}

/// Takes as many descriptors as this process may have: clients, jails and files that wait for clients are one each.
///
/// After the private jailer is started, which has a limit of its own.
fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, all) {
        warn!(%error, "limit of descriptors not raised");
    }
}

fn print_config(config: &Config) -> Result<(), StartError> {
    let text = toml::to_string(config).map_err(|error| StartError::Failed(error.to_string()))?;
    print(&text)
}

/// Checks what a start or a reload would read.
///
/// As a step of a reload, whose caller sees its exit code, it also tells the manager why there is none.
fn check_config(options: &Options) -> Result<(), StartError> {
    match Prepared::read(options) {
        Ok(_) => print("the configuration and what it names are in order\n"),
        Err(error) => {
            if let Ok(manager) = Notifier::from_environment() {
                manager.status(&format!("last reload refused: {error}"));
            }
            Err(error)
        }
    }
}

fn print(text: &str) -> Result<(), StartError> {
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| StartError::Failed(error.to_string()))
}

/// Opens the descriptor by its name in /proc: it belongs to whoever started us, and is only written to.
fn open_ready(number: u32) -> Result<std::fs::File, StartError> {
    let path = format!("/proc/self/fd/{number}");
    let file = std::fs::OpenOptions::new().write(true).open(&path);
    file.map_err(|error| StartError::Configuration(format!("--ready-fd {number}: {error}")))
}

/// Stops the daemon when nobody holds the other end of the pipe any more: also after a SIGKILL of who started it.
///
/// A thread, because it waits for nothing but an error, for as long as the daemon lives.
fn end_with_reader(pipe: std::fs::File, shutdown: CancellationToken) {
    use rustix::event::{PollFd, PollFlags, poll};
    std::thread::spawn(move || {
        let gone = PollFlags::ERR | PollFlags::HUP;
        loop {
            let mut fds = [PollFd::new(&pipe, PollFlags::empty())];
            if poll(&mut fds, None).is_ok() && fds[0].revents().intersects(gone) {
                info!("starter gone");
                return shutdown.cancel();
            }
        }
    });
}

fn connect(config: &Config) -> Result<OwnedFd, StartError> {
    dial(&config.jailer_socket).map_err(|error| {
        StartError::Failed(format!(
            "brig-jailer at {}: {error}\nhint: start it with systemctl start brig-jailer, \
             or run a private daemon with --standalone DIR",
            config.jailer_socket.display()
        ))
    })
}

async fn serve(options: &Options, config: &Config, given: Given) -> Result<(), StartError> {
    let (jailer, held) = Jailer::start(given.jailer)
        .await
        .map_err(|error| StartError::Failed(error.to_string()))?;
    let host = server::open(config, jailer)?;
    adopt(&host, held)
        .await
        .map_err(|error| StartError::Configuration(error.to_string()))?;
    let at_socket = |error| StartError::Configuration(format!("socket {}: {error}", config.socket.display()));
    let is_ours = given.passed.is_none();
    let listener = match given.passed {
        Some(socket) => listener::adopt(socket, config),
        None => listener::bind(config),
    };
    let links = links::Listener::open(&config.links.listen, given.links);
    let links =
        links.map_err(|error| StartError::Configuration(format!("links.listen: {}: {error}", config.links.listen)))?;
    let listeners = Listeners {
        clients: listener.map_err(at_socket)?,
        links,
    };
    let shutdown = CancellationToken::new();
    let signals = Signals::catch();
    tokio::spawn(signals.obey(
        Arc::clone(&host),
        options.clone(),
        Arc::clone(&given.reporter),
        shutdown.clone(),
    ));
    let stopping = attend(&host, &given.reporter);
    if let Some(ready) = given.ready {
        tell_starter(ready, config, options.tied, &shutdown)?;
    }
    let ending = match options.standalone {
        Some(_) => Ending::CloseSessions,
        None => Ending::HandOver,
    };
    let served = server::run(listeners, host, shutdown, ending).await;
    if let Some(stopping) = stopping {
        // It ended when the daemon began to stop.
        let _ = stopping.await;
    }
    if is_ours {
        let _ = std::fs::remove_file(&config.socket);
    }
    served
}

/// Tells the service manager, if there is one, that the daemon is ready, and from then on how it is.
fn attend(host: &Arc<Host>, reporter: &Arc<Reporter>) -> Option<JoinHandle<()>> {
    if !reporter.is_heard() {
        return None;
    }
    reporter.tell(&[NotifyState::Ready]);
    if let Some(limit) = notify::watchdog() {
        tokio::spawn(watchdog::watch(Arc::clone(host), Arc::clone(reporter), limit));
    }
    Some(tokio::spawn(report::until_stop(Arc::clone(host), Arc::clone(reporter))))
}

fn tell_starter(
    mut ready: std::fs::File,
    config: &Config,
    tied: bool,
    shutdown: &CancellationToken,
) -> Result<(), StartError> {
    // In one write, so that a reader that stops at the newline has all of it.
    let line = format!("ready {}\n", config.socket.display());
    ready
        .write_all(line.as_bytes())
        .map_err(|error| StartError::Failed(format!("--ready-fd: {error}")))?;
    if tied {
        end_with_reader(ready, shutdown.clone());
    }
    Ok(())
}

/// The signals that the daemon obeys.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn catch() -> Self {
        let [terminate, interrupt, hang_up] = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()]
            .map(|kind| signal(kind).expect("SIGTERM, SIGINT and SIGHUP can be caught"));
        Self {
            terminate,
            interrupt,
            hang_up,
        }
    }

    /// Reloads on SIGHUP, one at a time; the others stop the daemon. A private daemon belongs to a terminal or a program
    /// that ends with it, and stops on SIGHUP too.
    async fn obey(mut self, host: Arc<Host>, options: Options, reporter: Arc<Reporter>, stop: CancellationToken) {
        loop {
            let name = tokio::select! {
                _ = self.terminate.recv() => "SIGTERM",
                _ = self.interrupt.recv() => "SIGINT",
                _ = self.hang_up.recv() => "SIGHUP",
            };
            info!(name, "signal");
            if name == "SIGHUP" && options.standalone.is_none() {
                tokio::select! {
                    () = obey_reload(&host, &options, &reporter) => continue,
                    _ = self.terminate.recv() => info!(name = "SIGTERM", "signal"),
                }
            }
            return stop.cancel();
        }
    }
}

async fn obey_reload(host: &Arc<Host>, options: &Options, reporter: &Reporter) {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => reporter.tell(&[NotifyState::Reloading, now]),
        Err(error) => warn!(%error, "clock not read; the service manager waits in vain"),
    }
    let refusal = reload(host, options).await.err();
    match &refusal {
        None => info!("configuration read again"),
        Some(error) => error!(%error, "reload refused; all stays as it was"),
    }
    reporter.note_reload(refusal);
    reporter.tell(&[NotifyState::Ready]);
}
