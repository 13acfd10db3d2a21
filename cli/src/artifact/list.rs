//! `brig artifact list`.

use brig_proto::sizes::PAGE_MAX;
use brig_proto::v1::{ArtifactsListRequest, Origin, ReviewState};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::document::RecordDocument;
use super::{client, failed};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::{Format, FormatOptions, parse_pair};
use crate::output::screen::Screen;
use crate::output::style::Style;
use crate::output::table::{self, Cell};
use crate::output::{amount, escape};

const EXAMPLES: &str = "\
Examples:
  brig artifact list --review pending              what waits for a decision
  brig artifact list --session sales -o json";

/// Lists artifacts, newest first.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ListOptions {
    /// In this state of review. Can be repeated.
    #[arg(long, value_name = "STATE")]
    review: Vec<Review>,

    /// Of this execution.
    #[arg(long, value_name = "ID")]
    execution: Option<String>,

    /// Of this session.
    #[arg(long, value_name = "ID")]
    session: Option<String>,

    /// With this label. Can be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    label: Vec<(String, String)>,

    /// Made for this user, as --user said.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,

    /// Ids only.
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// A state of review.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Review {
    NotNeeded,
    Pending,
    Approved,
    Rejected,
    Expired,
}

/// All of a list as one document.
#[derive(Serialize)]
struct ListDocument {
    artifacts: Vec<RecordDocument>,
}

impl Review {
    /// The same in the form of the API.
    pub(super) fn number(self) -> i32 {
        match self {
            Self::NotNeeded => ReviewState::NotNeeded,
            Self::Pending => ReviewState::Pending,
            Self::Approved => ReviewState::Approved,
            Self::Rejected => ReviewState::Rejected,
            Self::Expired => ReviewState::Expired,
        }
        .into()
    }
}

/// Lists artifacts; lines of JSON are printed as the pages come.
pub(super) async fn list(options: &ListOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let mut request = ArtifactsListRequest {
        page_size: PAGE_MAX,
        execution_id: options.execution.clone().unwrap_or_default(),
        session_id: options.session.clone().unwrap_or_default(),
        reviews: options.review.iter().map(|review| review.number()).collect(),
        labels: options.label.iter().cloned().collect(),
        origin: options.user.as_ref().map(|user| Origin {
            user: user.clone(),
            ..Origin::default()
        }),
        ..ArtifactsListRequest::default()
    };
    let mut client = client().await?;
    let mut artifacts = Vec::new();
    loop {
        let page = client.list(request.clone()).await.map_err(failed)?.into_inner();
        let is_last = page.next_page_token.is_empty() || page.artifacts.is_empty();
        for artifact in page.artifacts.iter().map(RecordDocument::from_proto) {
            match format {
                Format::Jsonl => screen.out.json_line(&artifact),
                Format::Text | Format::Json => artifacts.push(artifact),
            }
        }
        if is_last || screen.out.failed() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    match format {
        Format::Text if options.quiet => {
            let ids = artifacts
                .iter()
                .map(|document| escape::line(&document.artifact.artifact_id));
            let text: String = ids.map(|id| format!("{id}\n")).collect();
            screen.out.text(&text);
        }
        Format::Text => {
            let text = render(&artifacts, screen.out.style());
            screen.out.text(&text);
        }
        Format::Json => screen.out.json(&ListDocument { artifacts }),
        Format::Jsonl => {}
    }
    Ok(Exit::Success)
}

fn render(artifacts: &[RecordDocument], style: Style) -> String {
    let heading = [
        "artifact", "review", "path", "class", "size", "flags", "session", "user", "expires", "labels",
    ];
    let rows: Vec<Vec<Cell>> = artifacts.iter().map(row).collect();
    table::render(&heading, &rows, style)
}

fn row(document: &RecordDocument) -> Vec<Cell> {
    let artifact = &document.artifact;
    let review = artifact.review.to_string();
    let paint = match review.as_str() {
        "pending" => Style::yellow,
        "rejected" | "expired" => Style::red,
        "approved" => Style::green,
        _ => Style::dim,
    };
    let expires = match &document.expire_time {
        Some(time) => time.clone(),
        None => "gone".to_owned(),
    };
    let rest = [
        artifact.path.clone(),
        artifact.class.to_string(),
        amount::size(artifact.size_bytes),
        artifact.flags.join(", "),
        document.session_id.clone(),
        document.user.clone(),
        expires,
        document.labels(),
    ];
    [
        Cell::new(escape::line(&artifact.artifact_id)),
        Cell::painted(escape::line(&review), paint),
    ]
    .into_iter()
    .chain(rest.iter().map(|text| Cell::new(escape::line(text))))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::super::document::tests::record;
    use super::*;

    #[test]
    fn each_artifact_is_one_line_in_which_nothing_commands_the_terminal() {
        let list = [RecordDocument::from_proto(&record())];
        assert_eq!(
            render(&list, Style::PLAIN),
            "artifact  review   path            class  size  user  expires\n\
             a1        pending  tool\\x1b[2J.py  code   2 K   ann   gone\n"
        );
    }

    #[test]
    fn each_state_of_the_api_can_be_asked_for() {
        let numbers: Vec<i32> = Review::value_variants().iter().map(|review| review.number()).collect();
        // All but UNSPECIFIED.
        let all: Vec<i32> = (1..)
            .take_while(|number| ReviewState::try_from(*number).is_ok())
            .collect();
        assert_eq!(numbers, all);
    }
}
