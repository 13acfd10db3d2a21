//! One accepted execution: what is known of it, and how it is told to stop.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use brig_jailer::ids::Id;
use brig_jailer::policy::Resolved;
use brig_proto::v1;
use brig_proto::v1::execution_spec::Work as SpecWork;
use brig_proto::v1::{EffectiveLimits, ExecutionResult, ExecutionSpec, InputFile, OnDisconnect};
use prost::Message;
use prost_types::Duration;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::output::Output;
use crate::principal::Principal;
use crate::run::admit::{Content, Job, Work};
use crate::run::context::Seat;
use crate::run::finish::signal_bit;
use crate::run::inputs::hex;
use crate::run::kept::Session;
use crate::run::log::{Held, Log};

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
    pub work_sha256: String,
    pub create_time: SystemTime,
    pub output: Arc<Output>,
    pub log: Arc<Log>,
    pub stop: Stop,
    /// The session that it runs in, if that is kept.
    pub kept: Option<Arc<Session>>,
    /// The context that it runs in, if it runs in one.
    pub seat: Option<Seat>,
    /// Whether somebody interrupted it.
    interrupted: AtomicBool,
    /// Cancelled when somebody interrupts it, for whoever does that by itself.
    interrupt_told: CancellationToken,
    /// Signals that callers sent, a bit each.
    signals_sent: AtomicU64,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
        let output = Output::new(job.limits.output_bytes);
        let origin_user = spec.origin.as_ref().map_or("", |origin| &origin.user);
        Self {
            id: job.execution.clone(),
            session: job.session.clone(),
            request: job.request.clone(),
            digest,
            user: if origin_user.is_empty() {
                principal.user.clone()
            } else {
                origin_user.to_owned()
            },
            principal,
            policy: job.policy.id(),
            template: job.template.id.clone(),
            limits: effective_limits(&job.limits),
            inputs: input_files(job),
            work_sha256: hex(&Sha256::digest(work_bytes(&job.work))),
            create_time: SystemTime::now(),
            log: Arc::new(Log::new(
                job.execution.clone(),
                job.session.clone(),
                Arc::clone(&output),
            )),
            output,
            stop: Stop::default(),
            kept,
            seat: None,
            interrupted: AtomicBool::new(false),
            interrupt_told: CancellationToken::new(),
            signals_sent: AtomicU64::new(0),
            callers: AtomicUsize::new(0),
            ends_without_callers: job.on_disconnect == OnDisconnect::Cancel,
            spec,
        }
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
            ..v1::Execution::default()
        }
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
        Held {
            memory_bytes: log.memory_bytes + self.spec.encoded_len() as u64,
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
            Content::Given(_) | Content::Streamed { .. } => (0, String::new()),
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
