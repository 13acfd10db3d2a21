//! Our standard input and the size of our terminal, on their way to a program.

use std::time::Duration;

use brig_proto::v1::executions_client::ExecutionsClient;
use brig_proto::v1::{ExecutionsCloseInputRequest, ExecutionsInputRequest, ExecutionsResizeRequest, Reason};
use rustix::io::Errno;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tonic::Status;
use tonic::transport::Channel;

use super::keys::{Keys, Typed};
use crate::failure::Failure;
use crate::identity::random_id;

/// What one call gives, in bytes: as much as the daemon takes at once.
const PIECE: usize = 256 * 1024;
/// Pieces that wait for the daemon; behind them our standard input does.
const PIECES: usize = 2;
/// Of keys there may be more, so that the detach keys are seen though the program reads nothing. Each is at most what a
/// terminal gives at once; what comes then is lost, as in any terminal.
const KEYS: usize = 1024;
/// What was typed before the detach keys has so long to reach the program.
const LAST: Duration = Duration::from_secs(1);
/// Before what could not be given is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// Gives things to one program.
#[derive(Debug)]
pub(super) struct Typing {
    client: ExecutionsClient<Channel>,
    execution_id: String,
    is_terminal: bool,
}

/// What comes of our standard input.
#[derive(Debug)]
enum Piece {
    Bytes(Vec<u8>),
    End,
}

/// How a call that gives something went.
enum Given {
    /// So much was given in all.
    Taken(u64),
    /// Nothing more is taken.
    Closed,
    /// The daemon could not be asked, or the program does not run yet.
    Again { is_known: bool },
}

impl Typing {
    pub(super) fn new(client: ExecutionsClient<Channel>, execution_id: String, is_terminal: bool) -> Self {
        Self {
            client,
            execution_id,
            is_terminal,
        }
    }

    /// Gives the terminal the size of ours.
    pub(super) async fn fit(&self) {
        let request = ExecutionsResizeRequest {
            request_id: random_id(),
            execution_id: self.execution_id.clone(),
            size: Some(super::size()),
        };
        // A size that does not come through is mended by the next one.
        let _ = self.client.clone().resize(request).await;
    }

    /// Keeps its size that of ours.
    pub(super) async fn keep_fitting(&self) {
        if let Ok(mut changes) = signal(SignalKind::window_change()) {
            while changes.recv().await.is_some() {
                self.fit().await;
            }
        }
    }

    /// Gives our standard input, and its end. Returns when the detach keys were typed.
    pub(super) async fn give(&self, is_attached: bool) {
        let is_terminal = self.is_terminal;
        let (sender, pieces) = mpsc::channel(if is_terminal { KEYS } else { PIECES });
        let (leave, mut left) = mpsc::channel(1);
        // A read can't be called off: the thread ends with the process.
        std::thread::spawn(move || read(is_terminal, sender, &leave));
        let mut giving = std::pin::pin!(self.give_pieces(pieces, is_attached));
        // The thread never lets go of its end.
        tokio::select! {
            _ = left.recv() => {
                let _program_reads_nothing = tokio::time::timeout(LAST, giving).await;
            }
            // The program takes nothing more, but it can still be left.
            () = &mut giving => {
                left.recv().await;
            }
        }
    }

    async fn give_pieces(&self, mut pieces: mpsc::Receiver<Piece>, is_attached: bool) {
        let mut offset = 0;
        if is_attached && !self.is_terminal {
            match self.give_piece(None, Vec::new()).await {
                Some(total) => offset = total,
                None => return,
            }
        }
        while let Some(piece) = pieces.recv().await {
            match piece {
                Piece::Bytes(bytes) => match self.give_piece(Some(offset), bytes).await {
                    Some(total) => offset = total,
                    None => return,
                },
                Piece::End => return self.close().await,
            }
        }
    }

    /// Gives a piece, whatever becomes of connections; nothing if the program takes nothing more.
    ///
    /// What goes into a pipe is given exactly once, by its offset. Several people may type into a terminal: there it goes
    /// to the end, and what was on its way when a connection broke is not typed again.
    async fn give_piece(&self, offset: Option<u64>, bytes: Vec<u8>) -> Option<u64> {
        let offset = offset.filter(|_| !self.is_terminal);
        let request = ExecutionsInputRequest {
            execution_id: self.execution_id.clone(),
            data: bytes.into(),
            offset,
            close: false,
        };
        loop {
            let answer = self.client.clone().input(tokio_stream::once(request.clone())).await;
            match answer.map_or_else(
                |status| refused(&status),
                |answer| Given::Taken(answer.into_inner().total_bytes),
            ) {
                Given::Taken(total) => return Some(total),
                Given::Closed => return None,
                Given::Again { is_known: false } if self.is_terminal => return Some(0),
                Given::Again { .. } => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    async fn close(&self) {
        let request = ExecutionsCloseInputRequest {
            request_id: random_id(),
            execution_id: self.execution_id.clone(),
        };
        loop {
            match self
                .client
                .clone()
                .close_input(request.clone())
                .await
                .map_err(|status| refused(&status))
            {
                Err(Given::Again { .. }) => tokio::time::sleep(PAUSE).await,
                _ => return,
            }
        }
    }
}

fn refused(status: &Status) -> Given {
    match Failure::from_status(status).reason {
        // The end of the program is told by its events.
        Some(Reason::ExecutionNotRunning) => Given::Again { is_known: true },
        Some(Reason::Draining) | None => Given::Again { is_known: false },
        Some(_) => Given::Closed,
    }
}

/// Reads our standard input to its end, or to the detach keys.
fn read(is_terminal: bool, pieces: mpsc::Sender<Piece>, leave: &mpsc::Sender<()>) {
    if read_pieces(is_terminal, &pieces) {
        // Its end is not that of what the program reads.
        drop(pieces);
        let _ = leave.try_send(());
    } else {
        let _ = pieces.blocking_send(Piece::End);
    }
    // Whoever waits for the keys to leave waits on.
    loop {
        std::thread::park();
    }
}

/// Gives what is read; whether the detach keys ended it.
fn read_pieces(is_terminal: bool, pieces: &mpsc::Sender<Piece>) -> bool {
    let mut keys = Keys::default();
    let mut buffer = vec![0; PIECE];
    loop {
        let bytes = match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
            Ok(0) => return false,
            Ok(bytes) => &buffer[..bytes],
            Err(Errno::INTR) => continue,
            Err(_) => return false,
        };
        let Typed { bytes, leaves } = if is_terminal {
            keys.take(bytes)
        } else {
            Typed {
                bytes: bytes.to_vec(),
                leaves: false,
            }
        };
        let is_over = if bytes.is_empty() {
            false
        } else if is_terminal {
            // The keys to leave may still come.
            let _ = pieces.try_send(Piece::Bytes(bytes));
            false
        } else {
            pieces.blocking_send(Piece::Bytes(bytes)).is_err()
        };
        if leaves || is_over {
            return leaves;
        }
    }
}
