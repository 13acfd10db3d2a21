//! The gRPC server: every service behind one check of who is there, and bounds on what a connection may cost.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use brig_proto::sizes::{MESSAGE_MAX, SPEC_MAX};
use brig_proto::v1;
use brig_proto::v1::SessionCloseReason;
use brig_proto::v1::executions_server::ExecutionsServer;
use brig_proto::v1::ledger_server::LedgerServer;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::{Request, Status};
use tonic_health::server::HealthReporter;
use tracing::{error, info, warn};

use crate::artifacts::Spool;
use crate::audit::{AuditService, keep_house};
use crate::calls::note_stranger;
use crate::clients::{Clients, Named};
use crate::config::Config;
use crate::contexts::ContextsService;
use crate::executions::ExecutionsService;
use crate::host::{Host, HostService};
use crate::inputs::{Inputs, InputsService};
use crate::jailer::Jailer;
use crate::ledger::Ledger;
use crate::links::{self, Links};
use crate::listener::connections;
use crate::options::StartError;
use crate::principal::Principal;
use crate::repeats::Repeats;
use crate::review::{ArtifactStore, ArtifactsService};
use crate::run::approval::Approvals;
use crate::run::execution::StopCause;
use crate::run::log::Held;
use crate::run::pool::{self, Pool, check_ready};
use crate::run::queue::Queue;
use crate::run::registry::{KEPT_HELD, Registry};
use crate::run::scan::SCANS_MAX;
use crate::run::store::Store;
use crate::sessions::SessionsService;
use crate::slots::Slots;
use crate::status::Problem;
use crate::unbuilt::Unbuilt;
use crate::workspace::FilesService;

/// Calls that may go on at one time on a connection.
const STREAMS: u32 = 256;
/// Headers of a call, in bytes.
const HEADERS: u32 = 16 * 1024;
/// Streams that a client may have opened and reset without being thrown out.
const RESETS: usize = 64;
/// After this time without a sign of life a client is asked, and after the same again given up.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// What a client may have on its way on one connection, in bytes.
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// The largest frame of HTTP/2, in bytes: a part of a file then comes in one, and is read at once.
const FRAME: u32 = 512 * 1024;
/// What inputs and artifacts may take up on disk at one time, in bytes.
const SPOOL_BYTES: u64 = 8 * 1024 * 1024 * 1024;
/// The largest answer; `Get` carries the code and the result.
const ANSWER_MAX: usize = 4 * MESSAGE_MAX;
/// How long jails that were told to end may take.
const TEARDOWN: Duration = Duration::from_secs(15);
/// How long clients may take to read what is theirs when the daemon ends.
const GOODBYE: Duration = Duration::from_secs(2);
/// What else the end of the daemon may take: the ledger's last sync, and a private jailer's end.
const SPARE: Duration = Duration::from_secs(10);

/// What becomes of kept sessions when the daemon ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// They are closed: the jailer ends too.
    CloseSessions,
    /// The jailer holds them for the next daemon.
    HandOver,
}

/// Opens what the daemon keeps, and joins it with the jailer.
pub fn open(config: &Config, jailer: Jailer) -> Result<Arc<Host>, StartError> {
    let wrong = |error: &dyn std::fmt::Display| StartError::Configuration(error.to_string());
    let store = Store::load(config).map_err(|error| wrong(&error))?;
    check_ready(config, &store.policies()).map_err(|error| wrong(&error))?;
    let spool = config.spool();
    std::fs::create_dir_all(&spool).map_err(|error| {
        let uid = rustix::process::geteuid().as_raw();
        let spool = spool.display();
        wrong(&format!(
            "spool {spool}: {error}; uid {uid} must be able to reach and write that directory"
        ))
    })?;
    let files = (descriptors() / 2).max(1);
    let ledger = Ledger::open(&config.ledger()).map_err(|error| wrong(&error))?;
    // Behind the ledger, whose lock says that the folder is ours.
    let inputs = Inputs::open(&config.input_records(), config.inputs).map_err(|error| wrong(&error))?;
    let artifacts = ArtifactStore::open(&config.artifact_records(), &config.artifacts);
    let artifacts = artifacts.map_err(|error| wrong(&error))?;
    Ok(Arc::new(Host {
        jailer,
        ledger,
        inputs,
        artifacts,
        links: Links::open(config).map_err(|error| wrong(&error))?,
        spool: Spool::new(&spool, SPOOL_BYTES, files),
        store,
        queue: Queue::new(&config.limits),
        approvals: Approvals::new(&config.limits),
        pool: Pool::new(config.pool.clone()),
        clients: Clients::new(config.clients.clone()),
        connections: Slots::new(config.limits.connections),
        config: RwLock::new(Arc::new(config.clone())),
        // Where there are few descriptors, what is kept leaves half of the spool to what runs.
        repeats: Repeats::default(),
        registry: Registry::new(Held {
            files: KEPT_HELD.files.min(files / 2),
            ..KEPT_HELD
        }),
        pumps: Arc::default(),
        session_places: Slots::new(config.limits.sessions),
        scans: Slots::new(SCANS_MAX),
        tasks: Default::default(),
        kept_tasks: Default::default(),
        leaving: CancellationToken::new(),
        draining: CancellationToken::new(),
    }))
}

