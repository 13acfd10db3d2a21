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
    /// What was found for each entry.
    last: Vec<Last<Kind>>,
}

impl Wanted {
    /// The kinds that are to be ready; after a reload nothing of before counts.
    pub(super) fn kinds(&mut self, host: &Host, is_outdated: bool) -> Vec<Kind> {
        let config = host.config();
        let owners = config.pool_owners();
        if is_outdated {
            self.last.clear();
        }
        self.last.resize_with(config.pool.ready.len(), Last::default);
        let (mut kinds, mut problems) = (Vec::new(), Vec::new());
        for (index, (ready, last)) in config.pool.ready.iter().zip(&mut self.last).enumerate() {
            let found =
                find(host, ready).map(|found| owners.iter().flat_map(|owner| of(&found, ready, owner)).collect());
            let (found, problem) = last.look(found);
            kinds.extend(found);
            problems.extend(problem.map(|why| format!("pool.ready[{index}]: {why}")));
        }
        for why in problems.iter().filter(|why| !self.told.contains(why)) {
            warn!(%why, "not kept ready");
        }
        self.told = problems;
        kinds
    }
}

/// What a look found, which one that fails does not throw away, but two in a row: an image that is being replaced is not
/// there for a moment.
#[derive(Debug)]
struct Last<T>(Option<Vec<T>>);

impl<T> Default for Last<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Clone> Last<T> {
    fn look(&mut self, found: Result<Vec<T>, String>) -> (Vec<T>, Option<String>) {
        match found {
            Ok(found) => (self.0.insert(found).clone(), None),
            Err(why) => match self.0.take() {
                Some(found) => (found, None),
                None => (Vec::new(), Some(why)),
            },
        }
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

#[cfg(test)]
mod tests {
    use super::Last;

    #[test]
    fn one_look_that_fails_throws_nothing_away_and_two_do() {
        let (mut last, gone) = (Last::default(), || Err("gone".to_owned()));
        let why = || Some("gone".to_owned());
        assert_eq!(last.look(gone()), (vec![], why()));
        assert_eq!(last.look(Ok(vec![1, 2])), (vec![1, 2], None));
        assert_eq!(last.look(gone()), (vec![1, 2], None));
        assert_eq!(last.look(gone()), (vec![], why()));
        assert_eq!(last.look(Ok(vec![3])), (vec![3], None));
        assert_eq!(last.look(gone()), (vec![3], None));
        assert_eq!(last.look(Ok(vec![4])), (vec![4], None));
    }
}
