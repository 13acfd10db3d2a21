//! The privileged program; see [`brig_jailer::host`].

use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use brig_jailer::host::{Entrance, Grace, Places, check, report, serve};
use brig_jailer::service::activation::{self, Place, Wanted};
use brig_jailer::service::log::{self, LogFormat};
use brig_jailer::service::notify::Notifier;
use brig_jailer::sys;
use brig_jailer::units::Span;
use clap::Parser;
use rustix::net::SocketType;

/// Makes and ends the jails of Brig. Started by systemd or by brigd; runs as root.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Serve the client on this descriptor, and end with it
    #[arg(long, value_name = "N", conflicts_with = "listen")]
    fd: Option<i32>,
    /// Serve clients on the socket at this path, which is made unless the service manager made it
    #[arg(long, value_name = "PATH")]
    listen: Option<PathBuf>,
    /// The user that may connect to --listen, beside root
    #[arg(long, value_name = "USER", default_value = "brig")]
    client: String,
    /// How long held sessions wait for a client that went away without a word
    #[arg(long, value_name = "SPAN", default_value = "30s")]
    restart_grace: Span,
    /// How long they wait for one that said that it ends on purpose
    #[arg(long, value_name = "SPAN", default_value = "5m")]
    handover_grace: Span,
    /// Form of the log: auto (journal if stderr leads there, else text), text, json or journal
    #[arg(long, value_name = "FORM", default_value = "auto")]
    log: LogFormat,
    /// Folder of policies; a later one overrides an earlier one by file name
    #[arg(long, value_name = "DIR", default_values = ["/usr/share/brig/policies", "/etc/brig/policies"])]
    policies: Vec<PathBuf>,
    /// The image store
    #[arg(long, value_name = "DIR", default_value = "/var/lib/brig/images")]
    images: PathBuf,
    /// The kernel layer
    #[arg(long, value_name = "DIR", default_value = "/usr/lib/brig/kernel")]
    kernel: PathBuf,
    /// The folder of brig-init and brig-files
    #[arg(long, value_name = "DIR", default_value = "/usr/lib/brig")]
    programs: PathBuf,
    /// Ceilings of all policies
    #[arg(long, value_name = "FILE", default_value = "/etc/brig/ceilings.toml")]
    ceilings: PathBuf,
    /// Where workspaces on disk are made, for policies with limits.workspace = "disk"
    #[arg(long, value_name = "DIR", default_value = "/var/lib/brig/workspaces")]
    workspaces: PathBuf,
    /// Read policies, syscall groups, ceilings and images, say what is wrong with them, and end
    #[arg(long)]
    check: bool,
    /// Print what this host can enforce, as JSON, and end
    #[arg(long)]
    doctor: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Err(error) = log::start(options.log, "brig-jailer", "") {
        // There is nobody left to tell if stderr is gone too.
        let _ = writeln!(std::io::stderr(), "brig-jailer: {error}");
        return ExitCode::from(78);
    }
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::from(78)
        }
    }
}

fn run(options: Options) -> Result<(), Box<dyn std::error::Error>> {
    let places = Places {
        policies: options.policies,
        images: options.images,
        kernel: options.kernel,
        programs: options.programs,
        ceilings: options.ceilings,
        workspaces: options.workspaces,
    };
    if options.doctor {
        let text = serde_json::to_string_pretty(&report(&places))?;
        writeln!(std::io::stdout(), "{text}")?;
        return Ok(());
    }
    if options.check {
        return Ok(check(&places)?);
    }
    let entrance = match (options.fd, options.listen) {
        (Some(number), _) => Entrance::Connected(sys::inherited(number)?),
        (None, Some(path)) => {
            let user = nix::unistd::User::from_name(&options.client)?;
            let uid = user
                .ok_or_else(|| format!("--client: there is no user {:?}", options.client))?
                .uid
                .as_raw();
            let socket = match passed(&path)? {
                Some(socket) => socket,
                None => listen(&path, uid)?,
            };
            Entrance::Listening {
                socket,
                uid,
                grace: Grace {
                    crash: options.restart_grace.duration(),
                    handover: options.handover_grace.duration(),
                },
            }
        }
        (None, None) => return Err("one of --fd and --listen is needed".into()),
    };
    let notifier = Notifier::from_environment()?;
    sys::cloexec_from(3)?;
    Ok(serve(places, entrance, notifier)?)
}

/// The socket that the service manager made.
fn passed(path: &Path) -> Result<Option<OwnedFd>, activation::ActivationError> {
    let [socket] = activation::take([Wanted {
        name: "jailer",
        kind: SocketType::SEQPACKET,
        place: Place::Path(path),
    }])?;
    Ok(socket)
}

/// Makes the socket, for its owner alone.
fn listen(path: &Path, owner: u32) -> Result<OwnedFd, Box<dyn std::error::Error>> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
    // A socket that nobody listens on is left from a process that was killed.
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let address = SocketAddrUnix::new(path)?;
    if connect(&socket, &address).is_ok() {
        return Err(format!("{}: another jailer listens there", path.display()).into());
    }
    if path.exists() {
        std::fs::remove_file(path)?;
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let bound = bind(&socket, &address);
    rustix::process::umask(before);
    bound?;
    std::os::unix::fs::chown(path, Some(owner), None)?;
    listen(&socket, 8)?;
    Ok(socket)
}
