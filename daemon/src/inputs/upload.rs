//! Create: from the first message of an upload to its record.

use std::time::{Duration, SystemTime};

use brig_jailer::ids::Id;
use brig_proto::sizes;
use brig_proto::v1::inputs_create_request::Part;
use brig_proto::v1::{InputSpec, InputsCreateRequest, Reason};
use prost::Message;
use prost::bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_stream::{Stream, StreamExt};
use tonic::Status;

use super::draft::Settled;
use super::turns::Turn;
use super::{Asked, Inputs, InputsError, Known, Record, new_name};
use crate::config::InputLimits;
use crate::database::{to_millis, to_time};
use crate::names;
use crate::principal::Principal;
use crate::run::admit::{check_labels, new_id};
use crate::run::fields::{Fields, millis};
use crate::run::inputs::hex;
use crate::run::registry::reused;
use crate::status::{FieldProblem, Problem};

/// How long a client may think between two messages.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an upload may take: who is slower holds a place that others want.
const UPLOAD: Duration = Duration::from_secs(60 * 60);
/// The longest media type, in bytes.
const TYPE_MAX: usize = 256;

/// A checked request.
#[derive(Debug)]
struct Wanted {
    id: Option<Id>,
    asked: Asked,
    spec: InputSpec,
    sha256: Option<[u8; 32]>,
    retention_ms: u64,
}

/// Takes the first message, which has the spec.
pub(super) async fn first_message(stream: &mut (impl Messages + Unpin)) -> Result<InputSpec, Problem> {
    match next(stream).await? {
        Some(Part::Spec(spec)) => Ok(spec),
        _ => Err(Problem::Stream("spec: comes first".to_owned())),
    }
}

/// Stores a file, or gives the answer that the same request got before.
pub(super) async fn upload(
    inputs: &Inputs,
    principal: &Principal,
    spec: InputSpec,
    stream: &mut (impl Messages + Unpin),
) -> Result<Record, Problem> {
    let wanted = check(spec, inputs.shared.room.limits())?;
    let deadline = Instant::now() + UPLOAD;
    let tenant = &principal.tenant;
    let work = async {
        let mut turn = None;
        if let Some(request) = &wanted.asked.request {
            turn = Some(inputs.shared.turns.take(tenant, request, wanted.asked.digest).await?);
            if let Some(known) = inputs.made_by(tenant, request).await? {
                return repeat(known, &wanted, request, stream).await;
            }
        }
        let (id, settled) = tokio::select! {
            received = receive(inputs, tenant, &wanted, stream) => received?,
            () = replaced(turn.as_ref()) => return Err(Problem::Replaced),
        };
        let record = record(principal, &wanted, id, &settled);
        let id = record.id.clone();
        // From here on nobody takes its turn until it is over, whether or not its caller waits.
        let entered = inputs.enter(settled, record, wanted.asked.clone(), turn).await;
        entered.map_err(|error| match error {
            InputsError::Taken => taken(&id),
            error => error.into(),
        })
    };
    timeout_at(deadline, work)
        .await
        .unwrap_or_else(|_late| Err(Problem::Stream("the upload took more than an hour".to_owned())))
}

async fn replaced(turn: Option<&Turn>) {
    match turn {
        Some(turn) => turn.replaced.cancelled().await,
        None => std::future::pending().await,
    }
}

fn check(spec: InputSpec, limits: InputLimits) -> Result<Wanted, Problem> {
    let mut fields = Fields::default();
    let request = fields.id("request_id", &spec.request_id);
    let id = fields.id("input_id", &spec.input_id);
    if let Err(error) = names::check_input_name("name", &spec.name) {
        fields.name(&error);
    } else if spec.name.len() > sizes::NAME_MAX {
        fields.wrong("name", Reason::TooLarge, "has more than 1,024 bytes");
    }
    if spec.r#type.len() > TYPE_MAX {
        fields.wrong("type", Reason::TooLarge, "has more than 256 bytes");
    } else if spec.r#type.chars().any(char::is_control) {
        fields.wrong("type", Reason::InvalidValue, "contains a control character");
    }
    let most = limits.size.bytes();
    if let Some(size) = spec.size_bytes.filter(|size| *size > most) {
        let message = format!("{size} is above {most}, the most that this daemon keeps (inputs.size)");
        fields.wrong("size_bytes", Reason::TooLarge, message);
    }
    let sha256 = fields.sha256("sha256", &spec.sha256);
    let retention = fields.keep_some(millis("retention", spec.retention.as_ref()));
    let longest = limits.retention_max;
    if retention == Some(0) {
        let message = format!("0 is no time; leave it out for {}", limits.retention);
        fields.wrong("retention", Reason::InvalidValue, message);
    } else if retention.is_some_and(|millis| millis > longest.millis()) {
        let message = format!("is above {longest}, the longest that this daemon keeps inputs");
        fields.wrong("retention", Reason::InvalidValue, message);
    }
    check_labels(&spec.labels, spec.origin.as_ref(), &mut fields);
    fields.done()?;
    Ok(Wanted {
        id,
        asked: Asked {
            request,
            digest: Sha256::digest(spec.encode_to_vec()).into(),
        },
        sha256,
        retention_ms: retention.unwrap_or(limits.retention.millis()),
        spec,
    })
}

