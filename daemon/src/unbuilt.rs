//! The part of the API that this version doesn't do yet: complete, so that clients can be written, and plain about it.

use brig_proto::v1;
use tonic::codegen::BoxStream;

/// Answers every call of the services that are not built.
#[derive(Debug, Clone, Copy)]
pub struct Unbuilt;

/// Writes methods of a service that answer UNIMPLEMENTED: `name(Request) -> Response, "Service.Method";`.
///
/// They are written in the form that async_trait gives to `async fn`, since that macro doesn't look into others.
macro_rules! unbuilt {
    ($($method:ident($request:ty) -> $response:ty, $name:literal;)+) => {$(
        fn $method<'a, 'async_trait>(
            &'a self,
            _request: tonic::Request<$request>,
        ) -> std::pin::Pin<
            Box<dyn Future<Output = Result<tonic::Response<$response>, tonic::Status>> + Send + 'async_trait>,
        >
        where
            'a: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(std::future::ready(Err(crate::status::Problem::NotImplemented($name).into())))
        }
    )+};
}
pub(crate) use unbuilt;

impl v1::artifacts_server::Artifacts for Unbuilt {
    type DownloadStream = BoxStream<v1::ArtifactsDownloadResponse>;
    type WatchStream = BoxStream<v1::ArtifactsWatchResponse>;
    unbuilt! {
        list(v1::ArtifactsListRequest) -> v1::ArtifactsListResponse, "Artifacts.List";
        get(v1::ArtifactsGetRequest) -> v1::ArtifactsGetResponse, "Artifacts.Get";
        download(v1::ArtifactsDownloadRequest) -> Self::DownloadStream, "Artifacts.Download";
        approve(v1::ArtifactsApproveRequest) -> v1::ArtifactsApproveResponse, "Artifacts.Approve";
        reject(v1::ArtifactsRejectRequest) -> v1::ArtifactsRejectResponse, "Artifacts.Reject";
        save(v1::ArtifactsSaveRequest) -> v1::ArtifactsSaveResponse, "Artifacts.Save";
        watch(v1::ArtifactsWatchRequest) -> Self::WatchStream, "Artifacts.Watch";
    }
}

impl v1::packages_server::Packages for Unbuilt {
    type InstallStream = BoxStream<v1::PackagesInstallResponse>;
    unbuilt! {
        list(v1::PackagesListRequest) -> v1::PackagesListResponse, "Packages.List";
        install(v1::PackagesInstallRequest) -> Self::InstallStream, "Packages.Install";
    }
}

impl v1::ledger_server::Ledger for Unbuilt {
    type FollowStream = BoxStream<v1::LedgerFollowResponse>;
    type ExportStream = BoxStream<v1::LedgerExportResponse>;
    unbuilt! {
        list(v1::LedgerListRequest) -> v1::LedgerListResponse, "Ledger.List";
        follow(v1::LedgerFollowRequest) -> Self::FollowStream, "Ledger.Follow";
        export(v1::LedgerExportRequest) -> Self::ExportStream, "Ledger.Export";
        verify(v1::LedgerVerifyRequest) -> v1::LedgerVerifyResponse, "Ledger.Verify";
        erase(v1::LedgerEraseRequest) -> v1::LedgerEraseResponse, "Ledger.Erase";
    }
}
