//! Listening to the Python kernel of an execution. What it says is a claim, and passes the gate before it is told.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use brig_jailer::policy::Policy;
use brig_proto::sizes::FINISHED_RESULTS_MAX;
use brig_proto::v1::execution_event::Event;
use brig_proto::v1::rich_datum::Content;
use brig_proto::v1::{NoticeKind, RichDatum, RichResult};
use prost::Message;
use tokio::net::unix::pipe;
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::kernel::{self, Claim, ErrorClaim, KernelReader};
use crate::run::gate;
use crate::run::log::Log;

/// How long a result may wait for the output that was written before it, in milliseconds.
const CATCH_UP_MS: u32 = 20;

/// Our ends of a kernel's pipes.
#[derive(Debug)]
pub struct KernelPipes {
    /// Where the request goes in.
    pub request: OwnedFd,
    /// Where the frames come out.
    pub frames: OwnedFd,
}

/// What a kernel is given.
#[derive(Debug)]
pub struct KernelInput {
    pub run: kernel::Run,
    /// How long it may take to read it.
    pub patience: Duration,
}

/// What the kernel said. Claims.
#[derive(Debug, Clone, Default)]
pub struct Claims {
    pub error: Option<ErrorClaim>,
    /// As many results as the final message can carry.
    pub results: Vec<RichResult>,
    bytes: usize,
}

/// Listens to the kernel of one execution.
#[derive(Debug)]
pub struct Listener {
    pub log: Arc<Log>,
    pub policy: Arc<Policy>,
    pub claims: Arc<Mutex<Claims>>,
    /// The pipes of the code's output, to see whether anything is in them.
    pub pipes: Vec<OwnedFd>,
}

impl Listener {
    /// Sends the code and takes what comes, until the pipe or the protocol ends.
    pub async fn listen(self, pipes: KernelPipes, input: KernelInput) {
        if let Err(error) = self.talk(pipes, input).await {
            debug!(%error, "kernel pipe failed");
        }
    }

    async fn talk(&self, pipes: KernelPipes, input: KernelInput) -> io::Result<()> {
        let frames = pipe::Receiver::from_owned_fd(pipes.frames)?;
        give(pipes.request, input).await?;
        let mut reader = KernelReader::new(frames);
        while let Some(claim) = reader.next().await {
            match claim {
                Claim::Result(result) => {
                    self.catch_up().await;
                    self.show(result);
                }
                Claim::Error(error) => self.lock().error = Some(error),
                Claim::Done => {}
            }
        }
        if reader.dropped > 0 {
            let message = format!(
                "{} results, or parts of results, were too large or too many",
                reader.dropped
            );
            self.log.notice(NoticeKind::ResultDropped, message);
        }
        if let Some(broken) = reader.broken {
            debug!(%broken, "kernel frames ended early");
        }
        Ok(())
    }

