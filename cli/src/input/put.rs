//! `brig input put`.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use brig_jailer::units::Span;
use brig_proto::sizes::FILE_CHUNK_MAX;
use brig_proto::v1::inputs_create_request::Part;
use brig_proto::v1::{InputSpec, InputsCreateRequest};
use clap::Args;
use indicatif::ProgressBar;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::document::InputDocument;
use super::{client, present};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::files::progress::Progress;
use crate::options::{Format, FormatOptions, RecordOptions, parse_id};
use crate::output::screen::Screen;
use crate::output::{amount, escape};
use crate::spec;

/// Messages that are read ahead.
const AHEAD: usize = 4;

const EXAMPLES: &str = "\
Examples:
  brig input put 'Q3 sales.csv'                    prints the id that it gets
  brig input put sales.csv --id sales --keep-for 7d --label project=q3
  pg_dump db | brig input put - --name db.sql      what comes in
  brig run --input input:sales analysis.py         gives it to a job";

/// Uploads a file, and prints its id.
///
/// It is kept until --keep-for is over, or until it is removed.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PutOptions {
    /// The file; - for standard input.
    #[arg(value_name = "FILE|-")]
    file: PathBuf,

    /// Name that it has in sessions; its own if absent.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Media type, such as text/csv.
    #[arg(long = "type", value_name = "TYPE")]
    media_type: Option<String>,

    /// How long it is kept; 24 h if absent, at most 90 days, unless the daemon's configuration says otherwise.
    #[arg(long, value_name = "TIME")]
    keep_for: Option<Span>,

    /// Its id: lower-case letters and digits, not used before. A new one if absent.
    #[arg(long, value_name = "ID", value_parser = parse_id)]
    id: Option<String>,

    #[command(flatten)]
    record: RecordOptions,

    /// No progress and no summary.
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// Sends the file.
pub(super) async fn put(options: &PutOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let (source, spec) = open(options)?;
    let progress = Progress::new(&spec.name, spec.size_bytes, options.quiet);
    let (sender, receiver) = mpsc::channel(AHEAD);
    let bar = progress.bar();
    let mut client = client().await?;
    let reading = tokio::task::spawn_blocking(move || send(source, spec, &sender, &bar));
    let answer = match client.create(ReceiverStream::new(receiver)).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => {
            return Err(match reading.await {
                // What went wrong here is why the daemon saw no end.
                Ok(Err(error)) => unreadable(&options.file, &error),
                _ => Failure::from_status(&status),
            });
        }
    };
    drop(progress);
    let document = InputDocument::from_proto(&present(answer.input)?);
    match format {
        Format::Text => {
            if !options.quiet {
                let text = summary(&document);
                screen.err.text(&text);
            }
            screen.out.text(&format!("{}\n", escape::line(&document.input_id)));
        }
        Format::Json => screen.out.json(&document),
        Format::Jsonl => screen.out.json_line(&document),
    }
    Ok(Exit::Success)
}

fn summary(document: &InputDocument) -> String {
    let until = document.expire_time.as_deref().unwrap_or_default();
    format!(
        "{}  {}  {}  until {until}\n",
        escape::line(&document.name),
        amount::size(document.size_bytes),
        document.sha256
    )
}

fn open(options: &PutOptions) -> Result<(Box<dyn Read + Send>, InputSpec), Failure> {
    let is_stdin = options.file == Path::new("-");
    let (source, size, own): (Box<dyn Read + Send>, _, _) = if is_stdin {
        (Box::new(io::stdin()), None, None)
    } else {
        let failed = |error| unreadable(&options.file, &error);
        let file = File::open(&options.file).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            let message = format!(
                "{}: is a directory; put it into an archive first",
                options.file.display()
            );
            return Err(Failure::usage("FILE", message));
        }
        let own = options.file.file_name().map(|name| name.to_string_lossy().into_owned());
        (Box::new(file), metadata.is_file().then_some(metadata.len()), own)
    };
    let name = options.name.clone().or(own);
    let name = name.ok_or_else(|| Failure::usage("name", "standard input has no name; give one by --name"))?;
    let spec = InputSpec {
        request_id: spec::request_id(&options.record),
        input_id: options.id.clone().unwrap_or_default(),
        name,
        r#type: options.media_type.clone().unwrap_or_default(),
        size_bytes: size,
        sha256: String::new(),
        retention: options.keep_for.map(spec::duration),
        origin: spec::origin(&options.record),
        labels: options.record.label.iter().cloned().collect(),
    };
    Ok((source, spec))
}

fn send(
    mut source: Box<dyn Read + Send>,
    spec: InputSpec,
    to: &mpsc::Sender<InputsCreateRequest>,
    bar: &ProgressBar,
) -> io::Result<()> {
    let mut part = Part::Spec(spec);
    loop {
        // A receiver that is gone means that the daemon has answered.
        if to.blocking_send(InputsCreateRequest { part: Some(part) }).is_err() {
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
