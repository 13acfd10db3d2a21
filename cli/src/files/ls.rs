//! `brig ls`.

use brig_proto::sizes::PAGE_MAX;
use brig_proto::v1::{FileInfo, FileKind, FilesListRequest};
use clap::Args;
use serde::Serialize;

use super::{FileDocument, Remote, client};
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::{Format, FormatOptions};
use crate::output::amount;
use crate::output::escape;
use crate::output::screen::Screen;
use crate::output::style::Style;
use crate::output::table::{self, Cell};

/// Lists a directory of a session.
#[derive(Debug, Clone, Args)]
pub(crate) struct LsOptions {
    /// The directory; the working directory without one.
    #[arg(value_name = "SESSION[:PATH]")]
    of: Remote,

    /// Levels that are listed, at most 32.
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=32))]
    depth: u32,

    #[command(flatten)]
    pub(crate) format: FormatOptions,
}

/// All of a list as one document.
#[derive(Serialize)]
struct ListDocument {
    files: Vec<FileDocument>,
}

/// Lists files; lines of JSON are printed as the pages come.
pub(crate) fn ls(options: &LsOptions, screen: &mut Screen) -> Result<Exit, Failure> {
    let format = options.format.format();
    let mut request = FilesListRequest {
        page_size: PAGE_MAX,
        session_id: options.of.session.clone(),
        path: options.of.path.clone(),
        depth: options.depth,
        ..FilesListRequest::default()
    };
    let files = connect::runtime()?.block_on(async {
        let mut client = client().await?;
        let mut files = Vec::new();
        loop {
            let page = client.list(request.clone()).await;
            let page = page.map_err(|status| Failure::from_status(&status))?.into_inner();
            if format == Format::Jsonl {
                for file in &page.files {
                    screen.out.json_line(&FileDocument::new(file));
                }
            } else {
                files.extend(page.files);
            }
            if page.next_page_token.is_empty() || screen.out.failed() {
                return Ok::<_, Failure>(files);
            }
            request.page_token = page.next_page_token;
        }
    })?;
    match format {
        Format::Text => {
            let text = render(&files, screen.out.style());
            screen.out.text(&text);
        }
        Format::Json => {
            let files = files.iter().map(FileDocument::new).collect();
            screen.out.json(&ListDocument { files });
        }
        Format::Jsonl => {}
    }
    Ok(Exit::Success)
}

fn render(files: &[FileInfo], style: Style) -> String {
    let rows: Vec<Vec<Cell>> = files.iter().map(row).collect();
    table::render(&["mode", "size", "changed", "path"], &rows, style)
}

fn row(file: &FileInfo) -> Vec<Cell> {
    let size = match file.kind() {
        FileKind::Regular => amount::size(file.size_bytes),
        _ => super::kind(file.kind()).to_owned(),
    };
    let time = file.modify_time.as_ref().map(ToString::to_string).unwrap_or_default();
    let path = match &file.symlink_target {
        Some(target) => format!("{} -> {target}", file.path),
        None => file.path.clone(),
    };
    vec![
        Cell::new(format!("{:04o}", file.mode)),
        Cell::new(size),
        Cell::new(time),
        Cell::new(escape::line(&path)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_shows_what_things_are_and_no_byte_of_a_guest_acts() {
        let file = |path: &str, kind: FileKind| FileInfo {
            path: path.to_owned(),
            kind: kind.into(),
            size_bytes: 2048,
            mode: 0o644,
            ..FileInfo::default()
        };
        let link = FileInfo {
            symlink_target: Some("/etc\x1b[2J".to_owned()),
            ..file("l", FileKind::Symlink)
        };
        let text = render(
            &[file("a b", FileKind::Regular), file("d", FileKind::Directory), link],
            Style::PLAIN,
        );
        assert!(!text.contains('\x1b'), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "0644  2 K        a b");
        assert_eq!(lines[2], "0644  directory  d");
        assert!(lines[3].starts_with("0644  symlink    l -> /etc"), "{text}");
    }
}
