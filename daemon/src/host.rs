//! What all executions share, and the services that show it: Host and Templates.

use std::sync::{Arc, PoisonError, RwLock};

use brig_jailer::api::{Check, Verdict};
use brig_jailer::policy::Policy;
use brig_jailer::template::Template;
use brig_proto::v1;
use brig_proto::v1::{HostLoad, HostVerdict, Reason};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use crate::artifacts::Spool;
use crate::clients::Clients;
use crate::config::{Config, Role};
use crate::inputs::Inputs;
use crate::jailer::Jailer;
use crate::ledger::Ledger;
use crate::links::Links;
use crate::principal::Principal;
use crate::reload::Prepared;
use crate::repeats::Repeats;
use crate::review::ArtifactStore;
use crate::run::approval::Approvals;
use crate::run::collect::Keep;
use crate::run::pool::Pool;
use crate::run::pump::Pumps;
use crate::run::queue::Queue;
use crate::run::registry::Registry;
use crate::run::scan::Scans;
use crate::run::store::{Store, TemplateList};
use crate::server::principal;
use crate::slots::Slots;
use crate::status::Problem;

/// What this daemon can do, for clients that test for it.
const FEATURES: [&str; 23] = [
    "run",
    "attach",
    "artifacts.inline",
    "request_id",
    "sessions",
    "sessions.pause",
    "sessions.usage",
    "sessions.watch",
    "execute",
    "approval",
    "files",
    "inputs",
    "artifacts",
    "artifacts.review",
    "interrupt",
    "signal",
    "signal.group",
    "input",
    "terminal",
    "output.stream",
    "contexts",
    "ledger",
    "pool",
];

/// What all executions of this daemon share.
#[derive(Debug)]
pub struct Host {
    /// What is in force; see [`Host::config`].
    pub config: RwLock<Arc<Config>>,
    pub jailer: Jailer,
    pub ledger: Ledger,
    pub spool: Spool,
    pub inputs: Inputs,
    pub artifacts: ArtifactStore,
    /// Addresses of artifacts, for whoever has one.
    pub links: Links,
    pub store: Store,
    pub queue: Arc<Queue>,
    /// Executions that wait for a reviewer.
    pub approvals: Arc<Approvals>,
    /// Sessions that wait to be used.
    pub pool: Arc<Pool>,
    /// Who is connected, and as whom.
    pub clients: Clients,
    /// Connections that there may be.
    pub connections: Arc<Slots>,
    pub registry: Registry,
    pub repeats: Repeats,
    pub pumps: Arc<Pumps>,
    /// Places of kept sessions.
    pub session_places: Arc<Slots>,
    /// Places of sessions that a scanner looks at a file in.
    pub scans: Arc<Slots>,
    /// Every one-shot execution up to the end of its jail.
    pub tasks: TaskTracker,
    /// Every kept session and every execution in one. They may outlive the daemon, which does not wait for them.
    pub kept_tasks: TaskTracker,
    /// Cancelled when the daemon leaves kept sessions to the next one: it does nothing about them any more.
    pub leaving: CancellationToken,
    /// Cancelled when the daemon is about to stop: nothing new is accepted.
    pub draining: CancellationToken,
}

impl Host {
    /// The configuration that is in force now; a reload replaces it.
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts a configuration in force that was found good. Can block: open connections are named again.
    pub fn take_over(&self, prepared: Prepared) {
        let Prepared {
            config,
            policies,
            templates,
            link_key,
        } = prepared;
        self.store.replace(policies, templates);
        self.queue.resize(&config.limits);
        self.approvals.resize(&config.limits);
        self.inputs.resize(config.inputs);
        self.artifacts.resize(&config.artifacts);
        self.links.replace(link_key, config.links.clone());
        self.session_places.resize(config.limits.sessions);
        self.connections.resize(config.limits.connections);
        self.clients.replace(config.clients.clone());
        let pool = config.pool.clone();
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
        // It looks at the others.
        self.pool.replace(pool);
    }

    /// Does something about a kept session until the daemon leaves that to the next one.
    pub fn spawn_kept(&self, task: impl Future<Output = ()> + Send + 'static) {
        let task = self.leaving.clone().run_until_cancelled_owned(task);
        self.kept_tasks.spawn(task);
    }

    /// Where what executions of a policy leave goes.
    pub fn keep(&self, policy: &Policy) -> Keep<'_> {
        Keep {
            spool: &self.spool,
            artifacts: &self.artifacts,
            scans: Scans::of(self, policy),
        }
    }

    /// Sessions that exist or are being made.
    pub fn sessions(&self) -> usize {
        let waiting = self.queue.load().1 + self.approvals.one_shot();
        self.tasks.len().saturating_sub(waiting) + self.session_places.taken()
    }

    fn templates(&self) -> Result<TemplateList, Problem> {
        self.store
            .templates()
            .map_err(|error| Problem::Configuration(error.to_string()))
    }
}

