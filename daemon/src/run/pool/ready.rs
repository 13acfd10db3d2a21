//! What is kept ready from the start, as the configuration says (`pool.ready`).

use brig_jailer::policy::{Policy, PolicySet, RequestedLimits};
use tracing::warn;

use super::Kind;
use crate::config::{Config, Ready};
use crate::host::Host;
use crate::run::admit::Image;
use crate::run::approval::Approval;

/// Finds a key that can't be kept. A template may be built later.
pub fn check(config: &Config, policies: &PolicySet) -> Result<(), String> {
    for (index, ready) in config.pool.ready.iter().enumerate() {
        let wrong = |message: String| format!("pool.ready[{index}].policy: {message}");
        let policy = policies.get(&ready.policy);
        let policy = policy.map_err(|error| wrong(error.to_string()))?;
        if Approval::asked_by(policy).is_some() {
            return Err(wrong(format!(
                "{:?} has execution.review = \"required\", and nothing is made ahead for what nobody has approved",
                ready.policy
            )));
        }
    }
    Ok(())
}

/// What is ready.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// What could not be the last time, which is told once.
    told: Vec<String>,
}

impl Wanted {
    /// The kinds that are to be ready.
    pub(super) fn kinds(&mut self, host: &Host) -> Vec<Kind> {
        let config = host.config();
        let owners = config.pool_owners();
        let (mut kinds, mut problems) = (Vec::new(), Vec::new());
        for (index, ready) in config.pool.ready.iter().enumerate() {
            match find(host, ready) {
                Ok(found) => kinds.extend(owners.iter().flat_map(|owner| of(&found, ready, owner))),
                Err(why) => problems.push(format!("pool.ready[{index}]: {why}")),
            }
        }
        for why in problems.iter().filter(|why| !self.told.contains(why)) {
            warn!(%why, "not kept ready");
        }
        self.told = problems;
        kinds
    }
}

fn find(host: &Host, ready: &Ready) -> Result<(Policy, Image), String> {
    let policy = host.store.policy(&ready.policy).map_err(|problem| problem.message)?;
    let template = if ready.template.is_empty() {
        &policy.template
    } else {
        &ready.template
    };
    let templates = host.store.templates().map_err(|error| error.to_string())?;
    let found = templates.find(template).map_err(|problem| problem.message)?;
    if found.interpreter.is_none() {
        return Err(format!("template {} has no interpreter", found.id));
    }
    let image = Image {
        id: found.id.clone(),
        runs_code: true,
    };
    Ok(((*policy).clone(), image))
}

/// The kinds of one entry for one owner: that of code, and that of contexts.
fn of((policy, template): &(Policy, Image), ready: &Ready, owner: &str) -> Vec<Kind> {
    let Ok((usual, _)) = policy.resolve(&RequestedLimits::default()) else {
        return Vec::new();
    };
    let kind = |contexts| Kind {
        owner: owner.to_owned(),
        policy: policy.clone().into(),
        template: template.clone(),
        quantities: usual.quantities(),
        contexts,
        starts: false,
    };
    let contexts = ready.contexts.then(|| kind(true));
    std::iter::once(kind(false)).chain(contexts).collect()
}
