//! `brig get`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use brig_proto::v1::files_download_response::Part;
use brig_proto::v1::{ContentDigest, FileInfo, FilesDownloadRequest, FilesDownloadResponse};
use clap::Args;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;
use tonic::Streaming;

use super::progress::Progress;
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

/// Where the bytes go.
enum Target {
    Stdout(io::Stdout),
    /// It gets its name when it is whole.
    File(NamedTempFile, PathBuf),
}

/// Fetches the file; a name is only given to a whole one.
pub(crate) fn get(options: &GetOptions, screen: &mut Screen) -> Result<Exit, Failure> {
    let format = options.format.format();
    let mut target = open(options)?;
    if format != Format::Text && matches!(target, Target::Stdout(_)) {
        let message = "stdout can't have both the file and a document; give a file to write to";
        return Err(Failure::usage("--format", message));
    }
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

fn open(options: &GetOptions) -> Result<Target, Failure> {
    if options.to == Path::new("-") {
        return Ok(Target::Stdout(io::stdout()));
    }
    let mut path = options.to.clone();
    if path.is_dir() {
        let name = options.from.path.rsplit('/').next().unwrap_or_default();
        path.push(name);
    }
    if !options.force && path.symlink_metadata().is_ok() {
        let message = format!("{}: is there already; --force replaces it", path.display());
        return Err(Failure::usage("FILE", message));
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let file = NamedTempFile::new_in(directory.unwrap_or(Path::new(".")));
    let file = file.map_err(|error| unwritable(&path, &error))?;
    Ok(Target::File(file, path))
}

impl Target {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Stdout(stdout) => stdout
                .write_all(bytes)
                .map_err(|error| unwritable(Path::new("-"), &error)),
            Self::File(file, path) => file.write_all(bytes).map_err(|error| unwritable(path, &error)),
        }
    }

    fn keep(self, force: bool) -> Result<(), Failure> {
        match self {
            Self::Stdout(mut stdout) => stdout.flush().map_err(|error| unwritable(Path::new("-"), &error)),
            Self::File(file, path) => {
                let kept = if force {
                    file.persist(&path)
                } else {
                    file.persist_noclobber(&path)
                };
                kept.map(drop).map_err(|error| unwritable(&path, &error.error))
            }
        }
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("{}: {error}", path.display()))
}
