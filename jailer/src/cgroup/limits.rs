//! Sets the limits of one group and reads them back.

use std::path::{Path, PathBuf};

use cgroups_rs::fs::MaxValue;
use cgroups_rs::fs::cpu::CpuController;
use cgroups_rs::fs::memory::MemController;
use cgroups_rs::fs::pid::PidController;

use super::{Controllers, read_file, write_file};
use crate::step::SysError;

/// The period within which a CPU share is counted, in microseconds; the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;

/// What the sockets of a group may buffer on version 1, in bytes; version 2 counts it as memory.
const SOCKET_MEMORY: u64 = 16 << 20;

/// Limits of one group; `None` leaves that to the group above.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    pub memory_bytes: Option<u64>,
    pub cpu_millis: Option<u64>,
    pub pids: Option<u64>,
}

/// One way of setting limits. What is set counts only after it was read back.
pub(super) trait Limiter {
    fn memory(&self, bytes: u64) -> Result<(), SysError>;
    /// Whether memory of this group can't go to swap.
    fn no_swap(&self, bytes: u64) -> bool;
    fn cpu(&self, quota_us: u64) -> Result<(), SysError>;
    fn pids(&self, count: u64) -> Result<(), SysError>;
    fn memory_is(&self) -> Result<String, SysError>;
    fn cpu_is(&self) -> Result<String, SysError>;
    fn pids_is(&self) -> Result<String, SysError>;
}

/// A group of the version 2 tree.
struct V2(PathBuf);

/// The same group in three version 1 hierarchies. cgroups-rs writes the values; everything else about groups it does
/// by sleeping or by path, so that it does no more here.
struct V1 {
    memory: PathBuf,
    cpu: PathBuf,
    pids: PathBuf,
}

/// Sets the limits of a group, given relative to the bases of its hierarchies. Returns whether swap is out of reach.
pub(super) fn set(controllers: &Controllers, v2: &Path, below: &Path, limits: &Limits) -> Result<bool, SysError> {
    let limiter: Box<dyn Limiter> = match controllers {
        Controllers::V2 => Box::new(V2(v2.join(below))),
        Controllers::V1 { memory, cpu, pids } => Box::new(V1 {
            memory: memory.join(below),
            cpu: cpu.join(below),
            pids: pids.join(below),
        }),
    };
    let mut no_swap = true;
    if let Some(bytes) = limits.memory_bytes {
        let bytes = bytes & !4095; // The kernel counts pages.
        limiter.memory(bytes)?;
        no_swap = limiter.no_swap(bytes);
        expect("memory", &limiter.memory_is()?, &bytes.to_string())?;
    }
    if let Some(millis) = limits.cpu_millis {
        let quota = millis.saturating_mul(CPU_PERIOD_US) / 1000;
        limiter.cpu(quota)?;
        expect("cpu", &limiter.cpu_is()?, &format!("{quota} {CPU_PERIOD_US}"))?;
    }
    if let Some(count) = limits.pids {
        limiter.pids(count)?;
        expect("pids", &limiter.pids_is()?, &count.to_string())?;
    }
    Ok(no_swap)
}

fn expect(what: &str, found: &str, wanted: &str) -> Result<(), SysError> {
    if found == wanted {
        return Ok(());
    }
    Err(SysError::new(
        format!("{what} limit reads back as {found:?}, not {wanted:?}"),
        libc::EOPNOTSUPP,
    ))
}

impl Limiter for V2 {
    fn memory(&self, bytes: u64) -> Result<(), SysError> {
        write_file(&self.0.join("memory.max"), &bytes.to_string())
    }

    fn no_swap(&self, _bytes: u64) -> bool {
        let file = self.0.join("memory.swap.max");
        if !file.exists() {
            return host_has_no_swap();
        }
        write_file(&file, "0").is_ok() && read_file(&file).is_ok_and(|value| value == "0")
    }

    fn cpu(&self, quota_us: u64) -> Result<(), SysError> {
        write_file(&self.0.join("cpu.max"), &format!("{quota_us} {CPU_PERIOD_US}"))
    }

    fn pids(&self, count: u64) -> Result<(), SysError> {
        write_file(&self.0.join("pids.max"), &count.to_string())
    }

    fn memory_is(&self) -> Result<String, SysError> {
        read_file(&self.0.join("memory.max"))
    }

    fn cpu_is(&self) -> Result<String, SysError> {
        read_file(&self.0.join("cpu.max"))
    }

    fn pids_is(&self) -> Result<String, SysError> {
        read_file(&self.0.join("pids.max"))
    }
}

impl Limiter for V1 {
    /// Buffers of TCP and UDP are counted apart here, and not at all before a limit is set.
    ///
    /// Source: Documentation/admin-guide/cgroup-v1/memory.rst, section 2.7.
    fn memory(&self, bytes: u64) -> Result<(), SysError> {
        let value = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let controller = MemController::new(self.memory.clone(), self.memory.clone(), false);
        controller.set_limit(value(bytes)).map_err(refused)?;
        let sockets = bytes.min(SOCKET_MEMORY);
        controller.set_tcp_limit(value(sockets)).map_err(refused)?;
        let found = read_file(&self.memory.join("memory.kmem.tcp.limit_in_bytes"))?;
        expect("memory of sockets", &found, &sockets.to_string())
    }

    fn no_swap(&self, bytes: u64) -> bool {
        let file = self.memory.join("memory.memsw.limit_in_bytes");
        if !file.exists() {
            return host_has_no_swap();
        }
        let value = i64::try_from(bytes).unwrap_or(i64::MAX);
        let controller = MemController::new(self.memory.clone(), self.memory.clone(), false);
        controller.set_memswap_limit(value).is_ok() && read_file(&file).is_ok_and(|found| found == bytes.to_string())
    }

    fn cpu(&self, quota_us: u64) -> Result<(), SysError> {
        let controller = CpuController::new(self.cpu.clone(), self.cpu.clone(), false);
        let quota = i64::try_from(quota_us).unwrap_or(i64::MAX);
        controller.set_cfs_period(CPU_PERIOD_US).map_err(refused)?;
        controller.set_cfs_quota(quota).map_err(refused)
    }

    fn pids(&self, count: u64) -> Result<(), SysError> {
        let value = MaxValue::Value(i64::try_from(count).unwrap_or(i64::MAX));
        PidController::new(self.pids.clone(), self.pids.clone(), false)
            .set_pid_max(value)
            .map_err(refused)
    }

    fn memory_is(&self) -> Result<String, SysError> {
        read_file(&self.memory.join("memory.limit_in_bytes"))
    }

    fn cpu_is(&self) -> Result<String, SysError> {
        let quota = read_file(&self.cpu.join("cpu.cfs_quota_us"))?;
        Ok(format!("{quota} {}", read_file(&self.cpu.join("cpu.cfs_period_us"))?))
    }

    fn pids_is(&self) -> Result<String, SysError> {
        read_file(&self.pids.join("pids.max"))
    }
}

/// Where swap is not counted, it is out of reach only if there is none.
fn host_has_no_swap() -> bool {
    std::fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() <= 1)
}

fn refused(error: cgroups_rs::fs::error::Error) -> SysError {
    use std::error::Error;
    let errno = error
        .source()
        .and_then(|cause| cause.downcast_ref::<std::io::Error>())
        .and_then(|e| e.raw_os_error());
    SysError::new(format!("cgroup v1: {error}"), errno.unwrap_or(libc::EIO))
}
