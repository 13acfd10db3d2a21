//! Link: an address under which others get an artifact that may leave.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use brig_jailer::ids::Id;
use brig_proto::v1;
use brig_proto::v1::{ArtifactHandling, LinkDisposition, Reason};
use tracing::info;

use super::record::{Place, Record};
use super::service::{find, not_found};
use super::{ArtifactStore, download};
use crate::calls::note_refusal;
use crate::database::{to_millis, to_time};
use crate::host::Host;
use crate::ledger;
use crate::links::{Disposition, may_be_shown, shown_types};
use crate::principal::Principal;
use crate::run::fields::{Fields, millis};
use crate::run::gate::Way;
use crate::run::inputs::hex;
use crate::status::Problem;

/// The shortest life of a link, in milliseconds.
const LIFETIME_MIN: u64 = 1_000;

/// Makes a link. That it was made is on record before anybody has it.
pub(super) async fn link(
    host: &Arc<Host>,
    principal: &Principal,
    asked: v1::ArtifactsLinkRequest,
) -> Result<v1::ArtifactsLinkResponse, Problem> {
    if !host.links.is_on() {
        return Err(Problem::LinksOff);
    }
    let mut fields = Fields::default();
    let lifetime = lifetime(host, &asked, &mut fields);
    let disposition = disposition(&asked, &mut fields);
    fields.done()?;
    let tenant = &principal.tenant;
    let record = find(&host.artifacts, tenant, &asked.artifact_id).await?;
    download::check_gate(&record, Way::Artifact(record.review))
        .inspect_err(|problem| note_refusal(&host.ledger, problem, principal))?;
    let now = SystemTime::now();
    if record.place == Place::Gone || record.expire_time <= now {
        return Err(not_found(&asked.artifact_id));
    }
    if disposition == Disposition::Inline {
        check_shown(&record)?;
    }
    let expire_time = to_time(to_millis((now + lifetime).min(record.expire_time)));
    host.ledger
        .downloaded(entry(&record, principal.user.clone(), now, expire_time))
        .await?;
    info!(artifact = %record.id, tenant, "artifact linked");
    let url = host.links.make(tenant, &record.id, expire_time, disposition);
    Ok(v1::ArtifactsLinkResponse {
        url: url.ok_or(Problem::LinksOff)?,
        expire_time: Some(expire_time.into()),
    })
}

impl ArtifactStore {
    /// Finds the artifact that a link is to, whoever it belongs to; it is there, and the gate lets it out.
    pub(crate) async fn find_granted(&self, id: &Id) -> Result<Record, Problem> {
        let wanted = id.clone();
        let found = self.blocking(move |shared| Ok(shared.records().find_any(&wanted)?));
        let there = found.await?.filter(|record| record.place != Place::Gone);
        let record = there.ok_or_else(|| not_found(id.as_str()))?;
        download::check_gate(&record, Way::Artifact(record.review))?;
        Ok(record)
    }
}

impl Record {
    /// Whether a browser may show it: the policy has it previewed, and nothing of such a file can run.
    pub(crate) fn may_be_shown(&self) -> bool {
        self.shown.handling() == ArtifactHandling::Preview && may_be_shown(&self.shown.r#type)
    }
}

fn lifetime(host: &Host, asked: &v1::ArtifactsLinkRequest, fields: &mut Fields) -> Duration {
    let (usual, most) = host.links.lifetimes();
    let Some(wanted) = fields.keep_some(millis("lifetime", asked.lifetime.as_ref())) else {
        return usual;
    };
    let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
    if !(LIFETIME_MIN..=most).contains(&wanted) {
        let message = format!("{wanted} ms is not in {LIFETIME_MIN} ms to {most} ms (links.lifetime_max)");
        fields.wrong("lifetime", Reason::InvalidValue, message);
    }
    Duration::from_millis(wanted)
}

fn disposition(asked: &v1::ArtifactsLinkRequest, fields: &mut Fields) -> Disposition {
    match LinkDisposition::try_from(asked.disposition) {
        Ok(LinkDisposition::Unspecified | LinkDisposition::Attachment) => {}
        Ok(LinkDisposition::Inline) => return Disposition::Inline,
        Err(_) => {
            let message = format!("{} is neither ATTACHMENT (1) nor INLINE (2)", asked.disposition);
            fields.wrong("disposition", Reason::InvalidValue, message);
        }
    }
    Disposition::Attachment
}

fn check_shown(record: &Record) -> Result<(), Problem> {
    let mut fields = Fields::default();
    let media_type = &record.shown.r#type;
    if record.shown.handling() != ArtifactHandling::Preview {
        let message = "INLINE is for artifacts that the policy has previewed (handling = \"preview\"); use ATTACHMENT";
        fields.wrong("disposition", Reason::PolicyForbids, message);
    } else if !may_be_shown(media_type) {
        let shown = shown_types();
        let message = format!("INLINE is for {shown}, and this is {media_type}; use ATTACHMENT");
        fields.wrong("disposition", Reason::InvalidValue, message);
    }
    fields.done()
}

fn entry(record: &Record, user: String, time: SystemTime, expire_time: SystemTime) -> ledger::Downloaded {
    let source = &record.source;
    ledger::Downloaded {
        artifact: record.id.clone(),
        execution: source.execution.clone(),
        session: source.session.clone(),
        tenant: source.tenant.clone(),
        user,
        origin: ledger::Origin {
            user: source.user.clone(),
            ..ledger::Origin::default()
        },
        way: "link".to_owned(),
        expire_time,
        sha256: hex(&record.sha256),
        size_bytes: record.shown.size_bytes,
        time,
    }
}
