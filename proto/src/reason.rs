//! Reasons of refusals, by name and with their gRPC code. `docs/errors.md` is compared with this.

use tonic::Code;

use crate::v1::Reason;

/// The domain of every `google.rpc.ErrorInfo` of Brig.
pub const ERROR_DOMAIN: &str = "brig";

impl Reason {
    /// Gives the name that `ErrorInfo.reason` has: `SESSION_CLOSED`.
    pub fn name(self) -> &'static str {
        let full = self.as_str_name();
        full.strip_prefix("REASON_").unwrap_or(full)
    }

    /// Finds a reason by the name that `ErrorInfo.reason` has; unknown ones of newer daemons are `Unspecified`.
    pub fn from_name(name: &str) -> Self {
        Self::from_str_name(&format!("REASON_{name}")).unwrap_or(Self::Unspecified)
    }

    /// Gives the gRPC code that goes with it.
    pub fn code(self) -> Code {
        match self {
            Self::Unspecified => Code::Unknown,
            Self::InvalidValue
            | Self::MissingValue
            | Self::InvalidId
            | Self::InvalidPath
            | Self::UnknownPolicy
            | Self::UnknownTemplate
            | Self::NotApplicable
            | Self::TooLarge
            | Self::DigestMismatch
            | Self::StreamOrder => Code::InvalidArgument,
            Self::MessageTooLarge | Self::OffsetOutOfRange | Self::EventsGone => Code::OutOfRange,
            Self::SessionNotFound
            | Self::ContextNotFound
            | Self::ExecutionNotFound
            | Self::InputNotFound
            | Self::FileNotFound
            | Self::ArtifactNotFound
            | Self::TemplateNotFound => Code::NotFound,
            Self::RequestIdReused | Self::IdTaken | Self::FileExists => Code::AlreadyExists,
            Self::Unauthenticated => Code::Unauthenticated,
            Self::RoleMissing | Self::PolicyForbids | Self::DownloadForbidden => Code::PermissionDenied,
            Self::ReviewRequired
            | Self::ReviewRefused
            | Self::SessionClosed
            | Self::SessionPaused
            | Self::SessionNotPaused
            | Self::ExecutionNotRunning
            | Self::NotPending
            | Self::InputClosed
            | Self::NoTerminal
            | Self::IsDirectory
            | Self::NotDirectory
            | Self::DirectoryNotEmpty
            | Self::NotRegularFile
            | Self::PolicyChanged
            | Self::LinksOff
            | Self::FileNotAccessible
            | Self::FileChanged
            | Self::HostCannotEnforce
            | Self::Configuration => Code::FailedPrecondition,
            Self::SessionQuota
            | Self::ContextQuota
            | Self::QueueFull
            | Self::StorageQuota
            | Self::DiskFull
            | Self::FileQuota
            | Self::StorageFull
            | Self::WatchQuota
            | Self::LedgerFull
            | Self::LedgerBusy => Code::ResourceExhausted,
            Self::HostBusy | Self::Draining | Self::JailerGone | Self::LedgerUnavailable | Self::StoreUnavailable => {
                Code::Unavailable
            }
            Self::StartTimeout | Self::FileTimeout => Code::DeadlineExceeded,
            Self::CallerGone => Code::Cancelled,
            Self::RequestReplaced => Code::Aborted,
            Self::LedgerBroken => Code::DataLoss,
            Self::JailFailed | Self::Internal => Code::Internal,
            Self::NotImplemented => Code::Unimplemented,
        }
    }
}

/// Gives the name of a gRPC code as its specification writes it: `INVALID_ARGUMENT`.
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
