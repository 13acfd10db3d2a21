//! The start of the daemon: what must happen while there is one thread, and then the runtime.

use std::io::Write;
use std::os::fd::OwnedFd;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;

use crate::config::{Config, LogFormat};
use crate::jailer::{Jailer, dial};
use crate::listener;
use crate::options::{Options, StartError};
use crate::privileges::{Identity, give_up_root};
use crate::server;
use crate::standalone::{PrivateJailer, prepare_directory};

/// How long the private jailer may take to end after its socket is closed.
const JAILER_END: std::time::Duration = std::time::Duration::from_secs(10);
/// How brig-jailer exits when its configuration is broken or this host can't make jails.
const JAILER_CONFIGURATION: i32 = 78;

/// Starts the daemon and serves until it is told to stop.
///
/// The order matters: the private jailer is started while this process is root and has one thread; root is given up
/// before anything a client sends is read; only then there are threads.
pub fn start(options: &Options) -> Result<(), StartError> {
    let config = Config::load(options)?;
    if options.check_config || options.print_config {
        return show(options, &config);
    }
    log_to_stderr(config.log);
    let ready = options.ready_fd.map(open_ready).transpose()?;
    let identity = Identity::of_daemon();
    let (private, socket) = match &options.standalone {
        Some(directory) => {
            let (private, socket) = PrivateJailer::start(options, &config.policies, &config.images)?;
            prepare_directory(directory, identity)?;
            (Some(private), Some(socket))
        }
        None => (None, None),
    };
    raise_descriptors();
    give_up_root(identity).map_err(|error| StartError::Failed(format!("giving up root: {error}")))?;
    let socket = match socket {
        Some(socket) => socket,
        None => connect(&config)?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| StartError::Failed(format!("runtime: {error}")))?;
    let served = runtime.block_on(serve(&config, socket, ready, options.tied));
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

fn show(options: &Options, config: &Config) -> Result<(), StartError> {
    let failed = |error: &dyn std::fmt::Display| StartError::Failed(error.to_string());
    if options.print_config {
        let text = toml::to_string(config).map_err(|error| failed(&error))?;
        return std::io::stdout()
            .write_all(text.as_bytes())
            .map_err(|error| failed(&error));
    }
    crate::run::store::Store::load(config).map_err(|error| StartError::Configuration(error.to_string()))?;
    writeln!(std::io::stdout(), "configuration and policies are in order").map_err(|error| failed(&error))
}

/// `BRIG_LOG` says what is logged, as in `debug` or `brig_daemon::run=debug`.
fn log_to_stderr(format: LogFormat) {
    let wanted = std::env::var("BRIG_LOG").unwrap_or_else(|_unset| "info".to_owned());
    // Frames of HTTP/2 tell nothing about Brig, and those of a client hold its bytes.
    let filter = EnvFilter::new(format!("h2=info,hyper=info,tower=info,{wanted}"));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => subscriber.with_ansi(false).init(),
        LogFormat::Json => subscriber.json().init(),
    }
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

async fn serve(config: &Config, socket: OwnedFd, ready: Option<std::fs::File>, tied: bool) -> Result<(), StartError> {
    let jailer = Jailer::start(socket)
        .await
        .map_err(|error| StartError::Failed(error.to_string()))?;
    let host = server::open(config, jailer)?;
    let listener = listener::bind(config)
        .map_err(|error| StartError::Configuration(format!("socket {}: {error}", config.socket.display())))?;
    let shutdown = CancellationToken::new();
    if let Some(mut ready) = ready {
        // In one write, so that a reader that stops at the newline has all of it.
        let line = format!("ready {}\n", config.socket.display());
        ready
            .write_all(line.as_bytes())
            .map_err(|error| StartError::Failed(format!("--ready-fd: {error}")))?;
        if tied {
            end_with_reader(ready, shutdown.clone());
        }
    }
    let stop = shutdown.clone();
    let [mut terminate, mut interrupt] = [SignalKind::terminate(), SignalKind::interrupt()]
        .map(signal)
        .map(|signal| signal.expect("SIGTERM and SIGINT can be caught"));
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => info!("signal SIGTERM"),
            _ = interrupt.recv() => info!("signal SIGINT"),
        }
        stop.cancel();
    });
    let served = server::run(listener, config, host, shutdown).await;
    let _ = std::fs::remove_file(&config.socket);
    served
}
