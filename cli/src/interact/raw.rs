//! Our terminal in raw mode: every key goes to the program. However this command ends, the terminal is as it was.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Exit;
use crate::failure::Failure;

/// The settings to go back to.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);
static IS_ON: AtomicBool = AtomicBool::new(false);
static PANICS: Once = Once::new();

/// Raw mode, for as long as this lives.
#[derive(Debug)]
pub(crate) struct RawMode(());

impl RawMode {
    /// Enters raw mode. It is left at the end of this, at a panic, and by signals that end this command; within a runtime.
    pub(crate) fn enter() -> Result<Self, Failure> {
        let failed = |error: rustix::io::Errno| Failure::new(Exit::Failed, format!("terminal: {error}"));
        let stdin = rustix::stdio::stdin();
        let before = tcgetattr(stdin).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        watch_signals()?;
        PANICS.call_once(|| {
            let usual = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                usual(panic);
            }));
        });
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        IS_ON.store(true, Ordering::SeqCst);
        tcsetattr(stdin, OptionalActions::Now, &raw).map_err(|error| {
            restore();
            failed(error)
        })?;
        Ok(Self(()))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// Whether the terminal is in raw mode: a line then needs a carriage return of its own.
pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::SeqCst)
}

/// Makes the terminal what it was. Harmless where it is.
pub(crate) fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &before);
        IS_ON.store(false, Ordering::SeqCst);
    }
}

/// Leaves raw mode when a signal ends this command that nothing else waits for.
fn watch_signals() -> Result<(), Failure> {
    for (kind, number) in [(SignalKind::hangup(), 1), (SignalKind::quit(), 3)] {
        let mut signals = signal(kind).map_err(|error| Failure::new(Exit::Failed, format!("signals: {error}")))?;
        tokio::spawn(async move {
            signals.recv().await;
            leave(number)
        });
    }
    Ok(())
}

#[expect(clippy::exit, reason = "a signal that would have ended the command ends it")]
fn leave(number: i32) -> ! {
    restore();
    std::process::exit(128 + number)
}
