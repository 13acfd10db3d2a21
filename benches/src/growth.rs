//! How much brigd takes more while something goes on.

use std::fs;

use brig_tests::processes::Process;
use brig_tests::services::Service;

use crate::ours::Ours;

/// A look at brigd before.
pub(crate) struct Growth {
    brigd: Process,
    before: u64,
}

impl Growth {
    /// Looks, and lets the peak of its resident memory begin anew.
    pub(crate) fn begin(ours: &Ours) -> anyhow::Result<Self> {
        let brigd = ours.process(Service::Daemon);
        // Source: proc_pid_clear_refs(5).
        fs::write(format!("/proc/{}/clear_refs", brigd.pid), "5")?;
        let before = brigd.memory("VmRSS");
        Ok(Self { brigd, before })
    }

    /// The peak since then above what it was, in bytes.
    pub(crate) fn end(self) -> u64 {
        self.brigd.memory("VmHWM").saturating_sub(self.before)
    }
}
