//! How much room input records take up, of each tenant and in all. Uploads count from their beginning.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::InputsError;
use crate::config::InputLimits;

/// What is taken up, and how much there is.
#[derive(Debug)]
pub(super) struct Room {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limits: InputLimits,
    all: Amount,
    /// Those that have something: tenants come from the configuration, so they are few.
    tenants: HashMap<String, Amount>,
}

/// What lies here and comes in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) uploads: u64,
}

/// The room of one upload; given back when it is dropped, unless its file is kept.
#[derive(Debug)]
pub(super) struct Share {
    room: Arc<Room>,
    tenant: String,
    bytes: u64,
}

impl Room {
    /// Makes room within limits, all of it free.
    pub(super) fn new(limits: InputLimits) -> Arc<Self> {
        let state = State {
            limits,
            all: Amount::default(),
            tenants: HashMap::new(),
        };
        Arc::new(Self {
            state: Mutex::new(state),
        })
    }

    /// The limits that hold now.
    pub(super) fn limits(&self) -> InputLimits {
        self.lock().limits
    }

    /// Takes other limits. What is there stays.
    pub(super) fn resize(&self, limits: InputLimits) {
        self.lock().limits = limits;
    }

    /// Counts a file that lies here already.
    pub(super) fn add(&self, tenant: &str, bytes: u64) {
        self.lock().each(tenant, |amount| {
            amount.files += 1;
            amount.bytes += bytes;
        });
    }

    /// Gives the room of a file back.
    pub(super) fn remove(&self, tenant: &str, bytes: u64) {
        self.lock().each(tenant, |amount| {
            amount.files = amount.files.saturating_sub(1);
            amount.bytes = amount.bytes.saturating_sub(bytes);
        });
    }

    /// Takes room for an upload of at least `bytes`.
    pub(super) fn begin(self: &Arc<Self>, tenant: &str, bytes: u64) -> Result<Share, InputsError> {
        let mut state = self.lock();
        let (limits, all, own) = (state.limits, state.all, state.of(tenant));
        let uploads = limits.uploads as u64;
        if all.uploads >= uploads {
            return Err(InputsError::Busy(limits.uploads));
        }
        if own.uploads >= uploads.div_ceil(2) {
            return Err(InputsError::Busy(limits.uploads.div_ceil(2)));
        }
        check("tenant_files", own.files + own.uploads, limits.tenant_files, 1)?;
        check("files", all.files + all.uploads, limits.files, 1)?;
        check_bytes(&limits, own.bytes, all.bytes, bytes)?;
        state.each(tenant, |amount| {
            amount.uploads += 1;
            amount.bytes += bytes;
        });
        Ok(Share {
            room: Arc::clone(self),
            tenant: tenant.to_owned(),
            bytes,
        })
    }

    /// What a tenant takes up.
    #[cfg(test)]
    pub(super) fn of(&self, tenant: &str) -> Amount {
        self.lock().of(tenant)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn of(&self, tenant: &str) -> Amount {
        self.tenants.get(tenant).copied().unwrap_or_default()
    }

    fn each(&mut self, tenant: &str, change: impl Fn(&mut Amount)) {
        change(&mut self.all);
        let own = self.tenants.entry(tenant.to_owned()).or_default();
        change(own);
        if *own == Amount::default() {
            self.tenants.remove(tenant);
        }
    }
}

impl Share {
    /// Makes room for a file that has grown to `size` bytes.
    pub(super) fn grow(&mut self, size: u64) -> Result<(), InputsError> {
        let Some(more) = size.checked_sub(self.bytes).filter(|more| *more > 0) else {
            return Ok(());
        };
        let mut state = self.room.lock();
        check_bytes(&state.limits, state.of(&self.tenant).bytes, state.all.bytes, more)?;
        state.each(&self.tenant, |amount| amount.bytes += more);
        self.bytes = size;
        Ok(())
    }

    /// The upload is over, and its file of `size` bytes stays.
    pub(super) fn keep(self, size: u64) {
        // The drop gives back what the upload had.
        self.room.add(&self.tenant, size);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let bytes = self.bytes;
        self.room.lock().each(&self.tenant, |amount| {
            amount.uploads = amount.uploads.saturating_sub(1);
            amount.bytes = amount.bytes.saturating_sub(bytes);
        });
    }
}

fn check_bytes(limits: &InputLimits, own: u64, all: u64, more: u64) -> Result<(), InputsError> {
    check("tenant_bytes", own, limits.tenant_bytes.bytes(), more)?;
    check("bytes", all, limits.bytes.bytes(), more)
}

/// Checks one limit by its key in the configuration.
fn check(key: &'static str, used: u64, most: impl TryInto<u64>, more: u64) -> Result<(), InputsError> {
    let most = most.try_into().unwrap_or(u64::MAX);
    if used.checked_add(more).is_some_and(|sum| sum <= most) {
        Ok(())
    } else {
        Err(InputsError::Quota { key, used, most, more })
    }
}

#[cfg(test)]
mod tests {
    use brig_jailer::units::ByteSize;

    use super::*;

    fn room() -> Arc<Room> {
        Room::new(InputLimits {
            tenant_files: 2,
            tenant_bytes: ByteSize::from_bytes(100),
            files: 3,
            bytes: ByteSize::from_bytes(150),
            uploads: 3,
            ..InputLimits::default()
        })
    }

    fn refused<T>(result: Result<T, InputsError>) -> Option<&'static str> {
        match result {
            Err(InputsError::Quota { key, .. }) => Some(key),
            Err(InputsError::Busy(_)) => Some("uploads"),
            _ => None,
        }
    }

    #[test]
    fn each_limit_is_told_by_its_key() {
        let room = room();
        assert_eq!(refused(room.begin("a", 101)), Some("tenant_bytes"));
        room.begin("a", 90).unwrap().keep(90);
        let mut share = room.begin("b", 0).unwrap();
        assert_eq!(refused(share.grow(61)), Some("bytes"));
        share.grow(60).unwrap();
        share.keep(60);
        room.remove("a", 90);
        room.begin("a", 1).unwrap().keep(1);
        room.begin("a", 1).unwrap().keep(1);
        assert_eq!(refused(room.begin("a", 1)), Some("tenant_files"));
        assert_eq!(refused(room.begin("b", 1)), Some("files"));
    }

    #[test]
    fn uploads_are_bounded_and_one_tenant_can_not_take_all() {
        let room = room();
        let mine = [room.begin("a", 0).unwrap(), room.begin("a", 0).unwrap()];
        assert_eq!(refused(room.begin("a", 0)), Some("uploads"));
        let _other = room.begin("b", 0).unwrap();
        assert_eq!(refused(room.begin("c", 0)), Some("uploads"));
        drop(mine);
        assert!(room.begin("c", 0).is_ok());
    }

    #[test]
    fn what_is_not_kept_leaves_no_trace() {
        let room = room();
        let mut share = room.begin("a", 10).unwrap();
        share.grow(70).unwrap();
        let expected = Amount {
            files: 0,
            bytes: 70,
            uploads: 1,
        };
        assert_eq!(room.of("a"), expected);
        drop(share);
        assert_eq!(room.of("a"), Amount::default());
        assert_eq!(room.lock().tenants.len(), 0);
    }
}