/// How many descriptors this process may have.
fn descriptors() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.unwrap_or(u64::MAX)
}

/// How long a daemon that was told to stop may take.
pub fn stop_takes(config: &Config) -> Duration {
    config.limits.drain.duration() + TEARDOWN + GOODBYE + SPARE
}

/// Where the daemon is asked.
#[derive(Debug)]
pub struct Listeners {
    pub clients: UnixListener,
    /// Where links are followed, if anywhere.
    pub links: Option<links::Listener>,
}

/// Serves clients until `shutdown` is cancelled or the jailer is gone, then ends in good order.
///
/// Errors: the jailer went away, or serving failed.
pub async fn run(
    listeners: Listeners,
    host: Arc<Host>,
    shutdown: CancellationToken,
    ending: Ending,
) -> Result<(), StartError> {
    let stop = CancellationToken::new();
    let incoming = connections(listeners.clients, Arc::clone(&host), stop.clone());
    let (routes, health) = router(&host).await?;
    tokio::spawn(keep_house(Arc::clone(&host)));
    let serving = tokio::spawn(routes.serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned()));
    let following = listeners.links.map(|listener| {
        host.links.serve_at(&listener);
        tokio::spawn(links::serve(listener, Arc::clone(&host), stop.clone()))
    });
    let sweeping = tokio::spawn(host.inputs.clone().sweep());
    let keeping = tokio::spawn(host.artifacts.clone().keep(host.ledger.clone()));
    let pooling = tokio::spawn(pool::keep(Arc::clone(&host)));
    info!(socket = %host.config().socket.display(), "daemon serving");
    let jailer_gone = tokio::select! {
        () = shutdown.cancelled() => false,
        () = host.jailer.gone() => true,
    };
    info!(jailer_gone, "daemon stopping");
    host.draining.cancel();
    health.set_not_serving::<ExecutionsServer<ExecutionsService>>().await;
    drain(&host).await;
    if let Err(error) = pooling.await {
        error!(%error, "sessions that waited not closed");
    }
    match ending {
        Ending::HandOver if !jailer_gone => leave_sessions(&host).await,
        // A jailer that is gone has ended them.
        Ending::HandOver | Ending::CloseSessions => close_sessions(&host).await,
    }
    host.registry.watchers.end();
    stop.cancel();
    sweeping.abort();
    keeping.abort();
    host.artifacts.end_watches();
    say_goodbye(serving).await;
    if let Some(following) = following
        && let Err(error) = following.await
    {
        error!(%error, "links not ended");
    }
    if let Err(error) = host.ledger.clone().close().await {
        error!(%error, "ledger close failed");
    }
    if jailer_gone {
        Err(StartError::Failed(
            "brig-jailer went away; every session is lost".to_owned(),
        ))
    } else {
        Ok(())
    }
}

/// Waits for the executions that run. Those that have not ended within `limits.drain` are stopped, and lost; their jails
/// are waited for.
async fn drain(host: &Host) {
    host.tasks.close();
    let patience = host.config().limits.drain.duration();
    if tokio::time::timeout(patience, host.tasks.wait()).await.is_ok() {
        return;
    }
    let mut left = host.registry.living();
    left.retain(|execution| execution.kept.is_none());
    warn!(
        count = left.len(),
        drain_ms = patience.as_millis(),
        "executions not ended in time"
    );
    left.iter()
        .for_each(|execution| execution.stop.tell(StopCause::Shutdown));
    if tokio::time::timeout(TEARDOWN, host.tasks.wait()).await.is_err() {
        warn!(left = host.tasks.len(), "sessions not confirmed closed");
    }
}

/// Leaves the sessions that are kept to the next daemon, as they are.
async fn leave_sessions(host: &Host) {
    host.leaving.cancel();
    host.kept_tasks.close();
    // Each ends where it next waits for something.
    if tokio::time::timeout(TEARDOWN, host.kept_tasks.wait()).await.is_err() {
        warn!(left = host.kept_tasks.len(), "kept sessions not left alone");
    }
    let mut left = host.registry.living();
    left.retain(|execution| execution.kept.is_some());
    info!(
        sessions = host.registry.sessions().len(),
        executions = left.len(),
        "sessions left to the next daemon"
    );
    left.iter()
        .for_each(|execution| execution.log.leave(Problem::Draining.status()));
    if let Err(error) = host.jailer.hand_over().await {
        error!(%error, "handover failed");
    }
}

