//! Threads that have done their work and wait a while for more: a new one takes longer than a short program.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// Stack of a thread, in bytes. What comes from a guest is parsed without recursion.
const STACK: usize = 128 * 1024;
/// How many wait, at most.
const MOST: usize = 8;
/// How long one waits.
const PATIENCE: Duration = Duration::from_secs(10);

type Work = Box<dyn FnOnce() + Send>;

/// Those that wait.
#[derive(Debug, Clone, Default)]
pub(super) struct Spares(Arc<Mutex<Vec<Spare>>>);

#[derive(Debug)]
struct Spare {
    thread: ThreadId,
    /// Takes one piece of work.
    work: SyncSender<Work>,
}

impl Spares {
    /// Has a thread do something.
    pub(super) fn run(&self, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut work: Work = Box::new(work);
        let spare = self.lock().pop();
        if let Some(spare) = spare {
            match spare.work.try_send(work) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(refused) | TrySendError::Disconnected(refused)) => work = refused,
            }
        }
        let spares = self.clone();
        let builder = thread::Builder::new().name("pump".to_owned()).stack_size(STACK);
        builder.spawn(move || spares.work(work)).map(drop)
    }

    /// Does one piece of work after the other, as long as there is some.
    fn work(&self, first: Work) {
        first();
        let (sender, receiver) = sync_channel(1);
        while self.wait(&sender) {
            let Some(work) = self.next(&receiver) else { return };
            work();
        }
    }

    /// Joins those that wait, if there are not too many.
    fn wait(&self, work: &SyncSender<Work>) -> bool {
        let mut spares = self.lock();
        let has_room = spares.len() < MOST;
        if has_room {
            let thread = thread::current().id();
            let work = work.clone();
            spares.push(Spare { thread, work });
        }
        has_room
    }

    fn next(&self, receiver: &Receiver<Work>) -> Option<Work> {
        if let Ok(work) = receiver.recv_timeout(PATIENCE) {
            return Some(work);
        }
        let mut spares = self.lock();
        match spares.iter().position(|spare| spare.thread == thread::current().id()) {
            Some(place) => {
                spares.remove(place);
                None
            }
            // Somebody has taken it just now, and its work comes.
            None => {
                drop(spares);
                receiver.recv().ok()
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Spare>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Which threads did so many pieces of work, one after the other.
    fn threads(spares: &Spares, count: usize) -> Vec<ThreadId> {
        let mut threads = Vec::new();
        for _ in 0..count {
            let (sender, receiver) = channel();
            spares
                .run(move || sender.send(thread::current().id()).unwrap())
                .unwrap();
            threads.push(receiver.recv().unwrap());
            while spares.lock().is_empty() {
                thread::yield_now();
            }
        }
        threads
    }

    #[test]
    fn one_that_has_done_its_work_gets_the_next() {
        let spares = Spares::default();
        let threads = threads(&spares, 3);
        assert!(threads.iter().all(|thread| *thread == threads[0]), "{threads:?}");
    }

    #[test]
    fn what_panics_takes_its_thread_along_and_no_work() {
        let spares = Spares::default();
        let first = threads(&spares, 1)[0];
        spares.run(|| panic!("as a test wants it")).unwrap();
        let second = threads(&spares, 1)[0];
        assert_ne!(first, second);
    }

    #[test]
    fn no_more_wait_than_may_and_each_piece_of_work_is_done() {
        let spares = Spares::default();
        let (sender, receiver) = channel();
        let gate = Arc::new(std::sync::Barrier::new(3 * MOST));
        for number in 0..3 * MOST {
            let (sender, gate) = (sender.clone(), Arc::clone(&gate));
            spares
                .run(move || {
                    gate.wait();
                    sender.send(number).unwrap();
                })
                .unwrap();
        }
        drop(sender);
        let mut done: Vec<usize> = receiver.iter().collect();
        done.sort_unstable();
        assert_eq!(done, (0..3 * MOST).collect::<Vec<_>>());
        assert!(spares.lock().len() <= MOST);
    }
}