    /// Lets output that was written before a result be told before it: it comes by another way.
    async fn catch_up(&self) {
        let is_empty = |pipe: &OwnedFd| rustix::io::ioctl_fionread(pipe).map_or(true, |bytes| bytes == 0);
        for _ in 0..CATCH_UP_MS {
            if self.pipes.iter().all(is_empty) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.log.catch_up();
    }

    fn show(&self, result: kernel::RichResult) {
        let (shown, withheld) = rich_result(&self.policy, result);
        if withheld > 0 {
            let message = format!("{withheld} forms of a result may not leave by the policy; they were left out");
            self.log.notice(NoticeKind::ResultDropped, message);
        }
        if shown.data.is_empty() {
            return;
        }
        self.log.tell(Event::Result(shown.clone()));
        let mut claims = self.lock();
        claims.bytes += shown.encoded_len();
        if claims.bytes <= FINISHED_RESULTS_MAX {
            claims.results.push(shown);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes the request and closes its pipe. A pipe holds less than a long request, and nobody has to read it.
async fn give(request: OwnedFd, input: KernelInput) -> io::Result<()> {
    let mut request = pipe::Sender::from_owned_fd(request)?;
    match timeout(input.patience, kernel::send_run(&mut request, &input.run)).await {
        Ok(sent) => sent,
        Err(_elapsed) => {
            warn!(patience = ?input.patience, "kernel did not read its request in time");
            Err(io::ErrorKind::TimedOut.into())
        }
    }
}

/// Writes a claim in the form of the API; says how many forms were left out.
fn rich_result(policy: &Policy, claim: kernel::RichResult) -> (RichResult, usize) {
    let all = claim.data.len();
    let datum = |(media_type, text): (String, String)| {
        let content = if is_text(&media_type) {
            Content::Text(text)
        } else {
            Content::Binary(STANDARD.decode(text.replace(['\n', '\r'], "")).ok()?.into())
        };
        gate::result_may_leave(policy, &media_type).then_some(RichDatum {
            r#type: media_type,
            content: Some(content),
        })
    };
    let data: Vec<_> = claim.data.into_iter().filter_map(datum).collect();
    let withheld = all - data.len();
    (
        RichResult {
            main: claim.main,
            display_id: claim.display_id,
            data,
            chart: None,
        },
        withheld,
    )
}

fn is_text(media_type: &str) -> bool {
    let text = ["application/json", "application/javascript", "image/svg+xml"];
    media_type.starts_with("text/") || media_type.ends_with("+json") || text.contains(&media_type)
}

#[cfg(test)]
mod tests {
    use rustix::pipe::{PipeFlags, pipe_with};
    use tokio::io::AsyncReadExt;

    use super::*;

    fn long_request(patience: Duration) -> KernelInput {
        let run = kernel::Run {
            code: "#".repeat(1 << 20),
            argv: Vec::new(),
            filename: "main.py".to_owned(),
            threads: 1,
        };
        KernelInput { run, patience }
    }

    #[tokio::test]
    async fn a_request_that_nobody_reads_is_given_up_and_its_pipe_is_closed() {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let given = timeout(
            Duration::from_secs(5),
            give(ours, long_request(Duration::from_millis(50))),
        );
        let error = given.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let mut left = Vec::new();
        let mut theirs = pipe::Receiver::from_owned_fd(theirs).unwrap();
        theirs.read_to_end(&mut left).await.unwrap();
        assert!(!left.is_empty() && left.len() < 1 << 20, "{}", left.len());
    }

    #[tokio::test]
    async fn a_request_longer_than_a_pipe_arrives_whole_and_then_its_end() {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut theirs = pipe::Receiver::from_owned_fd(theirs).unwrap();
        let mut bytes = Vec::new();
        let (given, read) = tokio::join!(
            give(ours, long_request(Duration::from_secs(5))),
            theirs.read_to_end(&mut bytes)
        );
        assert!(given.is_ok() && read.unwrap() > 1 << 20);
        let length = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        assert_eq!(usize::try_from(length).unwrap(), bytes.len() - 4);
    }

    #[test]
    fn results_are_bytes_or_text_by_their_type_and_what_is_neither_is_left_out() {
        let text = "template = \"data\"\n[syscalls]\ngroups = [\"base\"]\n[artifacts.chart]\nhandling = \"preview\"";
        let policy = Policy::parse("p", text).unwrap();
        let data = [
            ("text/plain", "hi"),
            ("image/png", "aGk=\n"),
            ("image/jpeg", "!"),
            ("application/x", "aGk="),
        ];
        let data = data.map(|(name, datum)| (name.to_owned(), datum.to_owned())).into();
        let (shown, withheld) = rich_result(
            &policy,
            kernel::RichResult {
                main: true,
                display_id: None,
                data,
            },
        );
        let expected = [
            ("image/png", Content::Binary(b"hi".to_vec().into())),
            ("text/plain", Content::Text("hi".to_owned())),
        ];
        let expected = expected.map(|(name, content)| RichDatum {
            r#type: name.to_owned(),
            content: Some(content),
        });
        assert_eq!((shown.data.as_slice(), withheld), (expected.as_slice(), 2));
    }
}
