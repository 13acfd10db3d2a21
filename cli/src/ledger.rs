//! `brig ledger`: the record of who ran what, and what came of it.

mod erase;
mod filter;
mod lines;
mod list;
mod table;
mod verify;

use brig_proto::sizes::SPEC_MAX;
use brig_proto::v1::ledger_client::LedgerClient;
use clap::Subcommand;
use tonic::transport::Channel;

use self::erase::{EraseOptions, SweepOptions};
use self::lines::{ExportOptions, FollowOptions};
use self::list::ListOptions;
use self::verify::VerifyOptions;
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::Format;
use crate::output::screen::Screen;

/// Reads and verifies the audit log, and removes what may not be kept.
///
/// Needs the role auditor; erase and sweep need operator.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum LedgerCommand {
    List(ListOptions),
    Follow(FollowOptions),
    Export(ExportOptions),
    Verify(VerifyOptions),
    Erase(EraseOptions),
    Sweep(SweepOptions),
}

impl LedgerCommand {
    /// What stdout is.
    pub(crate) fn format(&self) -> Format {
        match self {
            Self::List(options) => options.format.format(),
            Self::Follow(options) => options.format.format(),
            Self::Export(_) => Format::Jsonl,
            Self::Verify(options) => options.format.format(),
            Self::Erase(options) => options.format.format(),
            Self::Sweep(options) => options.format.format(),
        }
    }
}

/// Runs a command about the ledger.
pub(crate) fn ledger(command: &LedgerCommand, screen: &mut Screen) -> Result<Exit, Failure> {
    let format = command.format();
    connect::runtime()?.block_on(async {
        match command {
            LedgerCommand::List(options) => list::list(options, format, screen).await,
            LedgerCommand::Follow(options) => lines::follow(options, format, screen).await,
            LedgerCommand::Export(options) => lines::export(options, screen).await,
            LedgerCommand::Verify(options) => verify::verify(options, format, screen).await,
            LedgerCommand::Erase(options) => erase::erase(options, format, screen).await,
            LedgerCommand::Sweep(options) => erase::sweep(*options, format, screen).await,
        }
    })
}

async fn client() -> Result<LedgerClient<Channel>, Failure> {
    let channel = connect::connect(&connect::socket()?).await?;
    // An entry carries code and output whole.
    Ok(LedgerClient::new(channel).max_decoding_message_size(SPEC_MAX))
}

fn failed(status: tonic::Status) -> Failure {
    Failure::from_status(&status)
}
