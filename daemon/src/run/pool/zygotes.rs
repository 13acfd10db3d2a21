//! Zygotes: interpreters that have imported what a template names, and are forked into sessions.
//!
//! There is one for each kind of session that is made ahead. What can't be one is not tried again for a while; sessions of
//! its kind are made by starting an interpreter then, which people are told once.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use brig_jailer::api::{Dock, Start};
use brig_jailer::faults::{Point, point};
use brig_jailer::ids::Id;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::Kind;
use super::maker::{Beginning, interpreter, start_jail, tell, template, too_late, until_said, warm_frame};
use crate::files::Files;
use crate::host::Host;
use crate::jailer::{Jail, Process};
use crate::kernel::{SAID_MAX, zygote_said};
use crate::run::session::CLOSE;
use crate::run::start::{Program, running};
use crate::status::Problem;

/// How long what it says may take to be read.
const SAY: Duration = Duration::from_secs(1);
/// How long the sessions of one that is put away may last.
const LAST: Duration = Duration::from_secs(7 * 86_400);
/// How long a kind is left alone whose zygote failed; doubled each time. The maker's next look tries again, before it would
/// make something without a zygote.
const PAUSE: Duration = Duration::from_secs(4);
/// The longest of these pauses, as a power of two.
const PAUSES: u32 = 8;

/// The zygotes of all kinds.
#[derive(Debug, Default)]
pub(super) struct Zygotes(Vec<Nest>);

#[derive(Debug)]
struct Nest {
    kind: Kind,
    zygote: Option<Zygote>,
    failures: u32,
    not_before: Instant,
}

#[derive(Debug)]
struct Zygote {
    jail: Jail,
    process: Process,
    made: Instant,
    /// When its session is too old for another one to be forked into.
    best_before: Instant,
    /// The file helper's socket and the pipes: closed with it.
    _files: Files,
    _program: Program,
}

impl Zygotes {
    /// The session whose zygote forks for a kind; makes it where there is none. `None`: there can't be one now.
    pub(super) async fn dock(&mut self, host: &Host, kind: &Kind) -> Option<Id> {
        let now = Instant::now();
        let place = self.0.iter().position(|nest| nest.kind == *kind).unwrap_or_else(|| {
            self.0.push(Nest {
                kind: kind.clone(),
                zygote: None,
                failures: 0,
                not_before: now,
            });
            self.0.len() - 1
        });
        let nest = &mut self.0[place];
        if nest.zygote.is_none() && nest.not_before <= now {
            match begin(host, kind).await {
                Ok(zygote) => {
                    info!(session = %zygote.jail.id(), policy = kind.policy.name, "zygote ready");
                    nest.zygote = Some(zygote);
                    point(Point::DaemonZygote);
                }
                Err(Problem::Draining) => return None,
                Err(problem) => nest.failed(host, &problem),
            }
        }
        nest.zygote.as_ref().map(|zygote| zygote.jail.id().clone())
    }

    /// Whether one is to be made of a kind now.
    pub(super) fn lacks(&self, kind: &Kind) -> bool {
        let nest = self.0.iter().find(|nest| nest.kind == *kind);
        nest.is_none_or(|nest| nest.zygote.is_none() && nest.not_before <= Instant::now())
    }

    /// The session whose zygote forks for a kind, if there is one.
    pub(super) fn found(&self, kind: &Kind) -> Option<Id> {
        let nest = self.0.iter().find(|nest| nest.kind == *kind)?;
        nest.zygote.as_ref().map(|zygote| zygote.jail.id().clone())
    }

    /// One could not fork: it is put away.
    pub(super) fn lost(&mut self, host: &Host, kind: &Kind, why: &Problem) {
        if let Some(nest) = self.0.iter_mut().find(|nest| nest.kind == *kind) {
            nest.failed(host, why);
            if let Some(zygote) = nest.zygote.take() {
                zygote.close();
            }
        }
    }

    /// Those that fork, by kind.
    pub(super) fn docks(&self) -> Vec<(Kind, Id)> {
        let zygotes = self.0.iter().filter_map(|nest| Some((nest, nest.zygote.as_ref()?)));
        zygotes
            .map(|(nest, zygote)| (nest.kind.clone(), zygote.jail.id().clone()))
            .collect()
    }

    /// One that has forked is as it should be.
    pub(super) fn worked(&mut self, kind: &Kind) {
        if let Some(nest) = self.0.iter_mut().find(|nest| nest.kind == *kind) {
            nest.failures = 0;
        }
    }

