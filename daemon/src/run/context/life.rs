//! The life of a context: its interpreter is started, lent, replaced and ended here.
//!
//! An interpreter that was used and is gone is replaced at once, so that the next execution finds one; one that is gone
//! before anybody used it is replaced when it is needed, and then whoever needs it is told why there is none.

use std::sync::Arc;
use std::time::{Instant as StdInstant, SystemTime};

use brig_jailer::api::{End, Event, Refusal};
use brig_proto::v1::{ContextState, StartKind};
use tokio::sync::oneshot;
use tracing::{Instrument, debug, info, info_span, warn};

use super::adopt;
use super::interpreter::{Live, PIPES, end, end_of, how, put_away, start};
use super::{Context, Interpreter, Lease, Wanted};
use crate::host::Host;
use crate::run::kept::Session;
use crate::run::pump::Told;
use crate::status::Problem;

/// The task of a context.
struct Owner {
    host: Arc<Host>,
    session: Arc<Session>,
    context: Arc<Context>,
    interpreter: Interpreter,
}

/// Lives with a context to its end.
pub async fn run(host: Arc<Host>, session: Arc<Session>, context: Arc<Context>) {
    let span = info_span!("context", id = %context.id, session = %session.id);
    let mut owner = Owner {
        host,
        session,
        context,
        interpreter: Interpreter::None,
    };
    async {
        if owner.renew().await.is_ok() {
            owner.live().await;
        }
        owner.close().await;
    }
    .instrument(span)
    .await;
}

/// Lives to its end with a context that an earlier brigd made.
pub async fn resume(host: Arc<Host>, session: Arc<Session>, adopted: adopt::Adopted) {
    let adopt::Adopted { context, interpreter } = adopted;
    let span = info_span!("context", id = %context.id, session = %session.id);
    let mut owner = Owner {
        host,
        session,
        context,
        interpreter: Interpreter::None,
    };
    async {
        owner.take_over(interpreter).await;
        owner.live().await;
        owner.close().await;
    }
    .instrument(span)
    .await;
}

impl Owner {
    /// Takes the interpreter that an earlier brigd had, or replaces it.
    async fn take_over(&mut self, interpreter: adopt::Interpreter) {
        match interpreter {
            adopt::Interpreter::Waits(waiting) => match self.host.pumps.start_line(waiting.pipes, waiting.store) {
                Ok(line) => {
                    let (process, pid) = (waiting.process, waiting.pid);
                    info!(pid, "interpreter adopted");
                    let laps = 0;
                    let forked = self.context.start() == StartKind::Forked;
                    self.interpreter = Interpreter::Lives(Box::new(Live {
                        process,
                        line,
                        pid,
                        forked,
                        laps,
                    }));
                    return;
                }
                Err(fault) => {
                    self.lose(format!("brigd was restarted: {fault}"));
                    let mut process = waiting.process;
                    process.kill().await;
                    end_of(&mut process).await;
                    self.interpreter = Interpreter::Ended(process);
                }
            },
            adopt::Interpreter::Useless(remains) => {
                self.interpreter = Interpreter::Ended(put_away(&self.host, remains).await);
            }
        }
        // Where it fails, the next execution tries again and is told.
        let _ = self.renew().await;
    }

    /// Notes what became of the interpreter, for the next execution.
    fn lose(&self, lost: String) {
        self.context.change(|state| state.lost = Some(lost));
    }

    /// Lets the jailer know how the context is now.
    async fn remember(&self) {
        if let Some(process) = self.interpreter.process() {
            self.context.remember(process).await;
        }
    }

    async fn live(&mut self) {
        let (context, session) = (Arc::clone(&self.context), Arc::clone(&self.session));
        let mut changes = context.changes.subscribe();
        loop {
            changes.mark_unchanged();
            if context.lock().is_closing || session.is_over() {
                return;
            }
            if self.reset().await {
                continue;
            }
            let is_pausing = session.is_pausing();
            if !is_pausing && let Some(wanted) = context.take_next() {
                self.lend(wanted).await;
                continue;
            }
            tokio::select! {
                biased;
                _reason = session.told_to_end() => return,
                // The sender lives as long as the context.
                _ = changes.changed() => {}
                // Its end is seen above.
                _ = session.runs(), if is_pausing => {}
                end = self.died() => {
                    self.lose(format!("it ended between two executions ({})", how(end)));
                    self.bury().await;
                }
            }
        }
    }

    /// Waits until the interpreter dies; how, if anybody said.
    async fn died(&mut self) -> Option<End> {
        let Interpreter::Lives(live) = &mut self.interpreter else {
            return std::future::pending().await;
        };
        loop {
            tokio::select! {
                message = live.process.next() => match message.map(|message| message.event) {
                    Some(Event::Ended { end, .. }) => return Some(end),
                    None => return None,
                    // The usage of a part that nobody waited for.
                    Some(Event::Lapped { .. }) => live.laps = live.laps.saturating_sub(1),
                    Some(event) => debug!(?event, "jailer event passed over"),
                },
                told = live.line.told() => match told {
                    // The jailer tells the end. One that only closed its pipe is found out by the next execution.
                    Some(Told::Closed | Told::Broken(_)) | None => {
                        live.process.kill().await;
                        return end_of(&mut live.process).await;
                    }
                    Some(told) => debug!(?told, "context frame passed over"),
                },
            }
        }
    }

