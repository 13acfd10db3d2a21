//! Bounds what refusals may write: who is refused again and again can't fill the disk.
//!
//! Each tenant has a bucket of [`BURST`] refusals that fills up by [`PER_MINUTE`]; while it is empty, further ones are only
//! counted by reason, and each minute one entry for each reason tells how many they were. Tenants come from the
//! configuration and reasons from a closed list, so that there is a bound of these too. What was counted within the last
//! minute is lost if brigd is killed.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::record::{Origin, Refused};

/// Refusals of one tenant that are written one by one at once.
const BURST: u32 = 100;
/// Refusals of one tenant that are written one by one each minute, beyond these.
const PER_MINUTE: u32 = 10;
/// Tenants with a bucket; those beyond share one.
const TENANTS: usize = 1024;

/// Which refusals are written, and how many were not.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    tenants: Mutex<HashMap<String, Tenant>>,
}

/// One tenant's bucket.
#[derive(Debug)]
struct Tenant {
    /// Thousandths of a refusal that may be written.
    left: u64,
    filled: Instant,
    counted: HashMap<String, u64>,
}

impl Refusals {
    /// Gives the refusal back if it is to be written; else it is counted.
    pub(super) fn admit(&self, refused: Refused, now: Instant) -> Option<Refused> {
        let mut tenants = self.tenants();
        let tenant = tenant(&mut tenants, &refused.tenant, now);
        tenant.fill(now);
        if tenant.left < 1000 {
            tenant.count(&refused.reason, refused.count);
            return None;
        }
        tenant.left -= 1000;
        Some(refused)
    }

    /// Counts refusals that could not be written.
    pub(super) fn count(&self, name: &str, reason: &str, count: u64, now: Instant) {
        tenant(&mut self.tenants(), name, now).count(reason, count);
    }

    /// Takes what was counted, as entries. Tenants of which nothing is to be remembered are forgotten.
    pub(super) fn counted(&self, now: Instant, time: SystemTime) -> Vec<Refused> {
        let mut told = Vec::new();
        self.tenants().retain(|name, tenant| {
            let counted = std::mem::take(&mut tenant.counted);
            told.extend(
                counted
                    .into_iter()
                    .map(|(reason, count)| summary(name, reason, count, time)),
            );
            tenant.fill(now);
            tenant.left < u64::from(BURST) * 1000
        });
        told
    }

    fn tenants(&self) -> std::sync::MutexGuard<'_, HashMap<String, Tenant>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tenant {
    fn new(now: Instant) -> Self {
        Self {
            left: u64::from(BURST) * 1000,
            filled: now,
            counted: HashMap::new(),
        }
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.filled);
        // A thousandth of a refusal at a time, so that what is left over is not lost.
        let step = Duration::from_secs(60) / (PER_MINUTE * 1000);
        let steps = u32::try_from(passed.as_micros() / step.as_micros()).unwrap_or(u32::MAX);
        self.left = (self.left + u64::from(steps)).min(u64::from(BURST) * 1000);
        self.filled += step.saturating_mul(steps).min(passed);
    }

    fn count(&mut self, reason: &str, count: u64) {
        let counted = self.counted.entry(reason.to_owned()).or_default();
        *counted = counted.saturating_add(count);
    }
}

fn tenant<'t>(tenants: &'t mut HashMap<String, Tenant>, name: &str, now: Instant) -> &'t mut Tenant {
    let name = if tenants.len() < TENANTS || tenants.contains_key(name) {
        name
    } else {
        ""
    };
    tenants.entry(name.to_owned()).or_insert_with(|| Tenant::new(now))
}

fn summary(tenant: &str, reason: String, count: u64, time: SystemTime) -> Refused {
    Refused {
        request: None,
        tenant: tenant.to_owned(),
        user: String::new(),
        origin: Origin::default(),
        policy: String::new(),
        reason,
        field: String::new(),
        message: format!("{count} more were refused for this reason and not recorded one by one"),
        count,
        time,
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn refused(tenant: &str, reason: &str) -> Refused {
        Refused {
            count: 1,
            ..summary(tenant, reason.to_owned(), 1, UNIX_EPOCH)
        }
    }

    #[test]
    fn a_flood_is_counted_and_told_by_reason() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let written = (0..10_000).filter(|_| refusals.admit(refused("a", "queue_full"), now).is_some());
        assert_eq!(written.count(), 100);
        refusals.admit(refused("a", "role_missing"), now);
        assert!(
            refusals.admit(refused("b", "queue_full"), now).is_some(),
            "another tenant"
        );
        let mut told = refusals.counted(now, UNIX_EPOCH);
        told.sort_by_key(|refused| refused.count);
        assert_eq!(
            told,
            [
                summary("a", "role_missing".to_owned(), 1, UNIX_EPOCH),
                summary("a", "queue_full".to_owned(), 9900, UNIX_EPOCH)
            ]
        );
        assert_eq!(refusals.counted(now, UNIX_EPOCH), []);
    }

    #[test]
    fn the_bucket_fills_up_with_time_and_is_then_forgotten() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        let admitted = |now| {
            (0..200)
                .filter(|_| refusals.admit(refused("a", "x"), now).is_some())
                .count()
        };
        assert_eq!(admitted(start), 100);
        assert_eq!(admitted(start + Duration::from_secs(60)), 10);
        assert_eq!(admitted(start + Duration::from_secs(90)), 5);
        refusals.counted(start + Duration::from_secs(3600), UNIX_EPOCH);
        assert!(refusals.tenants().is_empty());
    }

    #[test]
    fn tenants_without_end_share_a_bucket() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        for number in 0..2 * TENANTS {
            refusals.admit(refused(&number.to_string(), "x"), now);
        }
        assert!(refusals.tenants().len() <= TENANTS + 1);
    }
}
