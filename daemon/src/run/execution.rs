//! One accepted execution: what is known of it, and how it is told to stop.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use brig_jailer::api::Request;
use brig_jailer::files::wire::Time;
use brig_jailer::ids::Id;
use brig_jailer::policy::Resolved;
use brig_proto::v1;
use brig_proto::v1::execution_spec::Work as SpecWork;
use brig_proto::v1::{EffectiveLimits, ExecutionResult, ExecutionSpec, InputFile, OnDisconnect, OutputMode, StartKind};
use prost::Message;
use prost_types::Duration;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::SetOnce;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::jailer::Jailer;
use crate::output::Output;
use crate::principal::Principal;
use crate::run::admit::{Conditions, Content, Job, Work, check_expected, wants_inline};
use crate::run::approval::{Approval, Decision};
use crate::run::clock::Clock;
use crate::run::context::Seat;
use crate::run::fields::Fields;
use crate::run::finish::signal_bit;
use crate::run::inputs::hex;
use crate::run::journal::{JournalError, Kept};
use crate::run::kept::Session;
use crate::run::kept::memo::{ExecutionMemo, MemoError, Outline};
use crate::run::life::Times;
use crate::run::log::{Held, Log};
use crate::run::stdin::Stdin;
use crate::run::terminal::Size;

/// How long code may go on after an interrupt.
const INTERRUPT: std::time::Duration = std::time::Duration::from_secs(2);

/// Why an execution can't be gone on with.
#[derive(Debug, thiserror::Error)]
pub enum NotRestored {
    /// Nobody knows of it, or it was called off.
    #[error("its program had not started")]
    NotStarted,
    #[error("other descriptors came than were told")]
    Descriptors,
    #[error("memo: {0}")]
    Memo(#[from] MemoError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("the ledger has its end, or does not know it")]
    Recorded,
    /// It has an id or a request that is another's.
    #[error("{0}")]
    Taken(String),
}

/// One accepted execution, as long as somebody may ask for it.
#[derive(Debug)]
pub struct Execution {
    pub id: Id,
    pub session: Id,
    pub request: Option<Id>,
    /// Hash of the request with all its inputs: the same request_id must come with the same one.
    pub digest: [u8; 32],
    pub principal: Arc<Principal>,
    /// Who asked: the application's user, else the connection's.
    pub user: String,
    /// The request, without the bytes of its inputs.
    pub spec: ExecutionSpec,
    pub policy: String,
    pub template: String,
    pub limits: EffectiveLimits,
    pub inputs: Vec<InputFile>,
    /// Of the standard input that came with the request: how many bytes, and their hash.
    pub stdin_given: Option<(u64, String)>,
    pub work_sha256: String,
    pub create_time: SystemTime,
    pub output: Arc<Output>,
    pub log: Arc<Log>,
    pub stdin: Arc<Stdin>,
    /// What size its terminal is to have.
    pub size: Arc<Size>,
    pub stop: Stop,
    /// The session that it runs in, if that is kept.
    pub kept: Option<Arc<Session>>,
    /// The context that it runs in, if it runs in one.
    pub seat: Option<Seat>,
    /// The decision that it waits for, or waited for.
    pub approval: Option<Approval>,
    /// How its program came to be, once it runs.
    start: OnceLock<StartKind>,
    /// Whether somebody interrupted it.
    interrupted: AtomicBool,
    /// Cancelled when somebody interrupts it, for whoever does that by itself.
    interrupt_told: CancellationToken,
    /// Signals that callers sent, a bit each.
    signals_sent: AtomicU64,
    /// Whether it was accepted, once that is decided.
    admission: SetOnce<bool>,
    /// Callers of Run that still listen.
    callers: AtomicUsize,
    ends_without_callers: bool,
}

/// Keeps an execution from being cancelled for want of a caller; one per stream of Run.
#[derive(Debug)]
pub struct Caller(Arc<Execution>);

/// Tells an execution to stop, and why. The first cause wins.
#[derive(Debug, Default)]
pub struct Stop {
    cause: OnceLock<StopCause>,
    told: CancellationToken,
}

/// Why brigd stops an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopCause {
    WallTime,
    Output,
    Cancel,
    ClientGone,
    /// It did not end after an interrupt.
    Interrupt,
    /// Somebody closed its session.
    SessionClosed,
    /// Its session expired.
    SessionAge,
    /// Nothing was written for so many milliseconds.
    IdleTime(u64),
    /// Brig could not keep what it must.
    Fault,
    /// What came from its interpreter can't be followed any more.
    Frames,
    /// The daemon ends.
    Shutdown,
}