    /// Does what somebody asked for who wants a new interpreter.
    async fn reset(&mut self) -> bool {
        let number = {
            let state = self.context.lock();
            if state.resets_done == state.resets {
                return false;
            }
            state.resets
        };
        if let Some(live) = self.interpreter.take_live() {
            self.interpreter = Interpreter::Ended(end(*live).await);
        }
        self.context.change(|state| state.lost = None);
        // The refusal is told to whoever waits for the reset.
        let _ = self.renew().await;
        self.context.change(|state| state.resets_done = number);
        true
    }

    /// Lends the interpreter to an execution, until that gives it back.
    async fn lend(&mut self, wanted: Wanted) {
        let Wanted { execution, granted } = wanted;
        if !self.lives()
            && let Err(problem) = self.renew().await
        {
            // Who does not wait any more needs no answer.
            let _ = granted.send(Err(problem));
            return;
        }
        let (back, returned) = oneshot::channel();
        let lease = Lease {
            context: Arc::clone(&self.context),
            interpreter: std::mem::take(&mut self.interpreter),
            begins: None,
            back: Some(back),
        };
        self.context.change(|state| {
            state.phase = ContextState::Busy;
            state.running = Some(execution);
        });
        // One that nobody wants any more comes back.
        drop(granted.send(Ok(lease)));
        self.interpreter = returned.await.unwrap_or_default();
        self.context.change(|state| {
            state.phase = ContextState::Idle;
            state.running = None;
            state.runs_code = false;
            state.last_active = SystemTime::now();
        });
        self.remember().await;
        self.renew_if_gone().await;
    }

    fn lives(&self) -> bool {
        matches!(self.interpreter, Interpreter::Lives(_))
    }

    async fn renew_if_gone(&mut self) {
        let is_over = self.context.is_over() || self.session.is_over() || self.session.is_pausing();
        if !self.lives() && !is_over && !self.context.is_reset_due() {
            // Where it fails, the next execution tries again and is told.
            let _ = self.renew().await;
        }
    }

    /// Puts an interpreter away that died, and gets another one if it had been used.
    async fn bury(&mut self) {
        let Some(live) = self.interpreter.take_live() else {
            return;
        };
        let is_used = self.context.lock().executions > 0;
        warn!("interpreter died");
        live.line.finish(StdInstant::now() + PIPES).await;
        self.interpreter = Interpreter::Ended(live.process);
        self.remember().await;
        if is_used {
            self.renew_if_gone().await;
        }
    }

    /// Starts another interpreter.
    async fn renew(&mut self) -> Result<(), Problem> {
        let started = loop {
            match start(&self.host, &self.session, &self.context).await {
                // Somebody paused the session meanwhile, and nothing was started.
                Err(Problem::Jail(Refusal::Paused)) if self.session.runs().await.is_ok() => {}
                started => break started,
            }
        };
        let started = started.map_err(|problem| {
            if self.session.is_over() {
                self.session.closed_problem()
            } else {
                problem
            }
        });
        self.context.change(|state| match &started {
            Ok(live) => {
                state.phase = ContextState::Idle;
                state.forked = live.forked;
                state.generation += 1;
                state.executions = 0;
                state.runs_code = false;
                state.refusal = None;
            }
            Err(problem) => state.refusal = Some(problem.status()),
        });
        match started {
            Ok(live) => {
                info!(pid = live.pid, "interpreter started");
                let last = std::mem::replace(&mut self.interpreter, Interpreter::Lives(Box::new(live)));
                self.remember().await;
                if let Interpreter::Ended(process) = last {
                    process.forget().await;
                }
                Ok(())
            }
            Err(problem) => {
                if !self.session.is_over() {
                    warn!(%problem, "interpreter not started");
                }
                Err(problem)
            }
        }
    }

    async fn close(&mut self) {
        self.context.change(|state| {
            state.is_closing = true;
            // Who waits is told by the end of its channel.
            state.waiting.clear();
        });
        match std::mem::take(&mut self.interpreter) {
            Interpreter::Lives(live) => end(*live).await.forget().await,
            Interpreter::Ended(process) => process.forget().await,
            Interpreter::None => {}
        }
        self.context.change(|state| state.phase = ContextState::Closed);
        info!("context closed");
    }
}

impl Context {
    fn take_next(&self) -> Option<Wanted> {
        let mut state = self.lock();
        let next = state.waiting.pop_front();
        if next.is_some() {
            state.tell_places();
        }
        next
    }

    fn is_reset_due(&self) -> bool {
        let state = self.lock();
        state.resets_done < state.resets
    }
}
