//! `brig input list`.

use brig_proto::sizes::PAGE_MAX;
use brig_proto::v1::{InputsListRequest, Origin};
use clap::Args;
use serde::Serialize;

use super::document::InputDocument;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::{Format, FormatOptions, parse_pair};
use crate::output::screen::Screen;
use crate::output::style::Style;
use crate::output::table::{self, Cell};
use crate::output::{amount, escape};

/// Lists inputs, newest first.
#[derive(Debug, Clone, Args)]
pub(crate) struct ListOptions {
    /// With this label. Can be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    label: Vec<(String, String)>,

    /// Put for this user, as --user said.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// All of a list as one document.
#[derive(Serialize)]
struct ListDocument {
    inputs: Vec<InputDocument>,
}

/// Lists inputs; lines of JSON are printed as the pages come.
pub(super) async fn list(options: &ListOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let mut request = InputsListRequest {
        page_size: PAGE_MAX,
        labels: options.label.iter().cloned().collect(),
        origin: options.user.as_ref().map(|user| Origin {
            user: user.clone(),
            ..Origin::default()
        }),
        ..InputsListRequest::default()
    };
    let mut client = super::client().await?;
    let mut inputs = Vec::new();
    loop {
        let answer = client.list(request.clone()).await;
        let page = answer.map_err(|status| Failure::from_status(&status))?.into_inner();
        let is_last = page.next_page_token.is_empty() || page.inputs.is_empty();
        for input in page.inputs.iter().map(InputDocument::from_proto) {
            match format {
                Format::Jsonl => screen.out.json_line(&input),
                Format::Text | Format::Json => inputs.push(input),
            }
        }
        if is_last || screen.out.failed() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    match format {
        Format::Text => {
            let text = render(&inputs, screen.out.style());
            screen.out.text(&text);
        }
        Format::Json => screen.out.json(&ListDocument { inputs }),
        Format::Jsonl => {}
    }
    Ok(Exit::Success)
}

fn render(inputs: &[InputDocument], style: Style) -> String {
    let heading = ["input", "name", "size", "type", "created", "expires", "user", "labels"];
    let rows: Vec<Vec<Cell>> = inputs.iter().map(row).collect();
    table::render(&heading, &rows, style)
}

fn row(input: &InputDocument) -> Vec<Cell> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let cells = [
        input.input_id.clone(),
        input.name.clone(),
        amount::size(input.size_bytes),
        text(&input.media_type),
        text(&input.create_time),
        text(&input.expire_time),
        input.user.clone(),
        input.labels(),
    ];
    cells.iter().map(|cell| Cell::new(escape::line(cell))).collect()
}
