//! Input files on their way in: every byte goes through the spool, so that waiting executions take up no memory. What
//! lies in an input record is opened once its execution is admitted.

use std::time::Duration;

use brig_proto::sizes::{FILE_CHUNK_MAX, NAMES_MAX};
use brig_proto::v1::{FileChunk, Reason, RunRequest, run_request};
use tokio_stream::{Stream, StreamExt};
use tonic::Status;

use crate::artifacts::{Spool, Stored};
use crate::host::Host;
use crate::inputs::{Opened, not_found};
use crate::names;
use crate::principal::Principal;
use crate::run::admit::{Content, Job};
use crate::status::{FieldProblem, Problem};

/// How long a client may think between two chunks.
const PATIENCE: Duration = Duration::from_secs(60);

/// Finds the records that a job names, with which its inputs have their names and sizes.
///
/// What was asked for before is answered as it was then, whatever became of its records: nothing is looked up for it.
pub async fn resolve(job: &mut Job, host: &Host, principal: &Principal) -> Result<(), Problem> {
    if !job
        .inputs
        .iter()
        .any(|input| matches!(input.content, Content::Named(_)))
        || host.registry.knows(principal, job.request.as_ref())
    {
        return Ok(());
    }
    let most = most(job);
    let mut bytes = 0_u64;
    for (index, input) in job.inputs.iter_mut().enumerate() {
        if let Content::Named(id) = &input.content {
            let found = host.inputs.find(&principal.tenant, id).await?;
            let missing = || not_found(&format!("inputs[{index}].input_id"), id.as_str());
            let record = found.ok_or_else(missing)?;
            if input.name.is_empty() {
                input.name.clone_from(&record.name);
            }
            input.content = Content::Record(Box::new(record));
        }
        bytes = bytes.saturating_add(input.content.known_size());
        if bytes > most {
            return Err(too_many(index));
        }
    }
    // Names of records may need others than what stood in for them.
    let names: Vec<&str> = job.inputs.iter().map(|input| input.name.as_str()).collect();
    if names.iter().map(|name| name.len()).sum::<usize>() > NAMES_MAX {
        return Err(Problem::Fields(vec![FieldProblem {
            field: "inputs".to_owned(),
            message: "the names have more than 64 KiB in all".to_owned(),
            reason: Reason::TooLarge,
        }]));
    }
    let paths = names::input_names("inputs", &names).map_err(|error| {
        Problem::Fields(vec![FieldProblem {
            message: format!("{:?} {}", error.value, error.problem),
            field: error.field,
            reason: Reason::InvalidPath,
        }])
    })?;
    for (input, path) in job.inputs.iter_mut().zip(paths) {
        input.path = path;
    }
    Ok(())
}

/// Opens the records of a job that is admitted; they can be read from then on whatever becomes of them. There is one
/// entry for each input.
pub async fn open(job: &Job, host: &Host) -> Result<Vec<Option<Opened>>, Problem> {
    let mut opened = Vec::with_capacity(job.inputs.len());
    for (index, input) in job.inputs.iter().enumerate() {
        let gone = |id: &str| not_found(&format!("inputs[{index}].input_id"), id);
        opened.push(match &input.content {
            Content::Record(record) => {
                let bytes = host.inputs.bytes(record).await?;
                Some(bytes.ok_or_else(|| gone(record.id.as_str()))?)
            }
            // The request was known when it came, and is forgotten now.
            Content::Named(id) => return Err(gone(id.as_str())),
            _ => None,
        });
    }
    Ok(opened)
}

/// What the inputs of a job may have together, in bytes.
fn most(job: &Job) -> u64 {
    job.limits.disk_bytes.min(job.policy.limits.upload_bytes.bytes())
}

/// Takes all inputs of a job: those of the request itself, and those that the stream brings.
pub async fn take(
    job: &mut Job,
    spool: &Spool,
    stream: &mut (impl Stream<Item = Result<RunRequest, Status>> + Unpin),
) -> Result<(), Problem> {
    let records = job.inputs.iter().map(|input| match &input.content {
        Content::Record(record) => record.size,
        _ => 0,
    });
    let mut chunks = Chunks {
        stream,
        ahead: None,
        left: most(job).saturating_sub(records.sum()),
    };
    for (index, input) in job.inputs.iter_mut().enumerate() {
        if !matches!(input.content, Content::Given(_) | Content::Streamed { .. }) {
            continue;
        }
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
        Content::Stored(_) | Content::Named(_) | Content::Record(_) => {}
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
            None => Err(too_many(index)),
        }
    }
}

impl Content {
    /// How many bytes there are, as far as that is known.
    fn known_size(&self) -> u64 {
        match self {
            Self::Given(bytes) => bytes.len() as u64,
            Self::Streamed { size, .. } => size.unwrap_or(0),
            Self::Stored(stored) => stored.size(),
            Self::Record(record) => record.size,
            Self::Named(_) => 0,
        }
    }
}

fn too_many(index: usize) -> Problem {
    let message = "does not fit: the inputs have more bytes than the disk limit, or the policy's upload_bytes";
    wrong(index, Reason::TooLarge, message)
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

/// Reads what [`hex`] writes.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect()
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
