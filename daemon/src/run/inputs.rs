//! Input files on their way in: every byte goes through the spool, so that waiting executions take up no memory.

use std::time::Duration;

use brig_proto::sizes::FILE_CHUNK_MAX;
use brig_proto::v1::{FileChunk, Reason, RunRequest, run_request};
use tokio_stream::{Stream, StreamExt};
use tonic::Status;

use crate::artifacts::{Spool, Stored};
use crate::run::admit::{Content, Job};
use crate::status::{FieldProblem, Problem};

/// How long a client may think between two chunks.
const PATIENCE: Duration = Duration::from_secs(60);

/// Takes all inputs of a job: those of the request itself, and those that the stream brings.
pub async fn take(
    job: &mut Job,
    spool: &Spool,
    stream: &mut (impl Stream<Item = Result<RunRequest, Status>> + Unpin),
) -> Result<(), Problem> {
    let most = job.limits.disk_bytes.min(job.policy.limits.upload_bytes.bytes());
    let mut chunks = Chunks {
        stream,
        ahead: None,
        left: most,
    };
    for (index, input) in job.inputs.iter_mut().enumerate() {
        let stored = take_one(index, &input.content, spool, &mut chunks).await?;
        input.content = Content::Stored(stored);
    }
    match chunks.peek().await? {
        None => Ok(()),
        Some(chunk) => Err(out_of_turn(chunk.input, "is no streamed input, or its turn is over")),
    }
}

async fn take_one(
    index: usize,
    content: &Content,
    spool: &Spool,
    chunks: &mut Chunks<'_, impl Stream<Item = Result<RunRequest, Status>> + Unpin>,
) -> Result<Stored, Problem> {
    let mut file = spool.create(chunks.left).await?;
    let mut size = 0;
    match content {
        Content::Given(bytes) => {
            chunks.count(index, bytes.len())?;
            file.write(bytes.clone()).await?;
        }
        Content::Streamed { .. } => {
            while let Some(chunk) = chunks.next_of(index).await? {
                if chunk.offset != size {
                    return Err(out_of_turn(
                        chunk.input,
                        &format!("offset {} does not follow {size}", chunk.offset),
                    ));
                }
                size += chunk.data.len() as u64;
                file.write(chunk.data).await?;
            }
        }
        Content::Stored(_) => {}
    }
    let stored = file.finish()?;
    compare(index, content, &stored)?;
    Ok(stored)
}

/// The chunks of a stream, one ahead.
struct Chunks<'s, S> {
    stream: &'s mut S,
    ahead: Option<FileChunk>,
    /// Bytes that all inputs together may still have.
    left: u64,
}

impl<S: Stream<Item = Result<RunRequest, Status>> + Unpin> Chunks<'_, S> {
    async fn next_of(&mut self, index: usize) -> Result<Option<FileChunk>, Problem> {
        let wanted = u32::try_from(index).ok();
        let Some(chunk) = self.peek().await? else {
            return Ok(None);
        };
        if Some(chunk.input) != wanted {
            return Ok(None);
        }
        if chunk.data.len() > FILE_CHUNK_MAX {
            return Err(out_of_turn(chunk.input, "has more than 256 KiB in one chunk"));
        }
        let size = chunk.data.len();
        self.count(index, size)?;
        Ok(self.ahead.take())
    }

    async fn peek(&mut self) -> Result<Option<&FileChunk>, Problem> {
        if self.ahead.is_none() {
            let next = tokio::time::timeout(PATIENCE, self.stream.next()).await;
            let next = next.map_err(|_elapsed| Problem::Stream("no chunk came for 60 s".to_owned()))?;
            self.ahead = match next
                .transpose()
                .map_err(|status| Problem::Stream(status.message().to_owned()))?
            {
                None => return Ok(None),
                Some(RunRequest {
                    part: Some(run_request::Part::FileChunk(chunk)),
                }) => Some(chunk),
                Some(_) => return Err(Problem::Stream("spec: comes once, and first".to_owned())),
            };
        }
        Ok(self.ahead.as_ref())
    }

    fn count(&mut self, index: usize, bytes: usize) -> Result<(), Problem> {
        match self.left.checked_sub(bytes as u64) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(wrong(
                index,
                Reason::TooLarge,
                "does not fit: the inputs have more bytes than the disk limit",
            )),
        }
    }
}

fn compare(index: usize, announced: &Content, stored: &Stored) -> Result<(), Problem> {
    let Content::Streamed { size, sha256 } = announced else {
        return Ok(());
    };
    if let Some(size) = size.filter(|size| *size != stored.size()) {
        let message = format!("has {} bytes, {size} were announced", stored.size());
        return Err(wrong(index, Reason::DigestMismatch, &message));
    }
    let found = hex(&stored.sha256());
    if sha256.as_ref().is_some_and(|announced| *announced != found) {
        return Err(wrong(
            index,
            Reason::DigestMismatch,
            &format!("has the SHA-256 {found}, another one was announced"),
        ));
    }
    Ok(())
}

/// Writes bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn wrong(index: usize, reason: Reason, message: &str) -> Problem {
    Problem::Fields(vec![FieldProblem {
        field: format!("inputs[{index}]"),
        message: message.to_owned(),
        reason,
    }])
}

fn out_of_turn(input: u32, why: &str) -> Problem {
    Problem::Stream(format!("file_chunk for inputs[{input}]: {why}"))
}
