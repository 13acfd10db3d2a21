//! Which entries are meant.

use std::time::SystemTime;

use brig_jailer::units::Span;
use brig_proto::ledger::kind;
use brig_proto::v1::LedgerEntryKind;
use clap::Args;
use prost_types::Timestamp;

/// Filters that list, follow and export have in common.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct FilterOptions {
    /// Of this user: of the connection, or of the application.
    #[arg(long, value_name = "NAME")]
    pub(super) user: Option<String>,

    /// Of this execution.
    #[arg(long, value_name = "ID")]
    pub(super) execution: Option<String>,

    /// Of this session.
    #[arg(long, value_name = "ID")]
    pub(super) session: Option<String>,

    /// Of this kind: accepted, finished, refused, session_created, session_closed, erased, ... Can be repeated.
    #[arg(long, value_name = "KIND", value_parser = parse_kind)]
    pub(super) kind: Vec<LedgerEntryKind>,

    /// At this time or later: 2026-01-31T08:00:00Z, or how long ago (90m, 7d).
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(super) since: Option<Timestamp>,

    /// Before this time.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(super) until: Option<Timestamp>,

    /// Of this tenant. Another one than one's own needs the role operator.
    #[arg(long, value_name = "NAME", conflicts_with = "all_tenants")]
    pub(super) tenant: Option<String>,

    /// Of every tenant. Needs the role operator.
    #[arg(long)]
    pub(super) all_tenants: bool,
}

macro_rules! filters {
    ($($method:ident -> $request:ident),+) => {
        impl FilterOptions {$(
            /// The request with these filters.
            pub(super) fn $method(&self) -> brig_proto::v1::$request {
                brig_proto::v1::$request {
                    tenant: self.tenant.clone().unwrap_or_default(),
                    user: self.user.clone().unwrap_or_default(),
                    execution_id: self.execution.clone().unwrap_or_default(),
                    session_id: self.session.clone().unwrap_or_default(),
                    kinds: self.kind.iter().map(|kind| (*kind).into()).collect(),
                    time_from: self.since,
                    time_to: self.until,
                    all_tenants: self.all_tenants,
                    ..brig_proto::v1::$request::default()
                }
            }
        )+}
    };
}

filters! {
    list_request -> LedgerListRequest,
    follow_request -> LedgerFollowRequest,
    export_request -> LedgerExportRequest
}

/// Reads a time, or a span that lies so long ago.
pub(super) fn parse_time(text: &str) -> Result<Timestamp, String> {
    if let Ok(ago) = text.parse::<Span>() {
        let then = SystemTime::now().checked_sub(std::time::Duration::from_millis(ago.millis()));
        return then
            .map(Timestamp::from)
            .ok_or_else(|| format!("{text:?} is too long ago"));
    }
    text.parse()
        .map_err(|_| format!("{text:?} is no time: 2026-01-31T08:00:00Z is one, and 7d is seven days ago"))
}

fn parse_kind(text: &str) -> Result<LedgerEntryKind, String> {
    let kinds = || (1..).map_while(|number| LedgerEntryKind::try_from(number).ok());
    kinds().find(|known| kind(*known) == text).ok_or_else(|| {
        let names: Vec<String> = kinds().map(kind).collect();
        format!("{text:?} is no kind: {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_date_or_so_long_ago() {
        let time = parse_time("2026-01-31T08:00:00Z").unwrap();
        assert_eq!((time.seconds, time.nanos), (1_769_846_400, 0));
        let week = parse_time("7d").unwrap();
        let now = Timestamp::from(SystemTime::now());
        assert!((604_799..604_900).contains(&(now.seconds - week.seconds)));
        for wrong in ["", "yesterday", "2026-13-01T00:00:00Z", "-1d"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_kind_is_named_as_the_documents_name_it() {
        assert_eq!(parse_kind("session_created"), Ok(LedgerEntryKind::SessionCreated));
        assert!(
            parse_kind("accept")
                .unwrap_err()
                .contains("accepted, finished, refused")
        );
    }
}
