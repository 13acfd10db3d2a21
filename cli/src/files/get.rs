//! `brig get`.

use std::path::PathBuf;

use brig_proto::v1::files_download_response::Part;
use brig_proto::v1::{ContentDigest, FileInfo, FilesDownloadRequest, FilesDownloadResponse};
use clap::Args;
use sha2::{Digest, Sha256};
use tonic::Streaming;

use super::progress::Progress;
use super::target::Target;
use super::{FileDocument, Remote, client, with_path};
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::{Format, FormatOptions};
use crate::output::screen::Screen;

const EXAMPLES: &str = "\
Examples:
  brig get sales:report.csv report.csv
  brig get sales:report.csv .            under its own name
  brig get sales:log.txt - | tail        to standard output

Which files may leave is the policy's: any, those that an execution left as artifacts, or none.";

/// Gets a file out of a session.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GetOptions {
    /// The file: below /home/user or /tmp.
    #[arg(value_name = "SESSION:PATH", value_parser = with_path)]
    from: Remote,

    /// Where to; in a directory of that name if there is one; - for standard output.
    #[arg(value_name = "FILE|-")]
    to: PathBuf,

    /// Replaces a file of that name.
    #[arg(short, long)]
    force: bool,

    /// No progress.
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    pub(crate) format: FormatOptions,
}

/// Fetches the file; a name is only given to a whole one.
pub(crate) fn get(options: &GetOptions, screen: &mut Screen) -> Result<Exit, Failure> {
    let format = options.format.format();
    let name = options.from.path.rsplit('/').next().unwrap_or_default();
    let mut target = Target::open(&options.to, name, options.force, format)?;
    let file = connect::runtime()?.block_on(async {
        let request = FilesDownloadRequest {
            session_id: options.from.session.clone(),
            path: options.from.path.clone(),
            ..FilesDownloadRequest::default()
        };
        let answer = client().await?.download(request).await;
        let mut stream = answer.map_err(|status| Failure::from_status(&status))?.into_inner();
        receive(&mut stream, &mut target, options.quiet).await
    })?;
    target.keep(options.force)?;
    match format {
        Format::Text => {}
        Format::Json => screen.out.json(&FileDocument::new(&file)),
        Format::Jsonl => screen.out.json_line(&FileDocument::new(&file)),
    }
    Ok(Exit::Success)
}

async fn receive(
    stream: &mut Streaming<FilesDownloadResponse>,
    target: &mut Target,
    quiet: bool,
) -> Result<FileInfo, Failure> {
    let broken = || Failure::new(Exit::Failed, "the daemon answered out of order");
    let Some(Part::File(file)) = next(stream).await? else {
        return Err(broken());
    };
    let progress = Progress::new(&file.path, Some(file.size_bytes), quiet);
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
                if found != digest {
                    let message = format!("{}: other bytes came than the daemon sent", file.path);
                    return Err(Failure::new(Exit::Failed, message));
                }
                return Ok(FileInfo {
                    sha256: digest.sha256,
                    ..file
                });
            }
            Part::File(_) => return Err(broken()),
        }
    }
}

async fn next(stream: &mut Streaming<FilesDownloadResponse>) -> Result<Option<Part>, Failure> {
    let message = stream.message().await;
    let message = message.map_err(|status| Failure::from_status(&status))?;
    Ok(message.and_then(|message| message.part))
}
