//! What somebody is answered who follows a link.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tracing::{error, info};

use super::range::Wanted;
use super::{Disposition, Grant, PATH, name};
use crate::host::Host;
use crate::review::{ArtifactsError, Opened, Record};
use crate::run::gate::Way;
use crate::run::inputs::hex;
use crate::status::Problem;

/// What every answer says, so that a browser runs nothing of an artifact, loads nothing for it, tells nobody where it was,
/// and keeps no copy.
const GUARDS: [(HeaderName, &str); 6] = [
    (header::CACHE_CONTROL, "private, no-store"),
    (header::CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-site"),
    (HeaderName::from_static("x-robots-tag"), "noindex"),
];
/// When to come again if the store is away, in seconds.
const RETRY: &str = "1";

/// All that is served.
pub(super) fn routes(host: Arc<Host>) -> Router {
    Router::new()
        .route(&format!("{PATH}{{token}}"), get(answer))
        .fallback(|| async { Refused::NotFound })
        .layer(map_response(guard))
        .with_state(host)
}

/// Why nothing is handed out. Who has no link of ours is told nothing but that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    NotFound,
    /// There was something.
    Gone,
    /// It was changed by somebody else, or can't be read.
    Failed,
    /// The store is away.
    Unavailable,
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (status, text) = match self {
            Self::NotFound => (StatusCode::NOT_FOUND, "There is nothing here.\n"),
            Self::Gone => (StatusCode::GONE, "The link has ended, or the file is gone.\n"),
            Self::Failed => (StatusCode::INTERNAL_SERVER_ERROR, "The file can't be read.\n"),
            Self::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "The file can't be read now.\n"),
        };
        let mut response = (status, text).into_response();
        if self == Self::Unavailable {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY));
        }
        response
    }
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        match &problem {
            Problem::NotFound { .. }
            | Problem::DownloadForbidden(_)
            | Problem::ReviewRequired(_)
            | Problem::ReviewRefused(_) => Self::Gone,
            Problem::Artifacts(ArtifactsError::Store(_)) => {
                error!(error = %problem, "link not followed");
                Self::Unavailable
            }
            _ => {
                error!(error = %problem, "link not followed");
                Self::Failed
            }
        }
    }
}

async fn guard(mut response: Response) -> Response {
    for (name, value) in GUARDS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn answer(State(host): State<Arc<Host>>, request: Request) -> Result<Response, Refused> {
    let token = request.uri().path().strip_prefix(PATH).unwrap_or_default();
    let grant = host.links.read(token).ok_or(Refused::NotFound)?;
    let now = SystemTime::now();
    if grant.expire_time <= now {
        return Err(Refused::Gone);
    }
    let record = host.artifacts.find_granted(&grant.artifact).await?;
    if record.expire_time <= now || !host.links.is_of(&grant, &record.source.tenant) {
        return Err(Refused::Gone);
    }
    let (size, etag) = (record.shown.size_bytes, format!("\"{}\"", hex(&record.sha256)));
    let wanted = Wanted::read(request.method(), request.headers(), &etag, size);
    let (status, part) = match wanted {
        Wanted::Whole => (StatusCode::OK, 0..size),
        Wanted::Part(part) => (StatusCode::PARTIAL_CONTENT, part),
        Wanted::NotModified => return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, etag)]).into_response()),
        Wanted::PreconditionFailed => return Ok(StatusCode::PRECONDITION_FAILED.into_response()),
        Wanted::Unsatisfiable => {
            let there = [(header::CONTENT_RANGE, format!("bytes */{size}"))];
            return Ok((StatusCode::RANGE_NOT_SATISFIABLE, there).into_response());
        }
    };
    let body = if *request.method() == Method::HEAD {
        Body::empty()
    } else {
        let (tenant, id) = (&record.source.tenant, record.id.as_str());
        let (offset, length) = (part.start, part.end - part.start);
        let opened = host.artifacts.release(tenant, id, Way::Artifact, offset, Some(length));
        Sending::new(opened.await?).body()
    };
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    if status == StatusCode::PARTIAL_CONTENT {
        let there = format!("bytes {}-{}/{size}", part.start, part.end - 1);
        headers.insert(header::CONTENT_RANGE, value(&there)?);
    }
    headers.insert(header::CONTENT_LENGTH, (part.end - part.start).into());
    headers.insert(header::ETAG, value(&etag)?);
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_TYPE, value(&content_type(&record))?);
    headers.insert(
        header::CONTENT_DISPOSITION,
        value(&name::header(disposition(&grant, &record), &record.shown))?,
    );
    Ok(response)
}

/// What may be shown is decided again by what is there now.
fn disposition(grant: &Grant, record: &Record) -> Disposition {
    if record.may_be_shown() {
        grant.disposition
    } else {
        Disposition::Attachment
    }
}

/// The type as it was recognised by the content. Text is told to be in UTF-8, so that no browser guesses another encoding.
fn content_type(record: &Record) -> String {
    match record.shown.r#type.as_str() {
        text if text.starts_with("text/") => format!("{text}; charset=utf-8"),
        other => other.to_owned(),
    }
}

/// A value of a header, all of which are made of what brigd knows to fit.
fn value(text: &str) -> Result<HeaderValue, Refused> {
    HeaderValue::from_str(text).map_err(|error| {
        error!(%error, text, "header of a link not written");
        Refused::Failed
    })
}

/// An artifact on its way to somebody who followed a link.
struct Sending {
    opened: Opened,
    /// What was read and is sent next: a piece goes when the one behind it is there, so that the last one goes only if all of
    /// it is what was stored.
    ahead: Bytes,
    sent: u64,
}

impl Sending {
    fn new(opened: Opened) -> Self {
        Self {
            opened,
            ahead: Bytes::new(),
            sent: 0,
        }
    }

    /// Sends it piece by piece, as they are taken.
    fn body(self) -> Body {
        Body::from_stream(futures_util::stream::try_unfold(self, |mut sending| async move {
            let piece = sending
                .next()
                .await
                .inspect_err(|error| error!(%error, "link broken off"))?;
            Ok::<_, ArtifactsError>(piece.map(|piece| (piece, sending)))
        }))
    }

    async fn next(&mut self) -> Result<Option<Bytes>, ArtifactsError> {
        if self.ahead.is_empty() {
            self.ahead = self.opened.next().await?;
        }
        if self.ahead.is_empty() {
            return Ok(None);
        }
        let behind = self.opened.next().await?;
        let piece = std::mem::replace(&mut self.ahead, behind);
        self.sent += piece.len() as u64;
        Ok(Some(piece))
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let record = self.opened.record();
        info!(artifact = %record.id, tenant = record.source.tenant, sent = self.sent, "artifact downloaded by link");
    }
}
