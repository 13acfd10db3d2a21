//! Records in the form of the API.

use std::time::SystemTime;

use brig_proto::sizes::{PAGE_DEFAULT, PAGE_MAX};
use brig_proto::v1;
use brig_proto::v1::Reason;
use prost::Message;

use super::records::Record;
use super::{Inputs, InputsError};
use crate::database::to_millis;
use crate::pages::BYTES;
use crate::run::inputs::hex;
use crate::status::{FieldProblem, Problem};

/// Shows a record.
pub(super) fn show(record: &Record) -> v1::Input {
    let origin = &record.origin;
    v1::Input {
        input_id: record.id.to_string(),
        name: record.name.clone(),
        r#type: record.media_type.clone(),
        size_bytes: record.size,
        sha256: hex(&record.sha256),
        create_time: Some(record.create_time.into()),
        expire_time: Some(record.expire_time.into()),
        tenant: record.tenant.clone(),
        user: record.user.clone(),
        origin: (*origin != v1::Origin::default()).then(|| origin.clone()),
        labels: record.labels.clone(),
    }
}

/// Shows one page of a tenant's records that match everything that is set.
///
/// The token is time and id of the last one that was shown, so that it holds when that one is removed meanwhile.
pub(super) async fn page(
    inputs: &Inputs,
    tenant: &str,
    asked: v1::InputsListRequest,
) -> Result<v1::InputsListResponse, Problem> {
    let behind = read_token(&asked.page_token)?;
    let tenant = tenant.to_owned();
    let listing = inputs.blocking(move |shared| {
        let mut page = v1::InputsListResponse::default();
        let size = match asked.page_size {
            0 => PAGE_DEFAULT,
            size => size.min(PAGE_MAX),
        };
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let (mut bytes, mut last) = (0, String::new());
        let take = |record: Record| {
            if !matches(&record, &asked) {
                return true;
            }
            let shown = show(&record);
            bytes += shown.encoded_len() + 8;
            if !page.inputs.is_empty() && (page.inputs.len() == size || bytes > BYTES) {
                page.next_page_token.clone_from(&last);
                return false;
            }
            last = format!("{}.{}", to_millis(record.create_time), record.id);
            page.inputs.push(shown);
            true
        };
        shared
            .records()
            .each(&tenant, SystemTime::now(), behind.as_ref(), take)?;
        Ok::<_, InputsError>(page)
    });
    Ok(listing.await?)
}

fn read_token(token: &str) -> Result<Option<(i64, String)>, Problem> {
    if token.is_empty() {
        return Ok(None);
    }
    let parts = token.split_once('.');
    let read = parts.and_then(|(time, id)| Some((time.parse().ok()?, id.to_owned())));
    read.map(Some).ok_or_else(|| {
        Problem::Fields(vec![FieldProblem {
            field: "page_token".to_owned(),
            message: "is of no page; begin again without it".to_owned(),
            reason: Reason::InvalidValue,
        }])
    })
}

fn matches(record: &Record, asked: &v1::InputsListRequest) -> bool {
    let none = v1::Origin::default();
    let (wanted, has) = (asked.origin.as_ref().unwrap_or(&none), &record.origin);
    let fits = |wanted: &str, has: &str| wanted.is_empty() || wanted == has;
    asked
        .labels
        .iter()
        .all(|(key, value)| record.labels.get(key) == Some(value))
        && fits(&wanted.user, &has.user)
        && fits(&wanted.conversation, &has.conversation)
        && fits(&wanted.request, &has.request)
}