/// Ends the sessions that are kept, and waits for that.
async fn close_sessions(host: &Host) {
    for session in host.registry.sessions() {
        session.end(SessionCloseReason::Shutdown);
    }
    host.kept_tasks.close();
    if tokio::time::timeout(TEARDOWN, host.kept_tasks.wait()).await.is_err() {
        warn!(left = host.kept_tasks.len(), "kept sessions not confirmed closed");
    }
}

/// Connections end when their streams do; a client that does not read must not hold the daemon.
async fn say_goodbye(serving: JoinHandle<Result<(), tonic::transport::Error>>) {
    match tokio::time::timeout(GOODBYE, serving).await {
        Ok(Ok(Err(error))) => error!(%error, "server failed"),
        Ok(Err(error)) => error!(%error, "server failed"),
        Ok(Ok(Ok(()))) | Err(_) => {}
    }
}

/// The principal of a call.
pub fn principal<T>(request: &Request<T>) -> Arc<Principal> {
    request
        .extensions()
        .get()
        .cloned()
        .expect("every service that asks is behind `known`")
}

/// Lets only those pass that the configuration names. Those that it refuses are recorded, under no tenant.
#[derive(Debug, Clone)]
struct Known(Ledger);

impl Interceptor for Known {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let named = request.extensions().get::<Arc<Named>>().cloned();
        let Some(named) = named else {
            return Err(Status::unauthenticated("the connection has no credentials"));
        };
        let Some(principal) = named.principal() else {
            let problem = Problem::Stranger(named.peer);
            note_stranger(&self.0, &problem, named.peer.uid);
            return Err(problem.into());
        };
        request.extensions_mut().insert(principal);
        // For who finds out later that a role is missing.
        request.extensions_mut().insert(self.0.clone());
        Ok(request)
    }
}

type Router = tonic::transport::server::Router;

async fn router(host: &Arc<Host>) -> Result<(Router, HealthReporter), StartError> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<ExecutionsServer<ExecutionsService>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(brig_proto::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(|error| StartError::Failed(format!("reflection: {error}")))?;
    let executions = ExecutionsServer::new(ExecutionsService(Arc::clone(host)))
        .max_decoding_message_size(SPEC_MAX)
        .max_encoding_message_size(ANSWER_MAX);
    let shown = HostService(Arc::clone(host));
    let known = Known(host.ledger.clone());
    // An entry carries code and output whole.
    let ledger = LedgerServer::new(AuditService::new(Arc::clone(host)))
        .max_decoding_message_size(MESSAGE_MAX)
        .max_encoding_message_size(ANSWER_MAX);
    let ledger = InterceptedService::new(ledger, known.clone());
    macro_rules! service {
        ($module:ident :: $server:ident, $service:expr) => {{
            let server = v1::$module::$server::new($service).max_decoding_message_size(MESSAGE_MAX);
            InterceptedService::new(server.max_encoding_message_size(MESSAGE_MAX), known.clone())
        }};
    }
    let routes = builder()
        .add_service(health_service)
        .add_service(reflection)
        .add_service(InterceptedService::new(executions, known.clone()))
        .add_service(service!(host_server::HostServer, shown.clone()))
        .add_service(service!(templates_server::TemplatesServer, shown))
        .add_service(service!(
            sessions_server::SessionsServer,
            SessionsService(Arc::clone(host))
        ))
        .add_service(service!(
            contexts_server::ContextsServer,
            ContextsService(Arc::clone(host))
        ))
        .add_service(service!(inputs_server::InputsServer, InputsService(Arc::clone(host))))
        .add_service(service!(files_server::FilesServer, FilesService(Arc::clone(host))))
        .add_service(service!(
            artifacts_server::ArtifactsServer,
            ArtifactsService(Arc::clone(host))
        ))
        .add_service(service!(packages_server::PackagesServer, Unbuilt))
        .add_service(ledger);
    Ok((routes, health))
}

fn builder() -> Server {
    Server::builder()
        .max_concurrent_streams(STREAMS)
        .concurrency_limit_per_connection(usize::try_from(STREAMS).unwrap_or(usize::MAX))
        .http2_max_header_list_size(HEADERS)
        .http2_max_pending_accept_reset_streams(Some(RESETS))
        .http2_max_local_error_reset_streams(Some(RESETS))
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
}