/// Serves Host and Templates.
#[derive(Debug, Clone)]
pub struct HostService(pub Arc<Host>);

#[tonic::async_trait]
impl v1::host_server::Host for HostService {
    async fn get(&self, request: Request<v1::HostGetRequest>) -> Result<Response<v1::HostGetResponse>, Status> {
        let host = &self.0;
        let principal = principal(&request);
        let report = host.jailer.host().await.map_err(Problem::from)?;
        let (running, queued) = host.queue.load();
        Ok(Response::new(v1::HostGetResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            jailer_version: host.jailer.version().to_owned(),
            features: features(host),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            checks: report.checks.iter().map(check).collect(),
            policies: host.store.policy_ids(),
            templates: host.templates()?.iter().map(|template| template.id.clone()).collect(),
            principal: Some(show_principal(&principal)),
            load: Some(HostLoad {
                sessions: report.sessions,
                running: running as u64,
                queued: queued as u64,
                draining: host.draining.is_cancelled(),
                starts: host.pool.starts(),
                waiting: host.pool.waiting() as u64,
                failed_ahead: host.pool.failures(),
                failed_zygotes: host.pool.zygote_failures(),
                holders: host.pool.holding() as u64,
                ..HostLoad::default()
            }),
            ..v1::HostGetResponse::default()
        }))
    }
}

#[tonic::async_trait]
impl v1::templates_server::Templates for HostService {
    async fn list(
        &self,
        request: Request<v1::TemplatesListRequest>,
    ) -> Result<Response<v1::TemplatesListResponse>, Status> {
        let name = request.into_inner().name;
        let templates = self.0.templates()?;
        // There are a handful, so that all fit one page.
        let shown = templates
            .iter()
            .filter(|template| name.is_empty() || template.name == name);
        let templates = shown
            .map(|template| v1::Template {
                packages: Vec::new(),
                ..show(template)
            })
            .collect();
        Ok(Response::new(v1::TemplatesListResponse {
            templates,
            next_page_token: String::new(),
        }))
    }

    async fn get(
        &self,
        request: Request<v1::TemplatesGetRequest>,
    ) -> Result<Response<v1::TemplatesGetResponse>, Status> {
        let wanted = request.into_inner().template;
        let template = self.0.templates()?.find(&wanted).map_err(|problem| Problem::NotFound {
            kind: "template",
            name: wanted.chars().take(60).collect(),
            why: problem.message,
            reason: Reason::TemplateNotFound,
        })?;
        Ok(Response::new(v1::TemplatesGetResponse {
            template: Some(show(&template)),
        }))
    }
}

fn features(host: &Host) -> Vec<String> {
    let configured = host.links.is_on().then_some("artifacts.links");
    FEATURES.into_iter().chain(configured).map(str::to_owned).collect()
}

fn show(template: &Template) -> v1::Template {
    v1::Template {
        template: template.id.clone(),
        name: template.name.clone(),
        hash: template.hash.clone(),
        current: true,
        interpreter: template.interpreter.clone().unwrap_or_default(),
        environment: template.environment.iter().cloned().collect(),
        packages: template.packages.iter().map(package).collect(),
        imports: template.imports.clone(),
        warm_up: template.warm_up.clone().unwrap_or_default(),
        ..v1::Template::default()
    }
}

fn package(package: &brig_jailer::template::Package) -> v1::Package {
    v1::Package {
        name: package.name.clone(),
        version: package.version.clone(),
    }
}

fn check(check: &Check) -> v1::HostCheck {
    let verdict = match check.verdict {
        Verdict::Ok => HostVerdict::Ok,
        Verdict::Degraded => HostVerdict::Degraded,
        Verdict::Missing => HostVerdict::Missing,
    };
    v1::HostCheck {
        what: check.what.clone(),
        found: check.found.clone(),
        needed: check.needed.clone(),
        verdict: verdict.into(),
        mend: check.mend.clone(),
    }
}

fn show_principal(principal: &Principal) -> v1::Principal {
    let role = |role: &Role| match role {
        Role::Runner => v1::Role::Runner,
        Role::Reviewer => v1::Role::Reviewer,
        Role::Auditor => v1::Role::Auditor,
        Role::Operator => v1::Role::Operator,
    };
    v1::Principal {
        tenant: principal.tenant.clone(),
        user: principal.user.clone(),
        roles: principal.roles.iter().map(|given| role(given).into()).collect(),
    }
}
