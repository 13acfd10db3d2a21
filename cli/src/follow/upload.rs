//! Sends a request: its spec, then the inputs in chunks, so that memory use does not depend on their size.

use std::sync::Arc;

use brig_proto::sizes::FILE_CHUNK_MAX as CHUNK;
use brig_proto::v1::run_request::Part;
use brig_proto::v1::{ExecutionSpec, FileChunk, RunRequest};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;

use super::inputs::{Input, InputFile};
use crate::failure::Failure;

/// Messages that are read ahead.
const AHEAD: usize = 2;

/// A request on its way.
#[derive(Debug)]
pub(crate) struct Upload {
    task: JoinHandle<Result<(), Failure>>,
}

impl Upload {
    /// Starts reading; the stream ends behind the last input.
    pub(crate) fn start(spec: ExecutionSpec, inputs: Arc<[Input]>) -> (Self, ReceiverStream<RunRequest>) {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let task = tokio::task::spawn_blocking(move || {
            let first = RunRequest {
                part: Some(Part::Spec(spec)),
            };
            // A receiver that is gone means that the daemon has refused: its answer says why.
            if sender.blocking_send(first).is_err() {
                return Ok(());
            }
            for (index, input) in (0..).zip(&*inputs) {
                // The daemon has the bytes of records.
                if let Input::File(file) = input
                    && !send(index, file, &sender)?
                {
                    break;
                }
            }
            Ok(())
        });
        (Self { task }, ReceiverStream::new(receiver))
    }

    /// Says what went wrong while reading, if something did. The daemon sees only a file that ends too early.
    pub(crate) async fn failure(self) -> Option<Failure> {
        self.task.await.ok().and_then(Result::err)
    }
}

/// Sends a file; `false` means that nobody receives any more.
fn send(index: u32, input: &InputFile, sender: &mpsc::Sender<RunRequest>) -> Result<bool, Failure> {
    let mut offset = 0;
    while offset < input.size {
        let length = CHUNK.min(usize::try_from(input.size - offset).unwrap_or(CHUNK));
        let chunk = FileChunk {
            input: index,
            offset,
            data: input.read_at(offset, length)?.into(),
        };
        let part = Some(Part::FileChunk(chunk));
        if sender.blocking_send(RunRequest { part }).is_err() {
            return Ok(false);
        }
        offset += length as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;

    fn input(directory: &std::path::Path, name: &str, bytes: &[u8]) -> Input {
        std::fs::write(directory.join(name), bytes).unwrap();
        Input::open(directory.join(name).as_os_str()).unwrap()
    }

    #[tokio::test]
    async fn inputs_follow_the_spec_in_chunks_of_256_kib() {
        let directory = tempfile::tempdir().unwrap();
        let inputs = [
            input(directory.path(), "a", &vec![1; CHUNK + 3]),
            input(directory.path(), "empty", b""),
            Input::open("input:i1".as_ref()).unwrap(),
            input(directory.path(), "b", b"xy"),
        ];
        let (upload, stream) = Upload::start(ExecutionSpec::default(), inputs.into());
        let parts: Vec<RunRequest> = stream.collect().await;
        let shape: Vec<_> = parts
            .iter()
            .map(|request| match request.part.as_ref().unwrap() {
                Part::Spec(_) => None,
                Part::FileChunk(chunk) => Some((chunk.input, chunk.offset, chunk.data.len())),
            })
            .collect();
        let chunk = CHUNK as u64;
        assert_eq!(shape, [None, Some((0, 0, CHUNK)), Some((0, chunk, 3)), Some((3, 0, 2))]);
        assert_eq!(upload.failure().await, None);
    }

    #[tokio::test]
    async fn a_file_that_shrinks_meanwhile_is_a_failure_with_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let input = input(directory.path(), "a", b"abc");
        std::fs::write(directory.path().join("a"), "a").unwrap();
        let (upload, stream) = Upload::start(ExecutionSpec::default(), [input].into());
        assert_eq!(stream.collect::<Vec<_>>().await.len(), 1);
        let failure = upload.task.await.unwrap().unwrap_err();
        assert!(failure.message.contains("/a: "), "{}", failure.message);
    }
}
