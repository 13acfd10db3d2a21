//! `brig put`.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use brig_proto::sizes::FILE_CHUNK_MAX;
use brig_proto::v1::files_upload_request::Part;
use brig_proto::v1::{FilesUploadRequest, UploadSpec};
use clap::Args;
use indicatif::ProgressBar;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::progress::Progress;
use super::{FileDocument, Remote, client, with_path};
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::{Format, FormatOptions};
use crate::output::amount;
use crate::output::escape;
use crate::output::screen::Screen;

/// Messages that are read ahead.
const AHEAD: usize = 4;

const EXAMPLES: &str = "\
Examples:
  brig put data.csv sales:data.csv           to /home/user/data.csv of the session `sales`
  brig put data.csv sales:in/                under its own name, in a directory
  tar c src | brig put - sales:/tmp/src.tar  what comes in";

/// Puts a file into a session.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PutOptions {
    /// The file; - for standard input.
    #[arg(value_name = "FILE|-")]
    file: PathBuf,

    /// Where to: below /home/user or /tmp; in a directory of that name if it ends with a slash.
    #[arg(value_name = "SESSION:PATH", value_parser = with_path)]
    to: Remote,

    /// Replaces a file of that name.
    #[arg(short, long)]
    force: bool,

    /// Makes the directories that are missing.
    #[arg(short, long)]
    parents: bool,

    /// No progress.
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    pub(crate) format: FormatOptions,
}

/// Sends the file.
pub(crate) fn put(options: &PutOptions, screen: &mut Screen) -> Result<Exit, Failure> {
    let (source, spec) = open(options)?;
    let progress = Progress::new(&spec.path, spec.size_bytes, options.quiet);
    let shown = spec.path.clone();
    let file = connect::runtime()?.block_on(async {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let bar = progress.bar();
        let reading = tokio::task::spawn_blocking(move || send(source, spec, &sender, &bar));
        let answer = client().await?.upload(ReceiverStream::new(receiver)).await;
        match answer {
            Ok(answer) => Ok(answer.into_inner().file),
            Err(status) => match reading.await {
                // What went wrong here is why the daemon saw no end.
                Ok(Err(error)) => Err(unreadable(&options.file, &error)),
                _ => Err(Failure::from_status(&status)),
            },
        }
    })?;
    drop(progress);
    let file = file.ok_or_else(|| Failure::new(Exit::Failed, "the daemon answered without a file"))?;
    match options.format.format() {
        Format::Text if options.quiet => {}
        Format::Text => {
            let line = format!(
                "{}  {}  {}\n",
                escape::line(&shown),
                amount::size(file.size_bytes),
                file.sha256
            );
            screen.err.text(&line);
        }
        Format::Json => screen.out.json(&FileDocument::new(&file)),
        Format::Jsonl => screen.out.json_line(&FileDocument::new(&file)),
    }
    Ok(Exit::Success)
}

fn open(options: &PutOptions) -> Result<(Box<dyn Read + Send>, UploadSpec), Failure> {
    let mut path = options.to.path.clone();
    let mut spec = UploadSpec {
        session_id: options.to.session.clone(),
        make_parents: options.parents,
        overwrite: options.force,
        ..UploadSpec::default()
    };
    let source: Box<dyn Read + Send> = if options.file == Path::new("-") {
        Box::new(io::stdin())
    } else {
        let file = File::open(&options.file).map_err(|error| unreadable(&options.file, &error))?;
        let metadata = file.metadata().map_err(|error| unreadable(&options.file, &error))?;
        if metadata.is_dir() {
            let message = format!("{}: is a directory; one file is put at a time", options.file.display());
            return Err(Failure::usage("FILE", message));
        }
        spec.mode = Some(metadata.mode() & 0o777);
        spec.size_bytes = metadata.is_file().then_some(metadata.len());
        if path.ends_with('/') {
            let name = options.file.file_name().unwrap_or_default().to_string_lossy();
            path.push_str(&name);
        }
        Box::new(file)
    };
    spec.path = path;
    Ok((source, spec))
}

fn send(
    mut source: Box<dyn Read + Send>,
    spec: UploadSpec,
    to: &mpsc::Sender<FilesUploadRequest>,
    bar: &ProgressBar,
) -> io::Result<()> {
    let mut part = Part::Spec(spec);
    loop {
        // A receiver that is gone means that the daemon has refused: its answer says why.
        if to.blocking_send(FilesUploadRequest { part: Some(part) }).is_err() {
            return Ok(());
        }
        let mut bytes = Vec::with_capacity(FILE_CHUNK_MAX);
        source.by_ref().take(FILE_CHUNK_MAX as u64).read_to_end(&mut bytes)?;
        if bytes.is_empty() {
            return Ok(());
        }
        bar.inc(bytes.len() as u64);
        part = Part::Data(bytes.into());
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::usage("FILE", format!("{}: {error}", path.display()))
}
