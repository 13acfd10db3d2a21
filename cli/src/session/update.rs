//! `brig session update`.

use std::time::SystemTime;

use brig_jailer::units::Span;
use brig_proto::v1::{OnTimeout, SessionsUpdateRequest};
use clap::Args;
use prost_types::FieldMask;

use super::create::Timeout;
use super::{client, present, print};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::identity::random_id;
use crate::options::{Format, FormatOptions, parse_pair};
use crate::output::screen::Screen;
use crate::spec;

/// Changes how long a session lives, or its labels, and shows it.
#[derive(Debug, Clone, Args)]
pub(crate) struct UpdateOptions {
    #[arg(value_name = "ID")]
    id: String,

    /// Ends it when nothing has used it for so long; at most the policy's.
    #[arg(long, value_name = "TIME")]
    idle: Option<Span>,

    /// Ends it so long from now, used or not; at most at its greatest age.
    #[arg(long, value_name = "TIME")]
    expire: Option<Span>,

    /// What happens when it was idle too long or has expired: it ends, or it is paused.
    #[arg(long, value_name = "WHAT")]
    on_timeout: Option<Timeout>,

    /// Label. Can be repeated; labels that are not given here are removed.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    label: Vec<(String, String)>,

    /// Removes all labels.
    #[arg(long, conflicts_with = "label")]
    no_labels: bool,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// Changes a session and shows it.
pub(super) async fn update(options: &UpdateOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let request = request(options, SystemTime::now())?;
    let answer = client().await?.update(request).await;
    let answer = answer.map_err(|status| Failure::from_status(&status))?.into_inner();
    print(&present(answer.session)?, format, screen);
    Ok(Exit::Success)
}

fn request(options: &UpdateOptions, now: SystemTime) -> Result<SessionsUpdateRequest, Failure> {
    let fields = [
        ("idle_timeout", options.idle.is_some()),
        ("expire_time", options.expire.is_some()),
        ("on_timeout", options.on_timeout.is_some()),
        ("labels", !options.label.is_empty() || options.no_labels),
    ];
    let paths: Vec<String> = fields
        .iter()
        .filter(|(_, given)| *given)
        .map(|(name, _)| (*name).to_owned())
        .collect();
    if paths.is_empty() {
        let message = "nothing to change; accepted: --idle TIME, --expire TIME, --on-timeout WHAT, --label KEY=VALUE, \
                       --no-labels";
        return Err(Failure::usage("update_mask", message));
    }
    let expire_time = options.expire.map(|span| {
        let time = now.checked_add(span.duration());
        let too_long = || Failure::usage("expire", format!("{span} is too long"));
        time.map(Into::into).ok_or_else(too_long)
    });
    Ok(SessionsUpdateRequest {
        request_id: random_id(),
        session_id: options.id.clone(),
        update_mask: Some(FieldMask { paths }),
        expire_time: expire_time.transpose()?,
        idle_timeout: options.idle.map(spec::duration),
        labels: options.label.iter().cloned().collect(),
        on_timeout: options.on_timeout.map_or(OnTimeout::Unspecified, Into::into).into(),
        ..SessionsUpdateRequest::default()
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn options() -> UpdateOptions {
        UpdateOptions {
            id: "s1".to_owned(),
            idle: None,
            expire: None,
            on_timeout: None,
            label: Vec::new(),
            no_labels: false,
            format: FormatOptions::default(),
        }
    }

    #[test]
    fn only_what_was_given_is_in_the_mask() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let options = UpdateOptions {
            expire: Some(Span::from_secs(60)),
            label: vec![("a".to_owned(), "b".to_owned())],
            ..options()
        };
        let request = request(&options, now).unwrap();
        assert_eq!(request.update_mask.unwrap().paths, ["expire_time", "labels"]);
        assert_eq!(request.expire_time.unwrap().seconds, 160);
        assert_eq!((request.idle_timeout, request.labels["a"].as_str()), (None, "b"));
    }

    #[test]
    fn labels_can_be_removed_and_what_happens_at_the_end_can_be_chosen() {
        let options = UpdateOptions {
            on_timeout: Some(Timeout::Pause),
            no_labels: true,
            ..options()
        };
        let request = request(&options, SystemTime::now()).unwrap();
        assert_eq!((request.on_timeout(), request.labels.len()), (OnTimeout::Pause, 0));
        assert_eq!(request.update_mask.unwrap().paths, ["on_timeout", "labels"]);
    }

    #[test]
    fn nothing_to_change_is_told_with_what_could_be() {
        let failure = request(&options(), SystemTime::now()).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.message.contains("--idle TIME"), "{}", failure.message);
    }
}
