//! A brigd in this process, with a stand-in for brig-jailer: it runs programs without any jail.
//!
//! It shows that brigd keeps its side of the contract. That jails hold is shown elsewhere, with the real jailer.

pub(crate) mod helper;
pub(crate) mod jailer;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use brig_daemon::config::{Config, Limits, PoolLimits};
use brig_daemon::jailer::Jailer;
use brig_daemon::listener;
use brig_daemon::options::StartError;
use brig_daemon::run::kept::adopt::adopt;
use brig_daemon::server::{self, Ending, Listeners};
use brig_jailer::units::Span;
use brig_proto::v1::execution_event::Event;
use brig_proto::v1::execution_spec::Work;
use brig_proto::v1::executions_client::ExecutionsClient;
use brig_proto::v1::sessions_client::SessionsClient;
use brig_proto::v1::{
    Command, ExecuteRequest, ExecutionEvent, ExecutionResult, ExecutionSpec, ExecutionsAttachRequest, RunRequest,
    Session, SessionState, SessionsCloseRequest, SessionsCreateRequest, SessionsGetRequest, run_request,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use jailer::{Behaviour, StandIn};

/// A daemon that runs.
pub(crate) struct Daemon {
    directory: tempfile::TempDir,
    pub(crate) jailer: Arc<StandIn>,
    pub(crate) shutdown: CancellationToken,
    pub(crate) served: Served,
    pub(crate) config: Config,
    ending: Ending,
    _programs: Programs,
}

/// The programs of a stand-in, which end with this.
struct Programs(Arc<StandIn>);

impl Drop for Programs {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Starts a daemon with room for some executions; `None` where this can't be tested.
pub(crate) async fn daemon(behaviour: Behaviour, running: usize) -> Option<Daemon> {
    start(behaviour, running, Ending::CloseSessions).await
}

/// Starts one that leaves its sessions to the next one when it ends.
pub(crate) async fn daemon_that_comes_back(behaviour: Behaviour) -> Option<Daemon> {
    start(behaviour, 4, Ending::HandOver).await
}

async fn start(behaviour: Behaviour, running: usize, ending: Ending) -> Option<Daemon> {
    if !nix::unistd::Uid::effective().is_root() {
        let has = std::env::var("BRIG_TEST_HAS").unwrap_or_default();
        assert!(
            !has.contains("root"),
            "BRIG_TEST_HAS promises root, and this is not root"
        );
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    write_policy(directory.path());
    write_template(directory.path());
    let config = Config {
        socket: directory.path().join("s"),
        socket_group: String::new(),
        state: directory.path().to_owned(),
        policies: vec![directory.path().join("policies")],
        images: directory.path().join("images"),
        limits: Limits {
            running,
            queue: 2,
            sessions: 2,
            connections: 8,
            drain: Span::from_millis(500),
            ..Limits::default()
        },
        // What is counted is what a test asked for.
        pool: PoolLimits {
            sessions: 0,
            ..PoolLimits::default()
        },
        ..Config::default()
    };
    let (jailer, socket) = StandIn::start(behaviour);
    let (shutdown, served) = serve(&config, socket, ending).await;
    let programs = Programs(Arc::clone(&jailer));
    Some(Daemon {
        directory,
        jailer,
        shutdown,
        served,
        config,
        ending,
        _programs: programs,
    })
}

type Served = JoinHandle<Result<(), StartError>>;

async fn serve(config: &Config, socket: OwnedFd, ending: Ending) -> (CancellationToken, Served) {
    let (jailer, held) = Jailer::start(socket).await.unwrap();
    let host = server::open(config, jailer).unwrap();
    adopt(&host, held).await.unwrap();
    let listeners = Listeners {
        clients: listener::bind(config).unwrap(),
        links: None,
    };
    let shutdown = CancellationToken::new();
    let served = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { server::run(listeners, host, shutdown, ending).await }
    });
    (shutdown, served)
}

fn write_policy(directory: &Path) {
    let policies = directory.join("policies");
    std::fs::create_dir(&policies).unwrap();
    let text = "template = \"base\"\n[limits]\ntimeout = { default = \"10s\", max = \"20s\" }\n\
                start_timeout = \"2s\"\noutput_bytes = \"64K\"\n[environment]\nallow = [\"TZ\"]\n\
                [syscalls]\ngroups = [\"base\"]\n";
    std::fs::write(policies.join("data.toml"), text).unwrap();
    let ends = text.replace("[environment]", "on_output_limit = \"end\"\n[environment]");
    std::fs::write(policies.join("ends.toml"), ends).unwrap();
}

fn write_template(directory: &Path) {
    let images = directory.join("images");
    let folder = images.join("base-0123456789ab");
    std::fs::create_dir_all(folder.join("tree")).unwrap();
    let hash = format!("0123456789ab{}", "0".repeat(52));
    let image = format!("{{\"name\":\"base\",\"hash\":\"{hash}\",\"interpreter\":\"/bin/sh\",\"warm_up\":null}}");
    std::fs::write(folder.join("image.json"), image).unwrap();
    std::os::unix::fs::symlink("base-0123456789ab", images.join("base")).unwrap();
}

impl Daemon {
    /// Ends the daemon; the jailer stays.
    pub(crate) async fn leave(&mut self) {
        self.shutdown.cancel();
        (&mut self.served).await.unwrap().unwrap();
        self.until("the jailer is alone", |daemon| daemon.jailer.is_alone())
            .await;
    }

    /// Starts the next daemon.
    pub(crate) async fn come_back(&mut self) {
        let socket = self.jailer.connect();
        (self.shutdown, self.served) = serve(&self.config, socket, self.ending).await;
    }

    /// Follows an execution from after a sequence number.
    pub(crate) async fn attach(&self, id: &str, after_sequence: u64) -> Result<Streaming<ExecutionEvent>, Status> {
        let request = ExecutionsAttachRequest {
            execution_id: id.to_owned(),
            after_sequence,
        };
        Ok(self.client().await.attach(request).await?.into_inner())
    }

    /// What the ledger says of executions and sessions: status or reason, by id. Empty while there is none.
    pub(crate) fn recorded(&self, id: &str) -> String {
        let connection = rusqlite::Connection::open(self.config.ledger()).unwrap();
        let sql = "SELECT coalesce(status, '') FROM executions WHERE execution = ?1
                   UNION ALL SELECT coalesce(reason, '') FROM sessions WHERE session = ?1";
        connection.query_row(sql, [id], |row| row.get(0)).unwrap()
    }

    /// Waits until something is so.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_so(self) {
            assert!(Instant::now() < deadline, "{what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Connects a client.
    pub(crate) async fn channel(&self) -> Channel {
        let address = format!("unix://{}", self.config.socket.display());
        Endpoint::try_from(address).unwrap().connect().await.unwrap()
    }

    /// Connects a client of Executions.
    pub(crate) async fn client(&self) -> ExecutionsClient<Channel> {
        ExecutionsClient::new(self.channel().await)
    }

    /// Connects a client of Sessions.
    pub(crate) async fn sessions(&self) -> SessionsClient<Channel> {
        SessionsClient::new(self.channel().await)
    }

    /// Makes a session under a name.
    pub(crate) async fn session(&self, id: &str) {
        let request = SessionsCreateRequest {
            session_id: id.to_owned(),
            ..SessionsCreateRequest::default()
        };
        self.create(request).await.unwrap();
    }

    /// Makes a session.
    pub(crate) async fn create(&self, request: SessionsCreateRequest) -> Result<Session, Status> {
        let answer = self.sessions().await.create(request).await?;
        Ok(answer.into_inner().session.unwrap())
    }

    /// Shows a session.
    pub(crate) async fn shown(&self, id: &str) -> Session {
        let session_id = id.to_owned();
        let answer = self.sessions().await.get(SessionsGetRequest { session_id }).await;
        answer.unwrap().into_inner().session.unwrap()
    }

    /// Closes a session.
    pub(crate) async fn close(&self, id: &str) -> Session {
        let request = SessionsCloseRequest {
            session_id: id.to_owned(),
            ..SessionsCloseRequest::default()
        };
        let answer = self.sessions().await.close(request).await;
        answer.unwrap().into_inner().session.unwrap()
    }

    /// Waits until a session is closed.
    pub(crate) async fn closed(&self, id: &str) -> Session {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let session = self.shown(id).await;
            if session.state() == SessionState::Closed {
                return session;
            }
            assert!(Instant::now() < deadline, "{session:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Starts something in a session.
    pub(crate) async fn execute(&self, id: &str, spec: ExecutionSpec) -> Result<Streaming<ExecutionEvent>, Status> {
        let request = ExecuteRequest {
            session_id: id.to_owned(),
            context_id: String::new(),
            spec: Some(spec),
        };
        Ok(self.client().await.execute(request).await?.into_inner())
    }

    /// Starts a run of one message.
    pub(crate) async fn run(&self, spec: ExecutionSpec) -> Result<Streaming<ExecutionEvent>, Status> {
        let first = RunRequest {
            part: Some(run_request::Part::Spec(spec)),
        };
        let response = self.client().await.run(tokio_stream::once(first)).await?;
        Ok(response.into_inner())
    }

    /// Runs a shell command to its end.
    pub(crate) async fn sh(&self, script: &str) -> Vec<Event> {
        drain(self.run(sh(script)).await.unwrap()).await
    }

    /// Opens the ledger, once the daemon has ended.
    pub(crate) async fn ledger(self) -> (brig_daemon::ledger::Ledger, tempfile::TempDir) {
        self.shutdown.cancel();
        self.served.await.unwrap().unwrap();
        (
            brig_daemon::ledger::Ledger::open(&self.config.ledger()).unwrap(),
            self.directory,
        )
    }
}

/// A file that programs wait for.
pub(crate) struct Gate {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Gate {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("go");
        Self { _folder: folder, path }
    }

    /// Says `up`, waits, says `down` and ends with 3.
    pub(crate) fn script(&self) -> String {
        let path = self.path.display();
        format!("echo up; while [ ! -e {path} ]; do sleep 0.01; done; echo down; exit 3")
    }

    pub(crate) fn open(&self) {
        std::fs::write(&self.path, "").unwrap();
    }
}

/// A shell command.
pub(crate) fn sh(script: &str) -> ExecutionSpec {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    ExecutionSpec {
        work: Some(Work::Command(Command {
            argv,
            ..Command::default()
        })),
        ..ExecutionSpec::default()
    }
}

/// All events up to the end.
pub(crate) async fn drain(mut stream: Streaming<ExecutionEvent>) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(event) = stream.message().await.unwrap() {
        events.extend(event.event);
    }
    events
}

/// The next event.
pub(crate) async fn next(stream: &mut Streaming<ExecutionEvent>) -> Event {
    stream.message().await.unwrap().unwrap().event.unwrap()
}

/// The result, which must be the last event and the only one of its kind.
pub(crate) fn result(events: &[Event]) -> &ExecutionResult {
    let finished = events
        .iter()
        .filter(|event| matches!(event, Event::Finished(_)))
        .count();
    assert_eq!(finished, 1, "{events:?}");
    match events.last() {
        Some(Event::Finished(result)) => result,
        other => panic!("the last event is {other:?}"),
    }
}
