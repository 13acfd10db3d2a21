//! `brig artifact get`.

use std::path::PathBuf;

use brig_proto::v1::artifacts_download_response::Part;
use brig_proto::v1::{ArtifactRecord, ArtifactsDownloadRequest, ArtifactsDownloadResponse, ContentDigest};
use clap::Args;
use sha2::{Digest, Sha256};
use tonic::Streaming;

use super::document::RecordDocument;
use super::{client, failed, find};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::files::progress::Progress;
use crate::files::target::Target;
use crate::options::{Format, FormatOptions};
use crate::output::screen::Screen;

const EXAMPLES: &str = "\
Examples:
  brig artifact get ID report.csv
  brig artifact get ID .                           under its own name
  brig artifact get --for-review ID - | less       what is to be decided about";

/// Gets an artifact that may leave.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GetOptions {
    #[arg(value_name = "ID")]
    id: String,

    /// Where to; in a directory of that name if there is one; - for standard output.
    #[arg(value_name = "FILE|-")]
    to: PathBuf,

    /// One that waits for review, to look at it. Needs the role reviewer.
    #[arg(long)]
    for_review: bool,

    /// Replaces a file of that name.
    #[arg(short, long)]
    force: bool,

    /// No progress.
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// Fetches the artifact; a name is only given to a whole file.
pub(super) async fn get(options: &GetOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let mut client = client().await?;
    let record = find(&mut client, &options.id).await?;
    let path = record.artifact.map(|artifact| artifact.path).unwrap_or_default();
    let name = file_name(&path, &options.id);
    let mut target = Target::open(&options.to, &name, options.force, format)?;
    let request = ArtifactsDownloadRequest {
        artifact_id: options.id.clone(),
        for_review: options.for_review,
        ..ArtifactsDownloadRequest::default()
    };
    let mut stream = client.download(request).await.map_err(failed)?.into_inner();
    let record = receive(&mut stream, &mut target, options.quiet).await?;
    target.keep(options.force)?;
    match format {
        Format::Text => {}
        Format::Json => screen.out.json(&RecordDocument::from_proto(&record)),
        Format::Jsonl => screen.out.json_line(&RecordDocument::from_proto(&record)),
    }
    Ok(Exit::Success)
}

async fn receive(
    stream: &mut Streaming<ArtifactsDownloadResponse>,
    target: &mut Target,
    quiet: bool,
) -> Result<ArtifactRecord, Failure> {
    let broken = || Failure::new(Exit::Failed, "the daemon answered out of order");
    let Some(Part::Artifact(record)) = next(stream).await? else {
        return Err(broken());
    };
    let artifact = record.artifact.clone().unwrap_or_default();
    let progress = Progress::new(&artifact.path, Some(artifact.size_bytes), quiet);
    let (mut hash, mut size) = (Sha256::new(), 0_u64);
    loop {
        match next(stream).await?.ok_or_else(broken)? {
            Part::Data(data) => {
                target.write(&data)?;
                hash.update(&data);
                size += data.len() as u64;
                progress.add(data.len());
            }
            Part::Digest(digest) => {
                let found = ContentDigest {
                    size_bytes: size,
                    sha256: hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect(),
                };
                if found != digest || found.sha256 != artifact.sha256 {
                    let message = format!("{}: other bytes came than were stored", artifact.path);
                    return Err(Failure::new(Exit::Failed, message));
                }
                return Ok(record);
            }
            Part::Artifact(_) => return Err(broken()),
        }
    }
}

async fn next(stream: &mut Streaming<ArtifactsDownloadResponse>) -> Result<Option<Part>, Failure> {
    let message = stream.message().await.map_err(failed)?;
    Ok(message.and_then(|message| message.part))
}

/// The name of the file that a path names, as far as it can be one here.
fn file_name(path: &str, id: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    let is_name = !matches!(name, "" | "." | "..") && !name.chars().any(char::is_control);
    if is_name { name } else { id }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_as_it_was_where_that_is_a_name() {
        let names = ["out/a.csv", "a.csv", "a/..", "", "a\u{1b}[2J"].map(|path| file_name(path, "a1"));
        assert_eq!(names, ["a.csv", "a.csv", "a1", "a1", "a1"]);
    }
}
