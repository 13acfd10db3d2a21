//! From a request to a context that can be started.

use std::sync::Mutex;
use std::time::SystemTime;

use brig_jailer::plan::HOME;
use brig_proto::sizes;
use brig_proto::v1::{ContextsCreateRequest, Reason};
use prost::Message;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::{Context, Language, State};
use crate::run::admit::{check_environment, check_labels, new_id};
use crate::run::fields::Fields;
use crate::run::kept::Session;
use crate::status::Problem;

/// Checks a request whole and makes a context of it.
pub fn admit(asked: ContextsCreateRequest, session: &Session) -> Result<Context, Problem> {
    let digest = Sha256::digest(asked.encode_to_vec()).into();
    let mut fields = Fields::default();
    let ids = [("request_id", &asked.request_id), ("context_id", &asked.context_id)];
    let [request, id] = ids.map(|(field, text)| fields.id(field, text));
    let language = check_language(&asked.language, &mut fields);
    check_labels(&asked.labels, None, &mut fields);
    check_environment(&asked.environment, Some(&session.policy), &mut fields);
    if asked.directory.len() > sizes::PATH_MAX || asked.directory.contains('\0') {
        let message = "has more than 4,096 bytes, or a NUL character";
        fields.wrong("directory", Reason::InvalidPath, message);
    }
    if !session.template.runs_code {
        let message = format!("{} has no interpreter for code; it runs commands", session.template.id);
        fields.wrong("session_id", Reason::NotApplicable, message);
    }
    fields.done()?;
    Ok(Context {
        id: id.unwrap_or_else(|| new_id('c')),
        session: session.id.clone(),
        request,
        digest,
        language,
        directory: match asked.directory.as_str() {
            "" => HOME.to_owned(),
            absolute if absolute.starts_with('/') => absolute.to_owned(),
            relative => format!("{HOME}/{relative}"),
        },
        environment: asked.environment,
        labels: asked.labels,
        create_time: SystemTime::now(),
        state: Mutex::new(State::new()),
        changes: watch::Sender::new(()),
    })
}

fn check_language(text: &str, fields: &mut Fields) -> Language {
    match text {
        "" | "python" => Language::Python,
        "bash" => Language::Bash,
        other => {
            let shown = crate::output::cut_text(other, 80);
            let message = format!("{shown:?} is not known; python and bash are");
            fields.wrong("language", Reason::InvalidValue, message);
            Language::Python
        }
    }
}