impl Execution {
    /// Takes down what is known of a job that is about to be accepted.
    pub fn new(
        job: &Job,
        spec: ExecutionSpec,
        digest: [u8; 32],
        principal: Arc<Principal>,
        kept: Option<Arc<Session>>,
    ) -> Self {
        let output = new_output(&spec, job.limits.output_bytes, clock_of(kept.as_ref()));
        Self {
            id: job.execution.clone(),
            session: job.session.clone(),
            request: job.request.clone(),
            digest,
            user: user(&principal, &spec),
            principal,
            policy: job.policy.id(),
            template: job.template.id.clone(),
            limits: effective_limits(&job.limits),
            inputs: input_files(job),
            stdin_given: job
                .stdin
                .as_ref()
                .map(|stdin| (stdin.len() as u64, hex(&Sha256::digest(stdin)))),
            work_sha256: hex(&Sha256::digest(work_bytes(&job.work))),
            create_time: SystemTime::now(),
            log: Arc::new(Log::new(
                job.execution.clone(),
                job.session.clone(),
                Arc::clone(&output),
            )),
            output,
            stdin: Arc::new(Stdin::new(spec.stdin_open)),
            size: Arc::default(),
            stop: Stop::default(),
            kept,
            seat: None,
            approval: Approval::asked_by(&job.policy),
            start: OnceLock::new(),
            interrupted: AtomicBool::new(false),
            interrupt_told: CancellationToken::new(),
            signals_sent: AtomicU64::new(0),
            admission: SetOnce::new(),
            callers: AtomicUsize::new(0),
            ends_without_callers: job.on_disconnect == OnDisconnect::Cancel,
            spec,
        }
    }

    /// Makes the execution again that an earlier brigd began, and what it runs under.
    pub fn restore(
        id: Id,
        session: &Arc<Session>,
        outline: Outline,
        memo: ExecutionMemo,
        mut kept: Kept,
    ) -> Result<(Self, Conditions), NotRestored> {
        let (spec, inputs) = outline.asked()?;
        let output = new_output(&spec, outline.limits.output_bytes, session.clock.clone());
        let stdin = Stdin::new(spec.stdin_open);
        if let Some(file) = kept.stdin.take() {
            stdin.restore(file);
        }
        let log = Log::restore(id.clone(), session.id.clone(), Arc::clone(&output), kept)?;
        if let Some(ago) = session.stood_still() {
            output.came(ago);
        }
        let conditions = Conditions {
            policy: Arc::clone(&session.policy),
            limits: outline.limits,
            times: outline.times,
            clamped: outline.clamped,
            artifacts: outline.artifacts,
            // It was checked when it came.
            expected: check_expected(&spec, &mut Fields::default()),
            want_inline: wants_inline(&spec),
        };
        let stop = Stop::default();
        if let Some(cause) = memo.stop {
            stop.tell(cause);
        }
        let execution = Self {
            id,
            session: session.id.clone(),
            request: outline.request,
            digest: outline.digest,
            user: user(&outline.principal, &spec),
            principal: Arc::new(outline.principal),
            policy: session.policy.id(),
            template: session.template.id.clone(),
            limits: effective_limits(&outline.limits),
            inputs,
            stdin_given: outline.stdin_given,
            work_sha256: outline.work_sha256,
            create_time: outline.create_time,
            output,
            stdin: Arc::new(stdin),
            size: Arc::default(),
            log: Arc::new(log),
            stop,
            kept: Some(Arc::clone(session)),
            seat: None,
            approval: outline
                .approval
                .map(|(expire_time, decision)| Approval::restore(expire_time, decision)),
            start: OnceLock::new(),
            interrupted: AtomicBool::new(memo.interrupted),
            interrupt_told: CancellationToken::new(),
            signals_sent: AtomicU64::new(memo.signals),
            admission: SetOnce::new_with(Some(true)),
            callers: AtomicUsize::new(0),
            ends_without_callers: outline.ends_without_callers,
            spec,
        };
        Ok((execution, conditions))
    }

    /// Notes how its program came to be.
    pub fn begin(&self, start: StartKind) -> StartKind {
        *self.start.get_or_init(|| start)
    }

    /// How its program came to be, if it was started.
    pub fn start(&self) -> StartKind {
        self.start.get().copied().unwrap_or(StartKind::Cold)
    }