    /// Puts away those that have ended, that are too old, or whose kind nobody asks for.
    pub(super) fn tidy(&mut self, host: &Host, rotate: Duration, is_wanted: impl Fn(&Kind) -> bool) {
        for nest in &mut self.0 {
            let Some(zygote) = &mut nest.zygote else { continue };
            // The jailer closes what is too old: that is no failure.
            let is_old = zygote.made.elapsed() >= rotate || zygote.best_before <= Instant::now();
            let is_over = is_old || !is_wanted(&nest.kind);
            if !is_over && !zygote.has_ended() {
                continue;
            }
            if !is_over {
                nest.failed(host, &Problem::JailDied("waiting as a zygote"));
            }
            if let Some(zygote) = nest.zygote.take() {
                zygote.close();
            }
        }
        self.0.retain(|nest| is_wanted(&nest.kind));
    }

    /// When the first of their sessions is too old.
    pub(super) fn best_before(&self) -> Option<Instant> {
        let zygotes = self.0.iter().filter_map(|nest| nest.zygote.as_ref());
        zygotes.map(|zygote| zygote.best_before).min()
    }

    /// Puts all away.
    pub(super) fn clear(&mut self) {
        self.0.drain(..).filter_map(|nest| nest.zygote).for_each(Zygote::close);
    }
}

impl Nest {
    /// The first of several failures is told to people.
    fn failed(&mut self, host: &Host, why: &Problem) {
        host.pool.zygote_failed();
        self.not_before = Instant::now() + PAUSE * (1 << self.failures.min(PAUSES));
        self.failures += 1;
        let (policy, template) = (self.kind.policy.id(), &self.kind.template.id);
        match self.failures {
            1 => warn!(policy, template, %why, "no zygote; sessions made ahead start an interpreter each"),
            again => debug!(policy, template, again, %why, "no zygote"),
        }
    }
}

impl Zygote {
    fn has_ended(&mut self) -> bool {
        super::has_ended(Some(&mut self.process), &mut self.jail)
    }

    /// Puts it away behind the caller. Its session lasts as long as those that it has forked programs into, for which
    /// nobody waits: some are kept when this daemon stops.
    fn close(mut self) {
        tokio::spawn(async move {
            if !self.jail.close(LAST).await && !self.jail.jailer().is_gone() {
                warn!(session = %self.jail.id(), "session of a zygote not confirmed closed");
            }
        });
    }
}

async fn begin(host: &Host, kind: &Kind) -> Result<Zygote, Problem> {
    let made_at = Instant::now();
    let mut beginning = Beginning::default();
    let making = hatch(host, kind, &mut beginning);
    let most = kind.patience();
    let made = tokio::select! {
        made = timeout(most, making) => made.unwrap_or_else(|_elapsed| Err(too_late(most, "it was importing as a zygote"))),
        () = host.draining.cancelled() => Err(Problem::Draining),
    };
    match (made, beginning.jail, beginning.process) {
        (Ok((files, program)), Some(jail), Some(process)) => Ok(Zygote {
            jail,
            process,
            made: made_at,
            best_before: made_at + kind.freshness(),
            _files: files,
            _program: program,
        }),
        (made, jail, _) => {
            if let Some(mut jail) = jail
                && !jail.close(CLOSE).await
            {
                warn!(session = %jail.id(), "session not confirmed closed");
            }
            Err(made.err().unwrap_or(Problem::JailDied("making a zygote")))
        }
    }
}

async fn hatch(host: &Host, kind: &Kind, beginning: &mut Beginning) -> Result<(Files, Program), Problem> {
    let template = template(host, kind)?;
    let (session, _enforced, files) = start_jail(host, kind, Dock::Own, beginning).await?;
    let spawned = host.jailer.spawn(interpreter(kind, session, Start::Zygote)).await?;
    let process = beginning.process.insert(spawned);
    let mut program = running(process).await?;
    tell(&program, &warm_frame(kind, &template, true)?)?;
    let way_out = until_said(&mut program).await?;
    program.pipes.frames = Some(read_word(way_out).await?);
    process.lap(None).await;
    Ok((files, program))
}

/// Reads the first thing that a zygote says, in a thread: packages that it has imported may hold the pipe.
async fn read_word(way_out: OwnedFd) -> Result<OwnedFd, Problem> {
    let failed = |message: String| Problem::Step {
        step: "zygote",
        message,
    };
    let reading = tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0; SAID_MAX];
        let length = rustix::io::read(&way_out, &mut bytes)?;
        bytes.truncate(length);
        Ok::<_, std::io::Error>((way_out, bytes))
    });
    match timeout(SAY, reading).await {
        Ok(Ok(Ok((way_out, bytes)))) => zygote_said(&bytes).map(|()| way_out).map_err(failed),
        Ok(Ok(Err(error))) => Err(failed(format!("what it says can't be read: {error}"))),
        Ok(Err(_)) | Err(_) => Err(failed("what it says can't be read".to_owned())),
    }
}
