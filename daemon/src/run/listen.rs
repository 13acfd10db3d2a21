//! Listening to the Python kernel of an execution. What it says is a claim, and passes the gate before it is told.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
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
use tokio::net::UnixStream;
use tracing::debug;

use crate::kernel::{self, Claim, ErrorClaim, KernelReader};
use crate::run::gate;
use crate::run::log::Log;

/// How long a result may wait for the output that was written before it, in milliseconds.
const CATCH_UP_MS: u32 = 20;

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
    /// Sends the code and takes what comes, until the socket or the protocol ends.
    pub async fn listen(self, fd: OwnedFd, run: kernel::Run) {
        if let Err(error) = self.talk(fd, run).await {
            debug!(%error, "kernel socket failed");
        }
    }

    async fn talk(&self, fd: OwnedFd, run: kernel::Run) -> io::Result<()> {
        let socket = StdUnixStream::from(fd);
        socket.set_nonblocking(true)?;
        let (reading, mut writing) = UnixStream::from_std(socket)?.into_split();
        kernel::send_run(&mut writing, &run).await?;
        drop(run);
        let mut reader = KernelReader::new(reading);
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
    use super::*;

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