    /// What another brigd needs to know of it once it has started.
    pub fn outline(&self, conditions: &Conditions, since: Option<Time>, times: Times) -> Outline {
        Outline {
            spec: self.spec.encode_to_vec(),
            inputs: self.inputs.iter().map(Message::encode_to_vec).collect(),
            stdin_given: self.stdin_given.clone(),
            approval: self.decided(),
            request: self.request.clone(),
            digest: self.digest,
            principal: self.principal.as_ref().clone(),
            work_sha256: self.work_sha256.clone(),
            create_time: self.create_time,
            ends_without_callers: self.ends_without_callers,
            limits: conditions.limits,
            times: conditions.times,
            clamped: conditions.clamped.clone(),
            artifacts: conditions.artifacts,
            since,
            queued: times.queued,
            startup: times.startup,
        }
    }

    /// What was decided about it, if it had to be approved and somebody has.
    fn decided(&self) -> Option<(SystemTime, Decision)> {
        let approval = self.approval.as_ref()?;
        Some((approval.expire_time, approval.decision()?.as_ref().clone()))
    }

    /// What may have changed since it was accepted.
    pub fn memo(&self) -> ExecutionMemo {
        ExecutionMemo {
            stop: self.stop.cause(),
            interrupted: self.is_interrupted(),
            signals: self.signals_sent(),
        }
    }

    /// Lets the jailer know what changed; returns when it will have it whatever happens.
    pub async fn remember(self: &Arc<Self>, jailer: &Jailer) {
        if self.kept.is_none() || self.log.is_finished() {
            return;
        }
        let execution = Arc::clone(self);
        let late = move || Request::Memo {
            session: execution.session.clone(),
            execution: Some(execution.id.clone()),
            memo: execution.memo().encode(),
        };
        if let Err(error) = jailer.ask_late(late).await {
            debug!(%error, "memo not sent");
        }
    }

    /// Ends code that goes on after an interrupt. Harmless for what has ended.
    pub async fn end_interrupted(self: Arc<Self>) {
        self.clock().sleep(INTERRUPT).await;
        self.stop.tell(StopCause::Interrupt);
    }

    /// The clock of its limits: that of its session, which stands still while that is paused.
    pub fn clock(&self) -> Clock {
        clock_of(self.kept.as_ref())
    }

    /// Shows the execution as it is now; `whole` with code, environment and all of the result.
    pub fn show(&self, whole: bool) -> v1::Execution {
        let progress = self.log.progress();
        let mut spec = self.spec.clone();
        spec.environment.values_mut().for_each(String::clear);
        if let Some(SpecWork::Code(code)) = &mut spec.work
            && !whole
        {
            code.source.clear();
        }
        let decision = self.approval.as_ref().and_then(Approval::decision);
        let (reviewer, review_comment) = decision
            .map(|decision| (decision.reviewer.clone(), decision.comment.clone()))
            .unwrap_or_default();
        let (stdin_bytes, stdin_sha256) = self.stdin_given.clone().unwrap_or_default();
        v1::Execution {
            execution_id: self.id.to_string(),
            session_id: self.session.to_string(),
            context_id: self
                .seat
                .as_ref()
                .map(|seat| seat.context.to_string())
                .unwrap_or_default(),
            state: progress.state.into(),
            queue_position: progress.queue_position,
            spec: Some(spec),
            work_sha256: self.work_sha256.clone(),
            pid: progress.pid,
            create_time: Some(self.create_time.into()),
            start_time: progress.start_time.map(Into::into),
            end_time: progress.end_time.map(Into::into),
            last_sequence: progress.last_sequence,
            result: progress
                .result
                .map(|result| if whole { *result } else { outline(*result) }),
            tenant: self.principal.tenant.clone(),
            user: self.user.clone(),
            policy: self.policy.clone(),
            template: self.template.clone(),
            limits: Some(self.limits),
            inputs: self.inputs.clone(),
            approval_expire_time: self.approval.as_ref().map(|approval| approval.expire_time.into()),
            reviewer,
            review_comment,
            stdin_bytes,
            stdin_sha256,
        }
    }

    /// Decides whether it is accepted. Only the first decision counts.
    pub fn admit(&self, accepted: bool) {
        let _ = self.admission.set(accepted);
    }

    /// Waits until it is decided whether it is accepted.
    pub async fn is_admitted(&self) -> bool {
        *self.admission.wait().await
    }

    /// Notes that it is interrupted; true the first time.
    pub fn interrupt(&self) -> bool {
        let first = !self.interrupted.swap(true, Ordering::SeqCst);
        self.interrupt_told.cancel();
        first
    }

    /// Waits until somebody interrupts it.
    pub async fn interrupt_told(&self) {
        self.interrupt_told.cancelled().await;
    }

    /// Says that what it left in its context's interpreter is there for the next one.
    pub fn seat_kept(&self) {
        if let Some(seat) = &self.seat {
            seat.keep_state();
        }
    }