/// Takes the content, all of which is on the disk then.
async fn receive(
    inputs: &Inputs,
    tenant: &str,
    wanted: &Wanted,
    stream: &mut (impl Messages + Unpin),
) -> Result<(Id, Settled), Problem> {
    let id = wanted.id.clone().unwrap_or_else(|| new_id('i'));
    if !matches!(inputs.known(tenant, &id).await?, Known::Never) {
        return Err(taken(&id));
    }
    let announced = wanted.spec.size_bytes;
    let mut draft = inputs.begin(tenant, announced).await?;
    while let Some(data) = next_data(stream).await? {
        draft.write(data).await.map_err(|error| too_large(error, announced))?;
    }
    let settled = draft.settle().await?;
    compare(wanted, &settled)?;
    Ok((id, settled))
}

fn record(principal: &Principal, wanted: &Wanted, id: Id, settled: &Settled) -> Record {
    // In whole milliseconds, as it will be read.
    let create_time = to_time(to_millis(SystemTime::now()));
    let spec = &wanted.spec;
    let origin = spec.origin.clone().unwrap_or_default();
    Record {
        id,
        tenant: principal.tenant.clone(),
        user: principal.asking(&origin.user),
        name: spec.name.clone(),
        media_type: spec.r#type.clone(),
        size: settled.size,
        sha256: settled.sha256,
        origin,
        labels: spec.labels.clone(),
        create_time,
        expire_time: create_time + Duration::from_millis(wanted.retention_ms),
        file: new_name(),
    }
}

/// Answers a request that was answered before, if its content is the same too. Nothing is stored.
async fn repeat(
    (record, digest): (Record, [u8; 32]),
    wanted: &Wanted,
    request: &Id,
    stream: &mut (impl Messages + Unpin),
) -> Result<Record, Problem> {
    if digest != wanted.asked.digest {
        return Err(reused(request));
    }
    // The digest of the content is a part of the spec.
    if wanted.sha256.is_some() {
        return Ok(record);
    }
    let (mut hash, mut left) = (Sha256::new(), record.size);
    while let Some(data) = next_data(stream).await? {
        left = left.checked_sub(data.len() as u64).ok_or_else(|| reused(request))?;
        hash.update(&data);
    }
    let found: [u8; 32] = hash.finalize().into();
    if left == 0 && found == record.sha256 {
        Ok(record)
    } else {
        Err(reused(request))
    }
}

fn compare(wanted: &Wanted, settled: &Settled) -> Result<(), Problem> {
    if let Some(size) = wanted.spec.size_bytes.filter(|size| *size != settled.size) {
        let message = format!("{} bytes came, {size} were announced", settled.size);
        return Err(wrong("size_bytes", Reason::DigestMismatch, message));
    }
    if wanted.sha256.is_some_and(|sha256| sha256 != settled.sha256) {
        let found = hex(&settled.sha256);
        let message = format!("the content has the SHA-256 {found}, another one was announced");
        return Err(wrong("sha256", Reason::DigestMismatch, message));
    }
    Ok(())
}

fn too_large(error: InputsError, announced: Option<u64>) -> Problem {
    match (error, announced) {
        (InputsError::TooLarge { .. }, Some(size)) => {
            let message = format!("more than the {size} bytes came that were announced");
            wrong("size_bytes", Reason::DigestMismatch, message)
        }
        (InputsError::TooLarge { max_bytes }, None) => {
            let message = format!("has more than {max_bytes} bytes, the most that this daemon keeps (inputs.size)");
            wrong("data", Reason::TooLarge, message)
        }
        (error, _) => error.into(),
    }
}

fn taken(id: &Id) -> Problem {
    Problem::Exists {
        kind: "input",
        name: id.to_string(),
        why: "was used before; leave input_id out or choose another one",
        reason: Reason::IdTaken,
    }
}

fn wrong(field: &str, reason: Reason, message: String) -> Problem {
    Problem::Fields(vec![FieldProblem {
        field: field.to_owned(),
        message,
        reason,
    }])
}

/// The messages of an upload.
pub(super) trait Messages: Stream<Item = Result<InputsCreateRequest, Status>> {}

impl<S: Stream<Item = Result<InputsCreateRequest, Status>>> Messages for S {}

async fn next_data(stream: &mut (impl Messages + Unpin)) -> Result<Option<Bytes>, Problem> {
    match next(stream).await? {
        None => Ok(None),
        Some(Part::Data(data)) if data.len() > sizes::FILE_CHUNK_MAX => {
            Err(Problem::Stream("data: has more than 256 KiB".to_owned()))
        }
        Some(Part::Data(data)) => Ok(Some(data)),
        Some(Part::Spec(_)) => Err(Problem::Stream("spec: comes once, and first".to_owned())),
    }
}

async fn next(stream: &mut (impl Messages + Unpin)) -> Result<Option<Part>, Problem> {
    let next = timeout(PATIENCE, stream.next()).await;
    let next = next.map_err(|_elapsed| Problem::Stream("nothing came for 60 s".to_owned()))?;
    match next {
        None => Ok(None),
        Some(Ok(InputsCreateRequest { part: Some(part) })) => Ok(Some(part)),
        Some(Ok(_)) => Err(Problem::Stream("a message has neither spec nor data".to_owned())),
        Some(Err(status)) => Err(Problem::Stream(status.message().to_owned())),
    }
}
