//! The closed lists of the API as they are written in JSON: in lower case, without the prefix of the proto.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::v1;

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident of $proto:ident { $($variant:ident),+ $(,)? })+) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
            #[serde(rename_all = "snake_case")]
            pub enum $name {
                $($variant,)+
                /// A value that this version does not know.
                #[serde(other)]
                Unknown,
            }

            impl fmt::Display for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    // A formatter is a serializer for names: the same text as in JSON.
                    self.serialize(f)
                }
            }

            impl From<i32> for $name {
                fn from(number: i32) -> Self {
                    match v1::$proto::try_from(number) {
                        $(Ok(v1::$proto::$variant) => Self::$variant,)+
                        _ => Self::Unknown,
                    }
                }
            }
        )+

        #[cfg(test)]
        mod tests {
            use super::*;

            fn name_in_proto(full: &str, first: &str) -> String {
                let prefix = first.strip_suffix("UNSPECIFIED").expect("the zero value ends so");
                full.strip_prefix(prefix).expect("all values begin so").to_lowercase()
            }

            $(
                #[test]
                #[allow(non_snake_case, reason = "named after the list")]
                fn $name() {
                    for number in 1.. {
                        let Ok(value) = v1::$proto::try_from(number) else { break };
                        let expected = name_in_proto(value.as_str_name(), v1::$proto::Unspecified.as_str_name());
                        assert_eq!(serde_json::to_value($name::from(number)).unwrap(), expected);
                        assert_eq!($name::from(number).to_string(), expected);
                    }
                    assert_eq!($name::from(0), $name::Unknown);
                }
            )+
        }
    };
}

names! {
    /// How an execution ended.
    Status of ExecutionStatus {
        Success, Error, Timeout, OutOfMemory, Killed, OutputLimit, Cancelled, Rejected, Lost, Failed,
    }
    /// What ended an execution, or which limit was reached.
    CauseKind of CauseKind {
        WallTime, CpuTime, IdleTime, SessionAge, Memory, Processes, Disk, Output, Signal, SyscallDenied, Interrupt,
        Cancel, ClientGone, SessionClosed, ApprovalExpired, Internal, Rejected,
    }
    /// What happened to a file.
    Change of ArtifactChange { Created, Modified }
    /// Class of an artifact.
    Class of ArtifactClass { Chart, Data, Report, Code, Executable, Archive, Other }
    /// What the policy does with a class.
    Handling of ArtifactHandling { Preview, Download, Review }
    /// Whether an artifact may leave.
    Review of ReviewState { NotNeeded, Pending, Approved, Rejected, Expired }
    /// How an interpreter came to be.
    Start of StartKind { Cold, Forked, Pool }
}