    /// Whether it was interrupted.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::SeqCst)
    }

    /// Notes that a caller sends a signal.
    pub fn signal(&self, signal: u32) {
        self.signals_sent.fetch_or(signal_bit(signal), Ordering::SeqCst);
    }

    /// Signals that callers sent, a bit each.
    pub fn signals_sent(&self) -> u64 {
        self.signals_sent.load(Ordering::SeqCst)
    }

    /// What it takes up.
    pub fn holds(&self) -> Held {
        let log = self.log.holds();
        let aside = self.kept.as_ref().map_or(0, |_| self.log.aside());
        Held {
            memory_bytes: log.memory_bytes + aside + self.spec.encoded_len() as u64,
            ..log
        }
    }

    /// Notes one more caller.
    pub fn called(self: &Arc<Self>) -> Caller {
        self.callers.fetch_add(1, Ordering::SeqCst);
        Caller(Arc::clone(self))
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let last = self.0.callers.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.0.ends_without_callers {
            // Harmless for what has ended.
            self.0.stop.tell(StopCause::ClientGone);
        }
    }
}

impl Stop {
    /// Tells the execution to stop.
    pub fn tell(&self, cause: StopCause) {
        // Only the first cause is kept.
        let _ = self.cause.set(cause);
        self.told.cancel();
    }

    /// Why it was told to stop, if it was.
    pub fn cause(&self) -> Option<StopCause> {
        self.cause.get().copied()
    }

    /// Waits until it is told to stop.
    pub async fn told(&self) -> StopCause {
        self.told.cancelled().await;
        self.cause().unwrap_or(StopCause::Cancel)
    }
}

fn clock_of(session: Option<&Arc<Session>>) -> Clock {
    session.map(|session| session.clock.clone()).unwrap_or_default()
}

/// Whether it has a terminal.
pub fn has_terminal(spec: &ExecutionSpec) -> bool {
    matches!(&spec.work, Some(SpecWork::Command(command)) if command.terminal.is_some())
}

/// The output of a request: kept up to the cap, or a window.
fn new_output(spec: &ExecutionSpec, cap: u64, clock: Clock) -> Arc<Output> {
    match &spec.work {
        Some(SpecWork::Command(command)) if command.output_mode() == OutputMode::Stream => Output::window(clock),
        _ => Output::timed(cap, clock),
    }
}

/// Who asked: the application's user, else the connection's.
fn user(principal: &Principal, spec: &ExecutionSpec) -> String {
    principal.asking(spec.origin.as_ref().map_or("", |origin| &origin.user))
}

/// A result without what can be large: what the program wrote and showed.
fn outline(mut result: ExecutionResult) -> ExecutionResult {
    result.stdout.clear();
    result.stderr.clear();
    result.results.clear();
    if let Some(error) = &mut result.error {
        error.traceback.clear();
    }
    result
}

/// The bytes that name a piece of work: the code, or the arguments of the command, each ended by NUL.
pub fn work_bytes(work: &Work) -> Vec<u8> {
    match work {
        Work::Code { source, .. } => source.clone().into_bytes(),
        Work::Command { argv, .. } => argv
            .iter()
            .flat_map(|argument| [argument.as_slice(), b"\0"].concat())
            .collect(),
    }
}

/// A span in the form of the API.
pub fn span(span: std::time::Duration) -> Duration {
    let seconds = i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
    Duration {
        seconds,
        nanos: i32::try_from(span.subsec_nanos()).unwrap_or_default(),
    }
}

/// Limits in the form of the API.
pub fn effective_limits(limits: &Resolved) -> EffectiveLimits {
    EffectiveLimits {
        timeout: Some(span(std::time::Duration::from_millis(limits.timeout_ms))),
        memory_bytes: limits.memory_bytes,
        cpus: cpus(limits.cpu_millis),
        pids: limits.pids,
        disk_bytes: limits.disk_bytes,
        output_bytes: limits.output_bytes,
    }
}

/// Thousandths of a CPU as a number of CPUs.
pub fn cpus(millis: u64) -> f64 {
    f64::from(u32::try_from(millis).unwrap_or(u32::MAX)) / 1000.0
}

fn input_files(job: &Job) -> Vec<InputFile> {
    let file = |input: &crate::run::admit::Input| {
        let (size_bytes, sha256) = match &input.content {
            Content::Stored(stored) => (stored.size(), hex(&stored.sha256())),
            Content::Record(record) => (record.size, hex(&record.sha256)),
            Content::Given(_) | Content::Streamed { .. } | Content::Named(_) => (0, String::new()),
        };
        InputFile {
            name: input.name.clone(),
            path: input.path.clone(),
            size_bytes,
            sha256,
        }
    };
    job.inputs.iter().map(file).collect()
}
