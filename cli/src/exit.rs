//! Exit codes: one table for all commands.

use std::process::ExitCode;

use brig_proto::result::Status;
use brig_proto::v1::Reason;
use tonic::Code;

/// How a command ends. The numbers are a promise: `brig run --help` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    Success = 0,
    /// The job ended with an error or was killed; for other commands: something is not as it should be.
    Error = 1,
    /// Wrong usage or an invalid argument; nothing ran.
    Usage = 2,
    /// An expected output is missing, and `--require-outputs` was given.
    MissingOutputs = 3,
    NoDaemon = 69,
    /// Brig failed, or the host, the daemon or the connection was lost.
    Failed = 70,
    /// A limit or quota; the same call may work later.
    TryLater = 75,
    /// Not permitted, or rejected in review.
    NotPermitted = 77,
    /// The configuration is wrong, or the host can't enforce what is asked.
    Configuration = 78,
    OutputLimit = 122,
    Timeout = 124,
    Cancelled = 130,
    OutOfMemory = 137,
}

impl Exit {
    /// What the end of a job means for the exit code. A status that this version does not know is a failure.
    pub(crate) fn of_status(status: Status) -> Self {
        match status {
            Status::Success => Self::Success,
            Status::Error | Status::Killed => Self::Error,
            Status::Timeout => Self::Timeout,
            Status::OutOfMemory => Self::OutOfMemory,
            Status::OutputLimit => Self::OutputLimit,
            Status::Cancelled => Self::Cancelled,
            Status::Rejected => Self::NotPermitted,
            Status::Lost | Status::Failed | Status::Unknown => Self::Failed,
        }
    }

    /// What a refusal means for the exit code, where its reason says more than its code.
    pub(crate) fn of_reason(reason: Option<Reason>, code: Code) -> Self {
        match reason {
            Some(Reason::ReviewRequired | Reason::ReviewRefused) => Self::NotPermitted,
            Some(Reason::NotPending) => Self::Usage,
            _ => Self::of_refusal(code),
        }
    }

    /// What a refusal means for the exit code.
    pub(crate) fn of_refusal(code: Code) -> Self {
        match code {
            Code::Ok => Self::Success,
            Code::InvalidArgument | Code::NotFound | Code::AlreadyExists | Code::OutOfRange | Code::Unimplemented => {
                Self::Usage
            }
            Code::ResourceExhausted | Code::Unavailable | Code::Aborted | Code::DeadlineExceeded => Self::TryLater,
            Code::PermissionDenied | Code::Unauthenticated => Self::NotPermitted,
            Code::FailedPrecondition => Self::Configuration,
            Code::Cancelled => Self::Cancelled,
            Code::Internal | Code::Unknown | Code::DataLoss => Self::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_has_its_exit_code() {
        let codes: Vec<u8> = (1..=11)
            .map(|number| Exit::of_status(Status::from(number)) as u8)
            .collect();
        // In the order of the proto: success, error, timeout, out_of_memory, killed, output_limit, cancelled, rejected,
        // lost, failed, and one of the future.
        assert_eq!(codes, [0, 1, 124, 137, 1, 122, 130, 77, 70, 70, 70]);
    }

    #[test]
    fn each_refusal_has_its_exit_code() {
        let codes: Vec<u8> = (0..=16)
            .map(|code| Exit::of_refusal(Code::from_i32(code)) as u8)
            .collect();
        assert_eq!(codes, [0, 130, 70, 2, 75, 2, 2, 77, 75, 78, 75, 2, 2, 70, 75, 70, 77]);
    }
}
